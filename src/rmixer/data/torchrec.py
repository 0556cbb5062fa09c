"""Criteo's logs as TorchRec and MLPerf's DLRM keep them: arrays of days.

    data:
      format: torchrec
      path: criteo_1tb         # the folder with day_0_dense.npy, day_0_sparse.npy, ..
      table_rows: 1000000      # or a list, one per sparse column: ids are taken modulo

``day_N_dense.npy`` float32 [rows, 13], ``day_N_sparse.npy`` int32 [rows, 26], ``day_N_labels.npy``
int32 [rows, 1], as ``BinaryCriteoUtils`` of torchrec.datasets.criteo writes them; the days follow
one another by their numbers. ``day_N_sparse_multi_hot.npz`` in place of the sparse array has an
array [rows, k] per column, ``"0"`` to ``"25"``: k ids a row, as in DLRM v2.

With ``table_rows`` an id is taken modulo the rows of its table, as TorchRec does with ``hashes``;
the sizes of the tables are then known from the headers. Without, each column gets a vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data import arrays
from rmixer.data.checks import Problem, as_list, check_int, check_path
from rmixer.data.format import Chunk
from rmixer.data.frames import Columns
from rmixer.data.ready import known_info
from rmixer.data.schema import DataSpec, Schema, SequenceColumn
from rmixer.data.table import frame_of
from rmixer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.detect import Sample
    from rmixer.data.info import DataInfo

CHUNK_ROWS = 1 << 16
DENSE, SPARSE = 13, 26
_LABELS = re.compile(r"(?:day_(\d+)_)?labels\.npy")
_MULTI_HOT = "sparse_multi_hot.npz"


class TorchRec:
    """The format ``torchrec``."""

    options: tuple[str, ...] = ("path", "table_rows", "dense", "sparse", "multi_hot")
    default_dense = "none"  # TorchRec has taken the logarithm
    takes_folder = True

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.hot: int = spec.options.get("multi_hot", 0)
        self.schema = self._schema()
        path = spec.options.get("path")
        self.days = () if path is None else days(Path(path))
        self.sources: tuple[Path, ...] = tuple(
            file for day in self.days for file in self._files(day)
        )

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        dense = [name for name in sample.names if re.fullmatch(r"(day_\d+_)?dense\.npy", name)]
        if not dense:
            return None
        day = dense[0].removesuffix("dense.npy")
        settled: dict[str, int] = {}
        for what, usual in (("dense", DENSE), ("sparse", SPARSE)):
            if f"{day}{what}.npy" in sample.names:
                shape = arrays.read_header(sample.path / f"{day}{what}.npy").shape
                if len(shape) == 2 and shape[1] != usual:  # noqa: PLR2004
                    settled[what] = shape[1]
        if f"{day}sparse.npy" not in sample.names and f"{day}{_MULTI_HOT}" in sample.names:
            with arrays.Archive(sample.path / f"{day}{_MULTI_HOT}") as archive:
                settled["multi_hot"] = max(archive.header(n).shape[1] for n in archive.names)
        return settled

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = check_path(data)
        for key in ("dense", "sparse", "multi_hot"):
            problems += check_int(data, key, 1)
        sparse = data.get("sparse", SPARSE)
        rows = as_list(data.get("table_rows", 1))
        for value in rows:
            problems += check_int({"table_rows": value}, "table_rows", 1)
        if not problems and len(rows) not in (1, sparse):
            message = f"{len(rows)} sizes; one for all, or {sparse}, one per sparse column"
            problems.append(("table_rows", message))
        return problems

    def chunks(self) -> Iterator[Chunk]:
        """All rows, day by day."""
        for day in self.days:
            yield from self._day(day, label_needed=True)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another folder, or of a frame with label, I1.., C1..; the label may lack."""
        if isinstance(source, str | Path):
            for day in days(Path(source), label_needed=False):
                yield from self._day(day, label_needed=False)
            return
        frame = frame_of(source)
        labelled = self.schema.label in frame.columns
        columns = Columns(schema=self.schema, path="frame", labelled=labelled)
        columns.check(frame.columns)
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        hashed = [pl.col(n).cast(pl.Int64) % rows for n, rows in self.schema.table_rows.items()]
        yield columns.chunk(frame.with_columns([] if self.hot else hashed))

    def header_info(self) -> DataInfo | None:
        """Names and sizes, from the headers alone."""
        rows = sum(self._rows(day) for day in self.days)
        return known_info(self.schema, self.spec, rows)

    def _schema(self) -> Schema:
        names = tuple(f"C{i + 1}" for i in range(self.spec.options.get("sparse", SPARSE)))
        dense = tuple(f"I{i + 1}" for i in range(self.spec.options.get("dense", DENSE)))
        rows = as_list(self.spec.options.get("table_rows", []))
        sizes = dict(zip(names, rows * len(names) if len(rows) == 1 else rows, strict=False))
        hot = tuple(SequenceColumn(name=name, max_length=self.hot) for name in names)
        return Schema(
            label="label",
            dense=dense,
            sparse=() if self.hot else names,
            sequences=hot if self.hot else (),
            table_rows=sizes,
        )

    def _files(self, day: str) -> tuple[Path, Path, Path]:
        """Dense, sparse and labels of a day."""
        sparse = _MULTI_HOT if self.hot else "sparse.npy"
        return Path(f"{day}dense.npy"), Path(f"{day}{sparse}"), Path(f"{day}labels.npy")

    def _rows(self, day: str) -> int:
        """How many rows a day has, after its headers were held against each other."""
        dense, sparse, labels = self._files(day)
        width = {"dense": len(self.schema.dense), "sparse": len(self.schema.sparse)}
        found = {dense.name: _header(dense, "dense", width["dense"])}
        if self.hot:
            with arrays.Archive(sparse) as archive:
                for i in range(len(self.schema.sequences)):
                    found[f"{sparse.name}[{i}]"] = archive.header(str(i)).shape
        else:
            found[sparse.name] = _header(sparse, "sparse", width["sparse"])
        if labels.exists():
            found[labels.name] = _header(labels, "labels", 1)
        return arrays.same_rows(found, dense.parent)

    def _day(self, day: str, *, label_needed: bool) -> Iterator[Chunk]:
        import polars as pl  # noqa: PLC0415

        rows = self._rows(day)
        dense, sparse, labels = self._files(day)
        labelled = label_needed or labels.exists()
        numbers = arrays.mapped(dense)
        marks = arrays.mapped(labels).reshape(-1) if labelled else None
        start = 0
        for lists in self._ids(sparse, rows):
            stop = start + len(next(iter(lists.values()))) if lists else rows
            frame: dict[str, Any] = dict(zip(self.schema.dense, numbers[start:stop].T, strict=True))
            if marks is not None:
                frame["label"] = np.array(marks[start:stop])
            frame = {name: np.ascontiguousarray(values) for name, values in frame.items()}
            columns = Columns(schema=self.schema, path=dense.parent, labelled=labelled)
            yield columns.chunk(pl.DataFrame(frame | lists), start)
            start = stop

    def _ids(self, path: Path, rows: int) -> Iterator[dict[str, NDArray[Any]]]:
        """The ids of some rows, by column."""
        names = [s.name for s in self.schema.sequences] or list(self.schema.sparse)
        sizes = self.schema.table_rows
        if self.hot:
            with arrays.Archive(path) as archive:
                for block in archive.blocks([str(i) for i in range(len(names))], CHUNK_ROWS):
                    yield {n: _modulo(block[str(i)], sizes.get(n)) for i, n in enumerate(names)}
            return
        ids = arrays.mapped(path)
        for start in range(0, rows, CHUNK_ROWS):
            block_ = np.ascontiguousarray(ids[start : start + CHUNK_ROWS].T)
            yield {n: _modulo(block_[i], sizes.get(n)) for i, n in enumerate(names)}


