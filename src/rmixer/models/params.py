"""The parameters of the models, with their defaults and checks. Standard library only.

A jobs file is checked with `validate` before anything is started, so no torch is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmixer.errors import UsageError, nearest, unknown_name
from rmixer.models import MODELS

Problem = tuple[str, str]
Sizes = tuple[int, ...]

ACTIVATIONS = ("dice", "prelu", "relu", "sigmoid")
#: The largest width or row count that is taken for a size and not for a slip.
_LARGEST = 1 << 40
_DEFAULT_DIM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """What every built-in model takes.

    Attributes:
        embedding_dim: width of an embedding.
        table_rows: sizes of the embedding tables where no data set gives them: one number per
            table. With data, the vocabularies say it.
        dense_features: how many dense columns there are where no data set says it.
    """

    embedding_dim: int = _DEFAULT_DIM
    table_rows: Sizes | None = None
    dense_features: int = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class DLRMParams(ModelParams):
    """`rmixer.models.dlrm.DLRM`.

    Attributes:
        bottom_mlp: widths of the layers over the dense columns; the last is `embedding_dim`.
            None: 512, 256, 64, `embedding_dim`.
        top_mlp: widths of the hidden layers over the interactions; one output is added.
    """

    bottom_mlp: Sizes | None = None
    top_mlp: Sizes = (512, 256)

    @property
    def bottom_widths(self) -> Sizes:
        """`bottom_mlp`, or its default."""
        return self.bottom_mlp or (512, 256, 64, self.embedding_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepFMParams(ModelParams):
    """`rmixer.models.deepfm.DeepFM`.

    Attributes:
        mlp: widths of the hidden layers; one output is added.
        dropout: share of hidden units that a training step leaves out.
    """

    mlp: Sizes = (400, 400, 400)
    dropout: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DINParams(ModelParams):
    """`rmixer.models.din.DIN`.

    Attributes:
        attention_mlp: widths of the hidden layers of the activation unit.
        mlp: widths of the hidden layers of the head; one output is added.
        activation: of both: dice, prelu, relu or sigmoid.
    """

    attention_mlp: Sizes = (80, 40)
    mlp: Sizes = (200, 80)
    activation: str = "dice"


PARAMS: dict[str, type[ModelParams]] = {
    "deepfm": DeepFMParams,
    "din": DINParams,
    "dlrm": DLRMParams,
}


def validate(model: str, params: Mapping[str, Any]) -> list[Problem]:
    """Check the name of a model and its ``params``.

    Returns:
        One ``(key, message)`` per problem; the key is a parameter, or ``""`` for the model's name.
        Empty if all is well. The parameters of a class of somebody else's are not checked.
    """
    if model not in MODELS:
        return [] if ":" in model else [("", unknown_name("model", model, MODELS))]
    kind = PARAMS[model]
    known = sorted(field.name for field in fields(kind))
    problems: list[Problem] = []
    for key, value in params.items():
        if key not in known:
            close = nearest(str(key), known)
            hint = f"; did you mean {close!r}?" if close else ""
            wrong = f"{model} has no such parameter{hint} (known: {', '.join(known)})"
            problems.append((str(key), wrong))
        elif message := _fault(key, value):
            problems.append((str(key), message))
    return problems or _check_together(model, params)


def parse(model: str, params: Mapping[str, Any]) -> ModelParams:
    """The parameters of a built-in model.

    Raises:
        UsageError: naming the key, the value, and what would be right.
    """
    problems = validate(model, params)
    if problems:
        raise UsageError("; ".join(f"params.{key}: {message}" for key, message in problems))
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in params.items()
        if value is not None
    }
    return PARAMS[model](**plain)


def _check_together(model: str, params: Mapping[str, Any]) -> list[Problem]:
    bottom = params.get("bottom_mlp")
    dim = params.get("embedding_dim", _DEFAULT_DIM)
    if model == "dlrm" and bottom and bottom[-1] != dim:
        right = [*bottom[:-1], dim]
        return [
            ("bottom_mlp", f"{list(bottom)} must end with embedding_dim, which is {dim}: {right}")
        ]
    return []


def _fault(key: str, value: Any) -> str | None:
    if key in ("embedding_dim", "dense_features"):
        least = 1 if key == "embedding_dim" else 0
        return None if _is_size(value, least) else f"{value!r} is no whole number from {least} on"
    if key == "dropout":
        is_share = isinstance(value, int | float) and not isinstance(value, bool)
        right = is_share and math.isfinite(value) and 0 <= value < 1
        return None if right else f"{value!r} is not a share of at least 0, below 1"
    if key == "activation":
        return None if value in ACTIVATIONS else unknown_name("activation", str(value), ACTIVATIONS)
    if value is None and key in ("table_rows", "bottom_mlp"):
        return None
    is_sizes = isinstance(value, list | tuple) and all(_is_size(size, 1) for size in value)
    if not is_sizes or (not value and key != "top_mlp"):
        return f"{value!r} is no list of whole numbers from 1 on, for example [512, 256]"
    return None


def _is_size(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST
