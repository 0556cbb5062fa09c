"""What a parameter of a model may be: its default and its check, side by side.

    class MyParams(ModelParams):
        mlp: Sizes = sizes((200, 80))
        dropout: float = share(0.0)

Standard library only: a jobs file is checked before anything is started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rmixer.errors import nearest, unknown_name

Problem = tuple[str, str]
Sizes = tuple[int, ...]
#: What is not right about a value, or None.
Fault = Callable[[Any], str | None]

DEFAULT_DIM = 16
#: The largest width or row count that is taken for a size and not for a slip.
_LARGEST = 1 << 40
_KEY = "fault"


def size(default: int, *, least: int = 1) -> Any:
    """A whole number of at least ``least``."""

    def fault(value: Any) -> str | None:
        right = _is_size(value, least)
        return None if right else f"{value!r} is no whole number from {least} on"

    return field(default=default, metadata={_KEY: fault})


def sizes(default: Sizes | None, *, may_be_empty: bool = False) -> Any:
    """A list of whole numbers from 1 on; None may be said where it is the default."""

    def fault(value: Any) -> str | None:
        if value is None and default is None:
            return None
        right = isinstance(value, list | tuple) and all(_is_size(one, 1) for one in value)
        if right and (value or may_be_empty):
            return None
        return f"{value!r} is no list of whole numbers from 1 on, for example [512, 256]"

    return field(default=default, metadata={_KEY: fault})


def share(default: float) -> Any:
    """A number of at least 0, below 1."""

    def fault(value: Any) -> str | None:
        right = _is_number(value) and 0 <= value < 1
        return None if right else f"{value!r} is not a share of at least 0, below 1"

    return field(default=default, metadata={_KEY: fault})


def number(default: float, *, least: float = 0.0) -> Any:
    """A finite number of at least ``least``."""

    def fault(value: Any) -> str | None:
        right = _is_number(value) and value >= least
        return None if right else f"{value!r} is not a number of at least {least:g}"

    return field(default=default, metadata={_KEY: fault})


def choice(default: str, known: Sequence[str], what: str) -> Any:
    """One of some names; ``what`` they are is said in the message."""

    def fault(value: Any) -> str | None:
        return None if value in known else unknown_name(what, str(value), known)

    return field(default=default, metadata={_KEY: fault})


def name_groups(default: tuple[tuple[str, ...], ...] | None, example: str) -> Any:
    """A list of lists of column names; None may be said where it is the default."""

    def fault(value: Any) -> str | None:
        if value is None and default is None:
            return None
        right = isinstance(value, list | tuple) and all(_is_names(one) for one in value)
        return None if right else f"{value!r} is no list of lists of names, for example {example}"

    return field(default=default, metadata={_KEY: fault})


def name(default: str) -> Any:
    """The name of a column."""

    def fault(value: Any) -> str | None:
        right = isinstance(value, str) and bool(value)
        return None if right else f"{value!r} is no column name"

    return field(default=default, metadata={_KEY: fault})


def names(default: tuple[str, ...]) -> Any:
    """A list of column names, which may be empty."""

    def fault(value: Any) -> str | None:
        right = value in ([], ()) or _is_names(value)
        return None if right else f"{value!r} is no list of column names"

    return field(default=default, metadata={_KEY: fault})


def flag(*, default: bool) -> Any:
    """True or false."""

    def fault(value: Any) -> str | None:
        return None if isinstance(value, bool) else f"{value!r} is neither true nor false"

    return field(default=default, metadata={_KEY: fault})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """What every built-in model takes.

    Attributes:
        embedding_dim: width of an embedding.
        table_rows: sizes of the embedding tables where no data set gives them: one number per
            table. With data, the vocabularies say it.
        dense_features: how many dense columns there are where no data set says it.
    """

    embedding_dim: int = size(DEFAULT_DIM)
    table_rows: Sizes | None = sizes(None)
    dense_features: int = size(13, least=0)

    @classmethod
    def together(cls, params: Mapping[str, Any]) -> list[Problem]:
        """The problems of parameters that do not go together; each alone is right."""
        del params
        return []


def faults(kind: type[ModelParams], model: str, params: Mapping[str, Any]) -> list[Problem]:
    """One ``(key, message)`` per problem of the parameters of a model."""
    checks: dict[str, Fault] = {one.name: one.metadata[_KEY] for one in fields(kind)}
    problems: list[Problem] = []
    for key, value in params.items():
        if key not in checks:
            close = nearest(str(key), checks)
            hint = f"; did you mean {close!r}?" if close else ""
            known = ", ".join(sorted(checks))
            problems.append((str(key), f"{model} has no such parameter{hint} (known: {known})"))
        elif message := checks[key](value):
            problems.append((key, message))
    return problems or kind.together(params)


def _is_size(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST


def _is_names(value: Any) -> bool:
    right = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return right and bool(value)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
