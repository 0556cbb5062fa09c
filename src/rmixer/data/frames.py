"""Typed columns (parquet, arrays, frames) as chunks: ids stay integers, faults name their row.

Rows are counted from 1, over the whole file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.format import Chunk
from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.schema import Schema, SequenceColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """How the columns of one file become chunks.

    Attributes:
        schema: the roles of the columns. An id of a column with declared rows must be a whole
            number from 0 (missing, and the padding of a list) to below them.
        path: for messages.
        labelled: whether the label is there.
    """

    schema: Schema
    path: Path | str
    labelled: bool = True

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that must be there."""
        return self.schema.used if self.labelled else self.schema.used[1:]

    def check(self, names: Iterable[str]) -> None:
        """Whether all columns are there.

        Raises:
            DataError: one is not.
        """
        known = list(names)
        for name in self.used:
            if name not in known:
                raise DataError(unknown_name("column", name, known), path=self.path)

    def chunk(self, frame: pl.DataFrame, first: int = 0) -> Chunk:
        """The chunk of some rows, of which ``first`` stand before in the file.

        Raises:
            DataError: at the first value that is not right, column by column.
        """
        schema = self.schema
        dense = np.empty((frame.height, len(schema.dense)))
        for i, name in enumerate(schema.dense):
            dense[:, i] = self._dense(frame[name], first)
        return Chunk(
            label_B=self._label(frame[schema.label], first) if self.labelled else None,
            dense_BN=dense,
            sparse=tuple(self._sparse(frame[name], first) for name in schema.sparse),
            sequences=tuple(self._sequence(frame[s.name], s, first) for s in schema.sequences),
        )

    def _label(self, raw: pl.Series, first: int) -> NDArray[np.uint8]:
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        self._check(raw, raw.is_null().to_numpy(), first, "is no label; every row needs one")
        if self.schema.positive is not None:
            text = raw.cast(pl.String)
            return text.is_in(list(self.schema.positive)).to_numpy().astype(np.uint8)
        values = self._numbers(raw, first)
        wrong = ~np.isin(values, (0.0, 1.0))
        self._check(raw, wrong, first, "is no label; it must be 0 or 1")
        return values.astype(np.uint8)

    def _dense(self, raw: pl.Series, first: int) -> NDArray[np.float64]:
        values = self._numbers(raw, first)
        self._check(raw, np.isinf(values), first, "is no number")
        return values

    def _numbers(self, raw: pl.Series, first: int) -> NDArray[np.float64]:
        import polars as pl  # noqa: PLC0415

        if raw.dtype.is_nested():
            raise self._kind(raw, "a number")
        numbers = raw.cast(pl.Float64, strict=False)
        wrong = (numbers.is_null() & raw.is_not_null()).to_numpy()
        self._check(raw, wrong, first, "is no number")
        return np.asarray(numbers.to_numpy(), np.float64)

    def _sparse(self, raw: pl.Series, first: int) -> pl.Series:
        if raw.dtype.is_nested():
            raise self._kind(raw, "an id; a list goes under sequence")
        rows = self.schema.table_rows.get(raw.name)
        ids = self._ids(raw, first, whole=rows is not None)
        if rows is not None:
            self._check_range(ids, np.arange(len(ids)), rows, first)
        return ids

    def _ids(self, raw: pl.Series, first: int, *, whole: bool) -> pl.Series:
        """Integers where they are numbers, else text."""
        import polars as pl  # noqa: PLC0415

        if raw.dtype == pl.UInt64:
            return raw.reinterpret(signed=True)
        if raw.dtype.is_integer() or raw.dtype in (pl.Boolean, pl.Null):
            return raw.cast(pl.Int64)
        if raw.dtype.is_float():  # as pandas has them where one is missing
            raw = raw.fill_nan(None)
            wrong = (raw != raw.round()).fill_null(value=False) | raw.is_infinite().fill_null(
                value=False
            )
            self._check(raw, wrong.to_numpy(), first, "is no id; it must be a whole number")
            return raw.cast(pl.Int64)
        if not whole:
            return raw.cast(pl.String)
        ids = raw.cast(pl.String).cast(pl.Int64, strict=False)
        lost = (ids.is_null() & raw.is_not_null()).to_numpy()
        self._check(raw, lost, first, "is no id; it must be a whole number")
        return ids

    def _sequence(
        self, raw: pl.Series, sequence: SequenceColumn, first: int
    ) -> tuple[pl.Series, NDArray[np.int64]]:
        import polars as pl  # noqa: PLC0415

        if isinstance(raw.dtype, pl.Array):
            raw = raw.arr.to_list()
        elif not isinstance(raw.dtype, pl.List):
            lists = raw.cast(pl.String).str.split(sequence.separator)
            raw = lists.list.eval(pl.element().filter(pl.element() != ""))
        lists = raw.fill_null([]).list.drop_nulls()
        rows = self.schema.table_rows.get(sequence.shares or sequence.name)
        if rows is not None and lists.dtype.inner.is_integer():  # type: ignore[attr-defined]
            lists = lists.list.eval(pl.element().filter(pl.element() != 0))
        lists = lists.list.tail(sequence.max_length)
        lengths = lists.list.len().to_numpy().astype(np.int64)
        values = lists.explode(empty_as_null=False).rename(raw.name)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        ids = self._ids(values, first, whole=rows is not None)
        if rows is not None:
            self._check_range(ids, owner, rows, first)
        return ids, lengths

    def _check_range(self, ids: pl.Series, owner: NDArray[np.int64], rows: int, first: int) -> None:
        wrong = ((ids < 0) | (ids >= rows)).fill_null(value=False).to_numpy()
        if wrong.any():
            at = int(np.argmax(wrong))
            why = f"is not among the {rows} ids of its table, 0 to {rows - 1}"
            raise self._fault(ids.name, int(owner[at]) + first, ids[at], why)

    def _check(self, raw: pl.Series, wrong: NDArray[np.bool_], first: int, why: str) -> None:
        if wrong.any():
            at = int(np.argmax(wrong))
            raise self._fault(raw.name, at + first, raw[at], why)

    def _fault(self, column: str, row: int, value: Any, why: str) -> DataError:
        shown = "an empty value" if value is None else repr(value)
        return DataError(f"row {row + 1}: {shown} {why}", path=self.path, column=column)

    def _kind(self, raw: pl.Series, wanted: str) -> DataError:
        message = f"has type {raw.dtype}, which is not {wanted}"
        return DataError(message, path=self.path, column=raw.name)
