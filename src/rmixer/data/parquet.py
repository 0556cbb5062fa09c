"""Parquet: one file or a folder of parts, with a declared schema as for ``csv``.

    data:
      format: parquet
      path: clicks.parquet         # or a folder: its *.parquet, in the order of their names
      schema: {label: click, dense: [price], sparse: [user, item], sequence: {history: {}}}

Integer columns stay integers. A sequence is a list column, or text with a separator. Columns that
the schema does not name are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data.checks import Problem, check_path, check_schema
from rmixer.data.format import Chunk
from rmixer.data.frames import Columns
from rmixer.data.schema import DataSpec, Schema, parse_schema
from rmixer.data.table import frame_of
from rmixer.errors import DataError

if TYPE_CHECKING:
    import polars as pl

    from rmixer.data.detect import Sample

MAGIC = b"PAR1"
#: Rows of a chunk.
CHUNK_ROWS = 1 << 17


class Parquet:
    """The format ``parquet``."""

    options: tuple[str, ...] = ("path", "schema")
    default_dense = "standard"
    takes_folder = True

    def __init__(self, spec: DataSpec) -> None:
        self.schema = parse_schema(spec.options["schema"])
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else parts(Path(path), ".parquet")

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        parts_there = any(name.endswith(".parquet") for name in sample.names)
        return {} if sample.head.startswith(MAGIC) or parts_there else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = check_path(data) + check_schema(data.get("schema"))
        if not problems:
            problems = [
                (f"schema.{key}", "is for text; a parquet file has it of its own")
                for key in ("columns", "delimiter")
                if data["schema"].get(key) is not None
            ]
        return problems

    def chunks(self) -> Iterator[Chunk]:
        """All rows, file by file."""
        yield from read(self.sources, self.schema)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file or folder, or of a frame; the label may be absent."""
        if isinstance(source, str | Path):
            yield from read(parts(Path(source), ".parquet"), self.schema, label_needed=False)
        else:
            yield of_frame(source, self.schema)


def parts(path: Path, ending: str) -> tuple[Path, ...]:
    """A file itself; of a folder the files with that ending, ``part_2`` before ``part_10``.

    Raises:
        DataError: the folder has none.
    """
    if not path.is_dir():
        return (path,)
    found = sorted((p for p in path.iterdir() if p.name.endswith(ending)), key=_natural)
    if not found:
        raise DataError(f"the folder has no file *{ending}", path=path)
    return tuple(found)


def read(paths: tuple[Path, ...], schema: Schema, *, label_needed: bool = True) -> Iterator[Chunk]:
    """The rows of parquet files, one after the other.

    Raises:
        DataError: one cannot be read, lacks a column, has it in another type than the one before,
            or a value is not right.
    """
    import polars as pl  # noqa: PLC0415 - not needed where the cache is built

    types: dict[str, str] = {}
    for path in paths:
        found = header(path)
        labelled = label_needed or schema.label in found
        columns = Columns(schema=schema, path=path, labelled=labelled)
        columns.check(found)
        for name in columns.used:
            kind = _kind(found[name])
            if types.setdefault(name, kind) != kind:
                message = f"is {kind} here and {types[name]} in {paths[0].name}"
                raise DataError(message, path=path, column=name)
        first = 0
        try:
            frames = pl.scan_parquet(path).select(columns.used)
            for frame in frames.collect_batches(chunk_size=CHUNK_ROWS, maintain_order=True):
                if frame.height:
                    yield columns.chunk(frame_of(frame, schema.missing), first)
                first += frame.height
        except pl.exceptions.PolarsError as error:
            raise _damaged(path, error) from error
        if not first:
            raise DataError("the file has no rows; at least one is needed", path=path)


def of_frame(source: Any, schema: Schema) -> Chunk:
    """The chunk of a frame or a mapping of columns; the label may be absent."""
    frame = frame_of(source, schema.missing)
    columns = Columns(schema=schema, path="frame", labelled=schema.label in frame.columns)
    columns.check(frame.columns)
    return columns.chunk(frame)


def header(path: Path) -> dict[str, pl.DataType]:
    """Names and types of the columns; the rows are not read.

    Raises:
        DataError: it is no parquet file.
    """
    import polars as pl  # noqa: PLC0415

    _open(path)
    try:
        return dict(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(path, error) from error


def row_count(path: Path) -> int:
    """How many rows it has, from its metadata."""
    import polars as pl  # noqa: PLC0415

    _open(path)
    try:
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(path, error) from error


def _open(path: Path) -> None:
    """Whether it can be read and begins as parquet does."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise DataError("no such file", path=path) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error
    if magic != MAGIC:
        raise DataError("is no parquet file; one begins with PAR1", path=path)


def _damaged(path: Path, error: Exception) -> DataError:
    first, _, _ = str(error).partition("\n")
    return DataError(f"the parquet file is damaged or cut off: {first}", path=path)


def _kind(dtype: pl.DataType) -> str:
    """What a column's values become, whatever their width."""
    import polars as pl  # noqa: PLC0415

    if isinstance(dtype, pl.List | pl.Array):
        return f"a list of {_kind(dtype.inner)}"  # type: ignore[arg-type]
    if dtype.is_integer() or dtype == pl.Boolean:
        return "whole numbers"
    return "numbers" if dtype.is_numeric() else "text"


def _natural(path: Path) -> list[tuple[int, str]]:
    words = re.split(r"(\d+)", path.name)
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]
