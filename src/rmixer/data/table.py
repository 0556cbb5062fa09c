"""Delimited text and frames as chunks: a fast pass with polars, a slow one that finds the fault.

A block of lines is parsed at once. Only if something in it is not right is it read again line by
line, to say which line, which column, which value, and what would be right.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.format import Chunk
from rmixer.data.text import blocks
from rmixer.errors import DataError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.schema import Schema

_HEX_DIGITS = 8


class NotRightError(Exception):
    """Something in a block is not right; the slow pass will say what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How to read one delimited text file.

    Attributes:
        schema: the roles of the columns.
        columns: every column of the file, in order.
        delimiter: one character.
        skip_lines: lines of header.
        labelled: whether the label is among the columns.
        hexadecimal: whether sparse columns are hexadecimal numbers of up to 8 digits, else text.
        whole: whether dense columns must be whole numbers.
    """

    schema: Schema
    columns: tuple[str, ...]
    delimiter: str
    skip_lines: int = 0
    labelled: bool = True
    hexadecimal: bool = False
    whole: bool = False

    def chunks(self, path: Path) -> Iterator[Chunk]:
        """All rows of the file, some megabytes at a time.

        Raises:
            DataError: at the first fault, with path, line, column and value.
        """
        empty = True
        for block, line in blocks(path, skip_lines=self.skip_lines):
            empty = False
            yield self.parsed(block, path, line)
        if empty:
            raise self.is_empty(path)

    def parsed(self, block: bytes, path: Path, line: int) -> Chunk:
        """The rows of some lines, of which the first one has that number in the file.

        Raises:
            DataError: at the first fault.
        """
        try:
            return self.chunk(self._read(block))
        except NotRightError as error:
            self._diagnose(block, path, line)
            raise DataError(f"cannot be parsed: {error}", path=path, line=line) from error

    def is_empty(self, path: Path) -> DataError:
        """What is said of a file without rows."""
        what = "has only a header" if self.skip_lines else "is empty"
        return DataError(f"the file {what}; at least one row is needed", path=path)

    def chunk(self, frame: pl.DataFrame) -> Chunk:
        """The chunk of a frame with (at least) the columns that the schema names.

        Raises:
            NotRightError: a value is not right.
        """
        schema = self.schema
        dense = np.empty((frame.height, len(schema.dense)))
        for i, name in enumerate(schema.dense):
            dense[:, i] = self._dense(frame[name])
        return Chunk(
            label_B=self._label(frame[schema.label]) if self.labelled else None,
            dense_BN=dense,
            sparse=tuple(self._sparse(frame[name]) for name in schema.sparse),
            sequences=tuple(
                _sequence(frame[s.name], s.separator, s.max_length) for s in schema.sequences
            ),
        )

    def _read(self, block: bytes) -> pl.DataFrame:
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        rows, width = block.count(b"\n"), len(self.columns)
        if b'"' in block:
            return self._read_quoted(block)
        if block.count(self.delimiter.encode()) != rows * (width - 1):
            raise NotRightError("wrong number of columns")
        dense = set(self.schema.dense)
        try:
            frame = pl.read_csv(
                block,
                has_header=False,
                separator=self.delimiter,
                schema={c: pl.Float64 if c in dense else pl.String for c in self.columns},
                null_values=list(self.schema.missing) or None,
                quote_char=None,
            )
        except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            raise NotRightError(str(error)) from error
        if frame.height != rows:
            raise NotRightError(f"{frame.height} rows in {rows} lines")
        return frame

    def _read_quoted(self, block: bytes) -> pl.DataFrame:
        import polars as pl  # noqa: PLC0415

        try:
            rows = list(csv.reader(io.StringIO(block.decode()), delimiter=self.delimiter))
        except (UnicodeDecodeError, csv.Error) as error:
            raise NotRightError(str(error)) from error
        if any(len(row) != len(self.columns) for row in rows):
            raise NotRightError("wrong number of columns")
        missing = {"", *self.schema.missing}
        return pl.DataFrame(
            {
                name: pl.Series([None if v in missing else v for v in column], dtype=pl.String)
                for name, column in zip(self.columns, zip(*rows, strict=True), strict=True)
            }
        )

    def _dense(self, raw: pl.Series) -> NDArray[np.float64]:
        import polars as pl  # noqa: PLC0415

        numbers = raw.cast(pl.Float64, strict=False)
        values = numbers.to_numpy().astype(np.float64)
        if numbers.null_count() != raw.null_count() or np.isinf(values).any():
            raise NotRightError("a number")
        if self.whole and not (np.isnan(values) | (values == np.floor(values))).all():
            raise NotRightError("a whole number")
        return values

    def _sparse(self, raw: pl.Series) -> pl.Series:
        import polars as pl  # noqa: PLC0415

        if not self.hexadecimal:
            return raw.cast(pl.String)
        if raw.dtype.is_integer():
            return raw.cast(pl.Int64)
        ids = raw.str.to_integer(base=16, dtype=pl.Int64, strict=False)
        low, high = ids.min(), ids.max()
        if ids.null_count() != raw.null_count() or (
            isinstance(low, int) and isinstance(high, int) and not 0 <= low <= high < 1 << 32
        ):
            raise NotRightError("a hexadecimal id")
        return ids

    def _label(self, raw: pl.Series) -> NDArray[np.uint8]:
        import polars as pl  # noqa: PLC0415

        if raw.null_count():
            raise NotRightError("a label is missing")
        if self.schema.positive is not None:
            return raw.cast(pl.String).is_in(list(self.schema.positive)).to_numpy().astype(np.uint8)
        values = raw.cast(pl.Float64, strict=False).to_numpy()
        if not np.isin(values, (0.0, 1.0)).all():
            raise NotRightError("a label")
        return values.astype(np.uint8)

    def _diagnose(self, block: bytes, path: Path, first: int) -> None:
        """Raise for the first line of the block that is not right."""
        reader: Iterator[list[str]]
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            line = first + block.count(b"\n", 0, error.start)
            raise DataError(f"is not UTF-8 text: {error.reason}", path=path, line=line) from error
        quoted = csv.reader(io.StringIO(text), delimiter=self.delimiter)
        plain = (line.split(self.delimiter) for line in text.split("\n")[:-1])
        reader = quoted if '"' in text else plain
        for number, row in enumerate(reader, start=first):
            self._diagnose_row(row, path, number)

    def _diagnose_row(self, row: list[str], path: Path, line: int) -> None:
        if len(row) != len(self.columns):
            names = {"\t": "a tab", ",": "a comma", " ": "a space"}
            between = names.get(self.delimiter, repr(self.delimiter))
            found = f"{len(row)} columns; {len(self.columns)} are needed, {between} between them"
            raise DataError(found, path=path, line=line)
        values = dict(zip(self.columns, row, strict=True))
        for name, value in values.items():
            if message := self.fault(name, value):
                raise DataError(f"{value!r} {message}", path=path, line=line, column=name)

    def fault(self, name: str, value: str) -> str | None:
        """What is not right about a value, or None."""
        schema = self.schema
        empty = value == "" or value in schema.missing
        if name == schema.label and self.labelled:
            if empty:
                return "is no label; every row needs one"
            if schema.positive is None and value not in ("0", "1", "0.0", "1.0"):
                return "is no label; it must be 0 or 1 (or name the positive value in the schema)"
        if empty:
            return None
        if name in schema.dense:
            return _number_fault(value, whole=self.whole)
        if name in schema.sparse and self.hexadecimal and not _is_hex(value):
            return f"is no id; it must be a hexadecimal number of at most {_HEX_DIGITS} digits"
        return None


def frame_of(source: Any, missing: Iterable[str] = ()) -> pl.DataFrame:
    """A polars frame of a polars or pandas frame, or of a mapping of columns.

    Text that is empty or one of ``missing`` becomes null, as it does in a file.
    """
    import polars as pl  # noqa: PLC0415

    if isinstance(source, pl.DataFrame):
        frame = source
    elif isinstance(source, Mapping):
        frame = pl.DataFrame(dict(source), strict=False)
    elif hasattr(source, "columns"):
        frame = pl.DataFrame({name: list(source[name]) for name in source.columns}, strict=False)
    else:
        raise TypeError(f"{type(source).__name__} is no frame, mapping of columns, or path")
    gone = ["", *missing]
    return frame.with_columns(
        pl.when(pl.col(pl.String).is_in(gone)).then(None).otherwise(pl.col(pl.String)).name.keep()
    )


def _sequence(
    raw: pl.Series, separator: str, max_length: int
) -> tuple[pl.Series, NDArray[np.int64]]:
    """All ids of the column one after the other, and the length of each row's list."""
    import polars as pl  # noqa: PLC0415

    lists = raw if raw.dtype == pl.List else raw.cast(pl.String).str.split(separator)
    lists = lists.cast(pl.List(pl.String)).fill_null([])
    lists = lists.list.eval(pl.element().filter(pl.element() != ""))
    lists = lists.list.tail(max_length)
    lengths = lists.list.len().to_numpy().astype(np.int64)
    return lists.explode(empty_as_null=False), lengths


def _number_fault(value: str, *, whole: bool) -> str | None:
    try:
        number = float(value)
    except ValueError:
        number = math.inf
    if math.isinf(number) or value != value.strip() or "_" in value:
        return "is no number" if not whole else "is no whole number"
    if whole and not math.isnan(number) and number != math.floor(number):
        return "is no whole number"
    return None


def _is_hex(value: str) -> bool:
    return 0 < len(value) <= _HEX_DIGITS and all(c in "0123456789abcdefABCDEF" for c in value)
