"""PaddleRec's slots: lines of words ``slot:value`` between spaces, several words a slot if need be.

    click:0 dense_feature:0.05 dense_feature:0.2 .. 1:737395 2:210498 .. 26:306163

    data:
      format: paddlerec_slots
      path: train.txt
      schema:                        # absent: Criteo's slots as above
        label: click
        dense: {dense_feature: 13}   # a number of words each; or a list of slots with one word
        sparse: ["1", "2"]           # one id a row, or none
        sequence: {"3": {}}          # any number of ids

Ids are whole numbers below 2**64. A slot that a line lacks is a missing value, or an empty list;
slots that the schema does not name are left out. Of several numbers of a slot the columns are
``dense_feature.1`` and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmixer.data.checks import Problem, check_path, check_schema, sequence_items
from rmixer.data.format import Chunk
from rmixer.data.parquet import of_frame
from rmixer.data.schema import DataSpec, Schema, parse_schema
from rmixer.data.text import blocks
from rmixer.data.words import Words, words_of
from rmixer.errors import DataError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.detect import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Which slots are read.

    Attributes:
        label: the slot of the label.
        dense: slots of numbers, and how many words each has.
        sparse: slots of one id.
        lists: slots of any number of ids, and how many of the last ones are kept.
    """

    label: str
    dense: Mapping[str, int]
    sparse: tuple[str, ...]
    lists: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.label, *self.dense, *self.sparse, *self.lists)


