"""The optimizers by name, with their hyper-parameters and defaults. Standard library only.

A jobs file is checked with `validate` before anything is started, so no torch is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmixer.errors import UsageError, nearest, unknown_name

Problem = tuple[str, str]

DEFAULT_OPTIMIZER = "rowwise_adagrad"


@dataclass(frozen=True, slots=True)
class Number:
    """A hyper-parameter: its default and the range it must be in."""

    default: float
    low: float = 0.0
    high: float = math.inf
    low_open: bool = False

    def fault(self, value: Any) -> str | None:
        """What is not right about a value, or None."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and self._holds(value):
            return None
        below = f" and below {self.high:g}" if math.isfinite(self.high) else ""
        bound = "above" if self.low_open else "at least"
        return f"{value!r} is not a number {bound} {self.low:g}{below}"

    def _holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and value < self.high


def _rate(default: float) -> Number:
    return Number(default, low_open=True)


_BETAS = {"beta1": Number(0.9, high=1.0), "beta2": Number(0.999, high=1.0)}
_ADAGRAD = {"eps": Number(1e-10), "initial_accumulator_value": Number(0.0)}

#: Name -> hyper-parameters. Definitions and defaults are torch.optim's; ``rowwise_adagrad`` is
#: Adagrad with one accumulator per row of a table (the mean square of the row's gradient), as in
#: facebookresearch/dlrm and FBGEMM.
OPTIMIZERS: dict[str, dict[str, Number]] = {
    "adagrad": {
        "lr": _rate(0.01),
        "lr_decay": Number(0.0),
        "weight_decay": Number(0.0),
        **_ADAGRAD,
    },
    "adam": {"lr": _rate(0.001), **_BETAS, "eps": Number(1e-8), "weight_decay": Number(0.0)},
    "rowwise_adagrad": {"lr": _rate(0.01), **_ADAGRAD},
    "sgd": {"lr": _rate(0.001), "momentum": Number(0.0, high=1.0), "weight_decay": Number(0.0)},
    "sparse_adam": {"lr": _rate(0.001), **_BETAS, "eps": Number(1e-8)},
}


def validate(optimizer: Mapping[str, Any]) -> list[Problem]:
    """Check an ``optimizer`` mapping.

    Returns:
        One ``(key, message)`` per problem; empty if all is well.
    """
    name = optimizer.get("name", DEFAULT_OPTIMIZER)
    if name not in OPTIMIZERS:
        return [("name", unknown_name("optimizer", str(name), OPTIMIZERS))]
    known = OPTIMIZERS[name]
    problems: list[Problem] = []
    for key, value in optimizer.items():
        if key == "name":
            continue
        if key not in known:
            close = nearest(str(key), known)
            hint = f"; did you mean {close!r}?" if close else ""
            wrong = f"{name} has no such setting{hint} (known: {', '.join(sorted(known))})"
            problems.append((str(key), wrong))
        elif message := known[key].fault(value):
            problems.append((str(key), message))
    return problems


def parse(optimizer: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """Name and all hyper-parameters, defaults filled in.

    Raises:
        UsageError: naming the key, the value, and what would be right.
    """
    problems = validate(optimizer)
    if problems:
        raise UsageError("; ".join(f"optimizer.{key}: {message}" for key, message in problems))
    name = optimizer.get("name", DEFAULT_OPTIMIZER)
    given = {key: float(value) for key, value in optimizer.items() if key != "name"}
    return name, {key: number.default for key, number in OPTIMIZERS[name].items()} | given
