"""What a data format is, and how one is found by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from rmixer.data import FORMATS
from rmixer.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.checks import Problem
    from rmixer.data.schema import DataSpec, Schema

#: A missing whole number, and a missing id, in a `WholeChunk`.
NO_NUMBER = -(1 << 31)
NO_ID = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some consecutive rows of raw data, column by column.

    Attributes:
        label_B: 0 or 1; None where the source has no label.
        dense_BN: float64; NaN is missing.
        sparse: one series of integers or text per sparse column, of B values; null is missing.
        sequences: per sequence column all ids one after the other, and how many each row has.
    """

    label_B: NDArray[np.uint8] | None
    dense_BN: NDArray[np.float64]
    sparse: tuple[pl.Series, ...]
    sequences: tuple[tuple[pl.Series, NDArray[np.int64]], ...]

    def __len__(self) -> int:
        return len(self.dense_BN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeChunk:
    """Consecutive rows of whole numbers and ids below 2**32, column by column, without lists.

    Attributes:
        label_B: 0 or 1.
        dense_NB: int32; `NO_NUMBER` is missing.
        id_FB: int64, from 0 to 2**32 - 1; `NO_ID` is missing.
    """

    label_B: NDArray[np.uint8]
    dense_NB: NDArray[np.int32]
    id_FB: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label_B)


class Format(Protocol):
    """A data format: reads chunks of raw rows in an order that never changes.

    Attributes:
        options: the keys that it takes in a jobs file, beside format, transform and valid.
        default_dense: the transform of dense columns if none is named.
        schema: the columns; known after construction.
        sources: the files that it reads; the cache notices when their content changes.

    Where they are true, it also has ``takes_folder`` (``path`` may be a folder),
    ``schema_optional`` and ``schema_in_files`` (its columns are known only once its files have been
    read).

    It may also have ``together``: so many consecutive rows, those of one user, are held out
    together or not at all.
    """

    options: tuple[str, ...]
    default_dense: str
    schema: Schema
    sources: tuple[Path, ...]

    def __init__(self, spec: DataSpec) -> None: ...

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys; no file is read."""

    # Optional: ``looks(sample)``, a static method, by which `rmixer.data.detect` finds it;
    # ``header_info()``, the `DataInfo` where files tell all sizes without their rows, else None;
    # and ``placed_chunks(start)``: pairs of a `Chunk` or a `WholeChunk` and the
    # `rmixer.data.text.Place` where the next one begins, from the start (None) or from such a
    # place. The cache prefers it to ``chunks``: a builder that was killed goes on from there. Where
    # it is absent, the chunks that the killed builder has done are read again and dropped.

    def chunks(self) -> Iterator[Chunk]:
        """All rows.

        Raises:
            DataError: at the first thing that is not right, with path, line, column and value.
        """

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file, or of a frame, of the same columns; the label may be absent."""


def load_format(name: str) -> type[Format]:
    """The class of a format, from the table or from ``pkg.module:Class``.

    Raises:
        UsageError: there is none.
    """
    target = FORMATS.get(name, name)
    if ":" not in target:
        raise UnknownNameError("data format", name, FORMATS)
    module, _, attribute = target.partition(":")
    try:
        return cast("type[Format]", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"data format {name!r} cannot be loaded: {error}") from error
