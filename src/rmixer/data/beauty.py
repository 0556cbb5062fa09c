"""Amazon's Beauty reviews as BERT4Rec has them: who reviewed what, in the order of time.

Two forms, told apart by their first line:

* a user and an item a line, whole numbers from 1 with a space between them, a user's lines one
  after the other: the published file (Sun et al., BERT4Rec, CIKM 2019);
* six fields between semicolons, the last ones lists between commas: ``1; items; 1 for each item;
  positions; masked positions; what was masked there``: the sample of PaddleRec
  (models/rank/bert4rec). A line is a user; what was masked is put back, padding is dropped.

They become rows by `rmixer.data.leave_one_out`. The interactions are held in memory, 40 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data import leave_one_out
from rmixer.data.checks import Problem, check_int, check_path
from rmixer.data.delimited import Delimited
from rmixer.data.format import Chunk
from rmixer.data.leave_one_out import Interactions
from rmixer.data.schema import DataSpec, Schema, SequenceColumn
from rmixer.data.text import blocks, first_line
from rmixer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.detect import Sample

_MASKED_FIELDS = 6


class Beauty:
    """The format ``beauty``."""

    options: tuple[str, ...] = ("path", "max_length", "negatives")
    default_dense = "none"

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.negatives: int = spec.options.get("negatives", 1)
        self.together = 1 + self.negatives
        self.max_length: int = spec.options.get("max_length", 50)
        past = SequenceColumn(name="hist_items", shares="item", max_length=self.max_length)
        self.schema = Schema(label="label", sparse=("item",), sequences=(past,))
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        pairs = all(
            len(words) == 2 and all(_is_id(word.encode()) for word in words)  # noqa: PLR2004
            for words in sample.fields(" ")
        )
        masked = all(len(row) == _MASKED_FIELDS for row in sample.fields(";"))
        return {} if sample.lines and (pairs or masked) else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return [
            *check_path(data),
            *check_int(data, "max_length", 1),
            *check_int(data, "negatives", 1),
        ]

    def chunks(self) -> Iterator[Chunk]:
        """A row with label 1, and those with label 0, per user with at least two items."""
        yield from self._chunks(self.sources[0])

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file of these forms, or of a frame with hist_items and item."""
        if isinstance(source, str | Path):
            yield from self._chunks(Path(source))
            return
        past = {"hist_items": {"shares": "item", "max_length": self.max_length}}
        schema = {"label": "label", "sparse": ["item"], "sequence": past}
        spec = DataSpec(
            format="csv",
            transform=self.spec.transform,
            valid=self.spec.valid,
            options={"schema": schema},
        )
        yield from Delimited(spec).chunks_of(source)

    def _chunks(self, path: Path) -> Iterator[Chunk]:
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        user_N, item_N = _masked(path) if ";" in first_line(path) else _pairs(path)
        items, code_N = np.unique(item_N, return_inverse=True)
        taken = Interactions(user_N=user_N, item_N=code_N.astype(np.int64), items=len(items))
        options = {"negatives": self.negatives, "max_length": self.max_length}
        try:
            for rows in leave_one_out.rows(taken, **options):
                yield Chunk(
                    label_B=rows.label_B,
                    dense_BN=np.empty((len(rows.label_B), 0)),
                    sparse=(pl.Series(items[rows.item_B]),),
                    sequences=((pl.Series(item_N[rows.past_L]), rows.length_B),),
                )
        except ValueError as error:
            raise DataError(str(error), path=path) from error


def _pairs(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Users and items, line by line."""
    found = [np.empty((0, 2), np.int64)]
    for block, line in blocks(path):
        try:
            pairs = np.array(block.split(), np.int64).reshape(-1, 2)
        except (ValueError, OverflowError):
            raise _fault(block, path, line) from None
        if len(pairs) != block.count(b"\n") or (pairs < 1).any():
            raise _fault(block, path, line)
        found.append(pairs)
    pairs = np.concatenate(found)
    user_N, item_N = np.ascontiguousarray(pairs.T)
    starts = np.flatnonzero(np.r_[True, user_N[1:] != user_N[:-1]])
    order = np.argsort(user_N[starts], kind="stable")
    again = order[1:][np.diff(user_N[starts][order]) == 0]
    if len(again):
        at = int(starts[again.min()])
        message = f"the lines of user {user_N[at]} are not one after the other"
        raise DataError(message, path=path, line=at + 1)
    return user_N, item_N


def _fault(block: bytes, path: Path, first: int) -> DataError:
    for number, text in enumerate(block.split(b"\n"), start=first):
        words = text.split()
        if len(words) != 2 or not all(_is_id(word) for word in words):  # noqa: PLR2004
            shown = text.decode(errors="replace")[:60]
            return DataError(
                f"{shown!r} is no user and item; two whole numbers from 1 are needed",
                path=path,
                line=number,
            )
    return DataError("cannot be parsed", path=path, line=first)


def _is_id(word: bytes) -> bool:
    return word.isdigit() and 0 < int(word) < 1 << 63


def _masked(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Users, numbered by their lines, and items, as they were before some were masked."""
    users: list[int] = []
    items: list[int] = []
    for block, first in blocks(path):
        for number, text in enumerate(block.decode("ascii", "replace").splitlines(), start=first):
            try:
                walk = _unmasked(text)
            except ValueError as error:
                raise DataError(str(error), path=path, line=number) from error
            users += [number] * len(walk)
            items += walk
    return np.array(users, np.int64), np.array(items, np.int64)


def _unmasked(text: str) -> list[int]:
    fields = text.split(";")
    if len(fields) != _MASKED_FIELDS:
        raise ValueError(f"{len(fields)} fields; {_MASKED_FIELDS} are needed, ';' between them")
    lists = []
    for field in fields:
        words = field.replace(",", " ").split()
        for word in words:
            if not word.isdigit():
                raise ValueError(f"{word!r} is no whole number")
        lists.append([int(word) for word in words])
    _, walk, there, _, places, hidden = lists
    if len(walk) != len(there) or len(places) != len(hidden):
        counts = f"{len(walk)}, {len(there)}, {len(places)} and {len(hidden)}"
        raise ValueError(f"lists 2 and 3, and 5 and 6, must be equally long; they have {counts}")
    for place, item in zip(places, hidden, strict=True):
        if place >= len(walk):
            raise ValueError(f"position {place} is behind the last item, {len(walk) - 1}")
        walk[place] = item
    return [item for item, one in zip(walk, there, strict=True) if one]