class PaddleRecSlots:
    """The format ``paddlerec_slots``."""

    options: tuple[str, ...] = ("path", "schema")
    default_dense = "none"  # what stands there has been scaled
    schema_optional = True
    #: Whether a word is ``value:slot``.
    VALUE_FIRST: ClassVar[bool] = False
    #: What is read where a jobs file names no schema.
    DEFAULT: ClassVar[Mapping[str, Any]] = {
        "label": "click",
        "dense": {"dense_feature": 13},
        "sparse": [str(i) for i in range(1, 27)],
    }

    def __init__(self, spec: DataSpec) -> None:
        given = spec.options.get("schema") or self.DEFAULT
        self.schema = parse_schema(expand(given))
        self.slots = _slots(given, self.schema)
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        words = [word.partition(":") for line in sample.lines for word in line.split(" ")]
        named = words and all(name and value for name, _, value in words if name)
        return {} if named and any(name == "click" for name, _, _ in words) else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = check_path(data)
        given = data.get("schema")
        if given is None:
            return problems
        if isinstance(given, Mapping):
            problems += [
                (f"schema.{key}", "is for tables; slots have names")
                for key in ("columns", "delimiter", "missing", "positive")
                if given.get(key) is not None
            ]
            dense = given.get("dense")
            if isinstance(dense, Mapping):
                problems += [
                    ("schema.dense", f"{name}: {width!r} is no number of words of at least 1")
                    for name, width in dense.items()
                    if isinstance(width, bool) or not isinstance(width, int) or width < 1
                ]
        return problems or check_schema(expand(given))

    def chunks(self) -> Iterator[Chunk]:
        """All rows of the file."""
        yield from self._chunks(self.sources[0], label_needed=True)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file, or of a frame of the columns; the label may be absent."""
        if isinstance(source, str | Path):
            yield from self._chunks(Path(source), label_needed=False)
        else:
            yield of_frame(source, self.schema)

    def _chunks(self, path: Path, *, label_needed: bool) -> Iterator[Chunk]:
        labelled, empty = label_needed, True
        for block, line in blocks(path):
            rows = block.count(b"\n")
            words = words_of(block, path, line, self.slots.names, value_first=self.VALUE_FIRST)
            if empty and not label_needed:
                labelled = len(words[self.slots.label].line_W) > 0
            empty = False
            try:
                yield self._chunk(words, rows, labelled=labelled)
            except _Fault as fault:
                at = line + fault.line
                raise DataError(fault.message, path=path, line=at, column=fault.slot) from fault
        if empty:
            raise DataError("the file is empty; at least one row is needed", path=path)

    def _chunk(self, words: Mapping[str, Words], rows: int, *, labelled: bool) -> Chunk:
        slots = self.slots
        dense = [_numbers(words[name], rows, name, width) for name, width in slots.dense.items()]
        return Chunk(
            label_B=_label(words[slots.label], rows, slots.label) if labelled else None,
            dense_BN=np.concatenate(dense, axis=1) if dense else np.empty((rows, 0)),
            sparse=tuple(_one_id(words[name], rows, name) for name in slots.sparse),
            sequences=tuple(_list(words[name], rows, name, n) for name, n in slots.lists.items()),
        )


def expand(given: Any) -> Any:
    """A schema whose dense columns are a list of names, one per number; names are text."""
    if not isinstance(given, Mapping):
        return given
    dense, sparse = given.get("dense"), given.get("sparse")
    if isinstance(dense, Mapping):
        dense = [
            str(name) if width == 1 else f"{name}.{i + 1}"
            for name, width in dense.items()
            for i in range(width)
        ]
    if isinstance(sparse, list | tuple):
        sparse = [str(name) if isinstance(name, int) else name for name in sparse]
    sequence = given.get("sequence")
    if isinstance(sequence, Mapping):
        sequence = {str(name): options for name, options in sequence.items()}
    label = given.get("label")
    label = str(label) if isinstance(label, int) else label
    return {**given, "label": label, "dense": dense, "sparse": sparse, "sequence": sequence}


def _slots(given: Mapping[str, Any], schema: Schema) -> Slots:
    dense = given.get("dense") or ()
    widths = dense if isinstance(dense, Mapping) else dict.fromkeys(dense, 1)
    return Slots(
        label=schema.label,
        dense={str(name): width for name, width in widths.items()},
        sparse=schema.sparse,
        lists={
            name: parsed.max_length
            for (name, _), parsed in zip(
                sequence_items(expand(given).get("sequence")), schema.sequences, strict=True
            )
        },
    )


class _Fault(Exception):  # noqa: N818 - becomes a DataError where the file is known
    def __init__(self, slot: str, line: int, message: str) -> None:
        super().__init__(message)
        self.slot, self.line, self.message = slot, line, message


def _label(words: Words, rows: int, slot: str) -> NDArray[np.uint8]:
    values = _numbers(words, rows, slot, 1)[:, 0]
    wrong = ~np.isin(values, (0.0, 1.0))
    if wrong.any():
        line = int(np.argmax(wrong))
        at = int(np.searchsorted(words.line_W, line))
        if np.isnan(values[line]):
            raise _Fault(slot, line, "the line has no label; every row needs one")
        raise _Fault(slot, line, f"{words.value_W[at]!r} is no label; it must be 0 or 1")
    return values.astype(np.uint8)


def _numbers(words: Words, rows: int, slot: str, width: int) -> NDArray[np.float64]:
    """The numbers of each line, so many or none."""
    import polars as pl  # noqa: PLC0415

    counts = np.bincount(words.line_W, minlength=rows)
    _check_counts((counts == width) | (counts == 0), counts, slot, f"{width} or none")
    values = words.value_W.cast(pl.Float64, strict=False)
    wrong = (values.is_null() | ~values.is_finite().fill_null(value=False)).to_numpy()
    _check_values(wrong, words, slot, "is no number")
    out = np.full((rows, width), np.nan)
    out[counts > 0] = values.to_numpy().reshape(-1, width)
    return out


def _one_id(words: Words, rows: int, slot: str) -> pl.Series:
    import polars as pl  # noqa: PLC0415

    counts = np.bincount(words.line_W, minlength=rows)
    why = "one at most, or name the slot under sequence"
    _check_counts(counts <= 1, counts, slot, why)
    ids = np.zeros(rows, np.int64)
    ids[words.line_W] = _ids(words, slot)
    return pl.Series(slot, ids).set(pl.Series(counts == 0), None)


def _list(words: Words, rows: int, slot: str, longest: int) -> tuple[pl.Series, NDArray[np.int64]]:
    import polars as pl  # noqa: PLC0415

    ids = _ids(words, slot)
    counts = np.bincount(words.line_W, minlength=rows)
    from_end = np.repeat(np.cumsum(counts), counts) - np.arange(len(ids))
    return pl.Series(slot, ids[from_end <= longest]), np.minimum(counts, longest)


def _ids(words: Words, slot: str) -> NDArray[np.int64]:
    """Unsigned 64-bit ids in the bits of signed ones."""
    import polars as pl  # noqa: PLC0415

    ids = words.value_W.cast(pl.UInt64, strict=False)
    why = "is no id; it must be a whole number from 0 to below 2**64"
    _check_values(ids.is_null().to_numpy(), words, slot, why)
    return ids.to_numpy().view(np.int64)


def _check_counts(
    right: NDArray[np.bool_], counts: NDArray[np.int64], slot: str, wanted: str
) -> None:
    if not right.all():
        line = int(np.argmin(right))
        raise _Fault(slot, line, f"{counts[line]} words of this slot; {wanted}")


def _check_values(wrong: NDArray[np.bool_], words: Words, slot: str, why: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise _Fault(slot, int(words.line_W[at]), f"{words.value_W[at]!r} {why}")