def days(path: Path, *, label_needed: bool = True) -> tuple[str, ...]:
    """What the files of each day begin with, folder included, by the numbers of the days.

    Raises:
        DataError: the folder has none.
    """
    ending = "labels.npy" if label_needed else "dense.npy"
    try:
        found = [p for p in path.iterdir() if re.fullmatch(rf"(day_\d+_)?{ending}", p.name)]
    except FileNotFoundError as error:
        raise DataError("no such folder", path=path) from error
    except NotADirectoryError as error:
        message = "is a file; name the folder with day_0_dense.npy, day_0_sparse.npy, .."
        raise DataError(message, path=path) from error
    if not found:
        raise DataError(f"the folder has no file day_0_{ending}", path=path)
    found.sort(key=lambda p: int(re.sub(r"\D", "", p.name) or 0))
    return tuple(str(p).removesuffix(ending) for p in found)


def _header(path: Path, what: str, width: int) -> tuple[int, ...]:
    """The shape of an array of that many columns.

    Raises:
        DataError: it has others, or no numbers.
    """
    header = arrays.read_header(path)
    columns = header.shape[1] if len(header.shape) > 1 else 1
    if len(header.shape) > 2 or columns != width:  # noqa: PLR2004
        message = f"has shape {header.shape}; it must be (rows, {width})"
        hint = f", or write `{what}: {columns}`" if len(header.shape) == 2 and width > 1 else ""  # noqa: PLR2004
        raise DataError(message + hint, path=path)
    kinds = "iu" if what == "sparse" else "iuf"
    if header.dtype.kind not in kinds:
        wanted = "whole numbers" if what == "sparse" else "numbers"
        raise DataError(f"has type {header.dtype}; {wanted} are needed", path=path)
    return header.shape


def _modulo(ids: NDArray[Any], rows: int | None) -> NDArray[Any]:
    return ids if rows is None else (ids.astype(np.int64) % rows).astype(np.int32)
