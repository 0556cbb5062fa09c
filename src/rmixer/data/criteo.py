"""Criteo's display-advertising logs: a label, 13 whole numbers, 26 hexadecimal ids.

Tab-separated without a header (as Criteo gives it), or comma-separated with the header
``label,I1..I13,C1..C26``; gzip of either; found by content. Empty is missing. Criteo's test files
have no label: they can be predicted, not trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data.checks import Problem, check_path
from rmixer.data.format import Chunk, WholeChunk
from rmixer.data.scanned import placed_chunks
from rmixer.data.schema import DataSpec, Schema
from rmixer.data.table import Table, frame_of
from rmixer.data.text import Place, first_line
from rmixer.errors import DataError

if TYPE_CHECKING:
    from rmixer.data.detect import Sample

DENSE = tuple(f"I{i}" for i in range(1, 14))
SPARSE = tuple(f"C{i}" for i in range(1, 27))
SCHEMA = Schema(label="label", dense=DENSE, sparse=SPARSE)


class Criteo:
    """The format ``criteo``."""

    options: tuple[str, ...] = ("path",)
    default_dense = "log1p"

    def __init__(self, spec: DataSpec) -> None:
        self.schema = SCHEMA
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        rows = sample.fields("\t" if sample.lines and "\t" in sample.lines[0] else ",")
        if rows and {"I1", "I13", "C1", "C26"} <= set(rows[0]):
            return {}
        width = len(SCHEMA.used)
        lines = all(len(row) in (width, width - 1) and _is_ids(row[-len(SPARSE) :]) for row in rows)
        return {} if rows and lines else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return check_path(data)

    def chunks(self) -> Iterator[Chunk]:
        """All rows of the file."""
        (path,) = self.sources
        yield from sniff(path, label_needed=True).chunks(path)

    def placed_chunks(self, start: Place | None) -> Iterator[tuple[Chunk | WholeChunk, Place]]:
        """See `rmixer.data.format.Format`."""
        (path,) = self.sources
        yield from placed_chunks(sniff(path, label_needed=True), path, start)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file or of a frame; the label may be absent."""
        if isinstance(source, str | Path):
            yield from sniff(Path(source), label_needed=False).chunks(Path(source))
            return
        frame = frame_of(source)
        labelled = SCHEMA.label in frame.columns
        columns = SCHEMA.used if labelled else SCHEMA.used[1:]
        missing = [name for name in columns if name not in frame.columns]
        if missing:
            raise DataError(f"columns are missing: {', '.join(missing)}", path="frame")
        yield _table(columns, "\t", skip_lines=0).chunk(frame)


def sniff(path: Path, *, label_needed: bool) -> Table:
    """Delimiter, header and label from the first line.

    Raises:
        DataError: it is neither of the forms.
    """
    line = first_line(path)
    delimiter = "\t" if "\t" in line else ","
    names = tuple(name.strip().strip('"') for name in line.split(delimiter))
    if "C1" in names or "label" in names:
        return _with_header(path, names, delimiter)
    labelled = label_needed or len(names) != len(SCHEMA.used) - 1
    columns = SCHEMA.used if labelled else SCHEMA.used[1:]
    if delimiter not in line:
        message = f"1 column; {len(columns)} are needed, a tab between them"
        raise DataError(message, path=path, line=1)
    return _table(columns, delimiter, skip_lines=0)


def _with_header(path: Path, names: tuple[str, ...], delimiter: str) -> Table:
    needed = set(SCHEMA.used)
    missing = [name for name in SCHEMA.used[1:] if name not in names]
    extra = [name for name in names if name not in needed]
    if missing or extra:
        what = f"lacks {', '.join(missing)}" if missing else f"has unknown {', '.join(extra)}"
        raise DataError(
            f"the header {what}; it must be label,I1,..,I13,C1,..,C26", path=path, line=1
        )
    return _table(names, delimiter, skip_lines=1)


def _is_ids(words: list[str]) -> bool:
    """Whether they are hexadecimal numbers of 8 digits, as Criteo writes them, or missing."""
    return all(len(word) in (0, 8) and not word.strip("0123456789abcdefABCDEF") for word in words)


def _table(columns: tuple[str, ...], delimiter: str, *, skip_lines: int) -> Table:
    return Table(
        schema=SCHEMA,
        columns=columns,
        delimiter=delimiter,
        skip_lines=skip_lines,
        labelled=SCHEMA.label in columns,
        hexadecimal=True,
        whole=True,
    )
