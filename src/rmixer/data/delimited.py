"""Any table of text with a declared schema: CSV, TSV, or fields between another character."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data.checks import Problem, check_path, check_schema
from rmixer.data.format import Chunk, WholeChunk
from rmixer.data.scanned import placed_chunks
from rmixer.data.schema import DataSpec, parse_schema
from rmixer.data.table import NotRightError, Table, frame_of
from rmixer.data.text import Place, first_line
from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    from rmixer.data.detect import Sample

_DELIMITERS = "\t,;|"


class Delimited:
    """The format ``csv``. Without declared columns the first line is a header."""

    options: tuple[str, ...] = ("path", "schema")
    default_dense = "standard"
    table_class: type[Table] = Table

    def __init__(self, spec: DataSpec) -> None:
        self.schema = parse_schema(spec.options["schema"])
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        for delimiter in _DELIMITERS:
            widths = {len(row) for row in csv.reader(sample.lines, delimiter=delimiter)}
            if len(widths) == 1 and widths != {1}:
                return {}
        return None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return check_path(data) + check_schema(data.get("schema"))

    def chunks(self) -> Iterator[Chunk]:
        """All rows of the file."""
        (path,) = self.sources
        yield from self._table(path, label_needed=True).chunks(path)

    def placed_chunks(self, start: Place | None) -> Iterator[tuple[Chunk | WholeChunk, Place]]:
        """See `rmixer.data.format.Format`."""
        (path,) = self.sources
        yield from placed_chunks(self._table(path, label_needed=True), path, start)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file or of a frame; the label may be absent."""
        if isinstance(source, str | Path):
            yield from self._table(Path(source), label_needed=False).chunks(Path(source))
            return
        frame = frame_of(source, self.schema.missing)
        labelled = self.schema.label in frame.columns
        columns = tuple(frame.columns)
        self._check_columns(columns, Path("frame"), label_needed=False)
        table = self.table_class(
            schema=self.schema, columns=columns, delimiter=",", labelled=labelled
        )
        try:
            yield table.chunk(frame)
        except NotRightError as error:
            raise DataError(f"a value of the frame is not right: {error}", path="frame") from error

    def _table(self, path: Path, *, label_needed: bool) -> Table:
        line = first_line(path)
        delimiter = self.schema.delimiter or max(_DELIMITERS, key=line.count)
        columns, skip_lines = self.schema.columns, 0
        if columns is None:
            columns = tuple(name.strip().strip('"') for name in line.split(delimiter))
            skip_lines = 1
            self._check_columns(columns, path, label_needed=label_needed)
        return self.table_class(
            schema=self.schema,
            columns=columns,
            delimiter=delimiter,
            skip_lines=skip_lines,
            labelled=self.schema.label in columns,
        )

    def _needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        return self.schema.used

    def _check_columns(self, columns: tuple[str, ...], path: Path, *, label_needed: bool) -> None:
        needed = self._needed()
        for name in needed if label_needed else [n for n in needed if n != self.schema.label]:
            if name not in columns:
                raise DataError(unknown_name("column", name, columns), path=path, line=1)
        if len(set(columns)) != len(columns):
            twice = sorted({name for name in columns if columns.count(name) > 1})
            raise DataError(f"the header has twice: {', '.join(twice)}", path=path, line=1)
