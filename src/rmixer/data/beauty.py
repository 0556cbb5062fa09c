"""Amazon's Beauty reviews as BERT4Rec has them: who reviewed what, in the order of time.

A line is a user and an item, both whole numbers from 1, a user's lines one after the other. Of
every user the last item is the one in question, with label 1, and the others are the past; beside
it stands a row with the same past and an item drawn uniformly (by a hash of the user, so it is
always the same), with label 0: the leave-one-out practice of the field with one sampled negative
(He et al., Neural Collaborative Filtering, WWW 2017, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.checks import Problem, check_path
from rmixer.data.delimited import Delimited
from rmixer.data.format import Chunk
from rmixer.data.schema import DataSpec, Schema, SequenceColumn
from rmixer.data.split import mix
from rmixer.data.text import blocks
from rmixer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = Schema(
    label="label",
    sparse=("item",),
    sequences=(SequenceColumn(name="hist_items", shares="item"),),
)
_USERS_AT_ONCE = 1 << 14
_FRAME_SCHEMA = {
    "label": "label",
    "sparse": ["item"],
    "sequence": {"hist_items": {"shares": "item"}},
}


class Beauty:
    """The format ``beauty``."""

    options: tuple[str, ...] = ("path",)
    default_dense = "none"
    SCHEMA = SCHEMA

    def __init__(self, spec: DataSpec) -> None:
        self.spec, self.schema = spec, SCHEMA
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return check_path(data)

    def chunks(self) -> Iterator[Chunk]:
        """Two rows per user with at least two items."""
        (path,) = self.sources
        pairs = np.concatenate([*_pairs(path)])
        starts = np.flatnonzero(np.r_[True, pairs[1:, 0] != pairs[:-1, 0]])
        if len(np.unique(pairs[starts, 0])) != len(starts):
            raise DataError("the lines of a user are not one after the other", path=path)
        stops = np.r_[starts[1:], len(pairs)]
        long = stops - starts > 1
        if not long.any():
            raise DataError("no user has two items; there is nothing to predict", path=path)
        items = np.unique(pairs[:, 1])
        starts, stops = starts[long], stops[long]
        for at in range(0, len(starts), _USERS_AT_ONCE):
            some = slice(at, at + _USERS_AT_ONCE)
            yield _chunk(pairs, starts[some], stops[some], items)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file of this form, or of a frame with hist_items and item."""
        if isinstance(source, str | Path):
            spec = DataSpec(
                format="beauty",
                transform=self.spec.transform,
                valid=self.spec.valid,
                options={"path": str(source)},
            )
            yield from Beauty(spec).chunks()
            return
        spec = DataSpec(
            format="csv",
            transform=self.spec.transform,
            valid=self.spec.valid,
            options={"schema": _FRAME_SCHEMA},
        )
        yield from Delimited(spec).chunks_of(source)


def _pairs(path: Path) -> Iterator[NDArray[np.int64]]:
    """Users and items of some lines at a time, ``[N, 2]``."""
    empty = True
    for block, line in blocks(path):
        empty = False
        words = block.split()
        rows = block.count(b"\n")
        try:
            found = np.array(words, np.int64).reshape(rows, 2)
        except ValueError:
            raise _fault(block, path, line) from None
        if (found < 1).any():
            raise _fault(block, path, line)
        yield found
    if empty:
        raise DataError("the file is empty; at least one row is needed", path=path)


def _fault(block: bytes, path: Path, first: int) -> DataError:
    for number, text in enumerate(block.split(b"\n"), start=first):
        words = text.split()
        if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):  # noqa: PLR2004
            shown = text.decode(errors="replace")[:60]
            return DataError(
                f"{shown!r} is no user and item; two whole numbers from 1 are needed",
                path=path,
                line=number,
            )
    return DataError("cannot be parsed", path=path, line=first)


def _chunk(
    pairs: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    items: NDArray[np.int64],
) -> Chunk:
    import polars as pl  # noqa: PLC0415 - not needed where the cache is built

    longest = SCHEMA.sequences[0].max_length
    begins, ends = np.maximum(starts, stops - 1 - longest), stops - 1
    lengths = np.repeat(ends - begins, 2)
    index = np.repeat(np.repeat(begins, 2) - (np.cumsum(lengths) - lengths), lengths)
    history = pairs[index + np.arange(len(index)), 1]
    right = pairs[ends, 1]
    drawn = mix(pairs[ends, 0].astype(np.uint64)) % np.uint64(max(1, len(items) - 1))
    at = np.searchsorted(items, right)
    wrong = items[(at + 1 + drawn.astype(np.int64)) % len(items)]  # any other item
    return Chunk(
        label_B=np.tile(np.array([1, 0], np.uint8), len(ends)),
        dense_BN=np.empty((2 * len(ends), 0)),
        sparse=(pl.Series(np.stack([right, wrong], 1).ravel()),),
        sequences=((pl.Series(history), lengths),),
    )
