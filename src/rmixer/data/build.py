"""Builds the columnar files of a data set, in memory that does not grow with the number of rows.

Pass 1 reads the source once and writes provisional codes (see `rmixer.data.vocabulary.Coder`).
Pass 2 counts the codes of the training rows; pass 3 turns codes into local ids and raw numbers into
transformed ones, some rows at a time.

    label.u1          [rows]             0 or 1
    dense.f4          [rows, dense]      float32
    sparse.i4         [rows, fields]     local ids, int32
    NAME.values.i4    [ids]              sequence K: all ids one after the other
    NAME.offsets.i8   [rows + 1]         where each row's ids begin
    train.i8 valid.i8                    row numbers of the two parts, ascending
    vocabulary.npz
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rmixer.data.encode import Encoder, Tables
from rmixer.data.ready import ReadyCoder, ReadyVocabulary, ready_rows
from rmixer.data.split import held_out
from rmixer.data.transforms import SAMPLE_ROWS, DenseTransform
from rmixer.data.vocabulary import Coder, Vocabulary
from rmixer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.format import Chunk, Format
    from rmixer.data.info import DataInfo
    from rmixer.data.schema import DataSpec

#: Rows that the later passes handle at once.
PASS_ROWS = 1 << 17

OnRows = Callable[[int], None]


def build(spec: DataSpec, source: Format, folder: Path, on_rows: OnRows) -> DataInfo:
    """Write all files of a data set into an empty folder.

    Args:
        spec: what to do with the rows.
        source: where they come from.
        folder: exists and is empty.
        on_rows: called with the rows read so far; may raise to stop.

    Raises:
        DataError: something in the source is not right.
        OSError: a file cannot be written.
    """
    return _Builder(spec, source, folder).run(on_rows)


class _Builder:
    def __init__(self, spec: DataSpec, source: Format, folder: Path) -> None:
        self.spec, self.source, self.folder = spec, source, folder
        schema = source.schema
        self.tables = Tables.of(schema)
        self.ready = ready_rows(schema, spec.transform)
        self.coders: list[Coder | ReadyCoder] = [
            ReadyCoder() if name in self.ready else Coder() for name in self.tables.names
        ]
        self.bins = len(schema.dense) if spec.transform.bins else 0
        self.width = len(schema.sparse) + self.bins
        self.rows = 0

    def run(self, on_rows: OnRows) -> DataInfo:
        self._read(on_rows)
        train = self._write_split()
        counts = self._count()
        transform = self.spec.transform
        pairs = [self._vocabulary(i, count) for i, count in enumerate(counts)]
        dense = DenseTransform.fit(transform, self._sample(train))
        encoder = Encoder(self.source.schema, tuple(pair[0] for pair in pairs), dense)
        self._finish([pair[1] for pair in pairs], dense)
        encoder.save(self.folder)
        (self.folder / "dense.f8").unlink()
        return encoder.info(self.rows, len(train))

    def _vocabulary(
        self, table: int, counts: NDArray[np.int64]
    ) -> tuple[Vocabulary, NDArray[np.int32] | None]:
        """What a table's ids become, and the local id of each code; None: the code itself."""
        coder = self.coders[table]
        if isinstance(coder, ReadyCoder):
            return ReadyVocabulary(self.ready[self.tables.names[table]]), None
        transform = self.spec.transform
        return Vocabulary.build(
            coder, counts, min_count=transform.min_count, max_ids=transform.max_ids
        )

    def _read(self, on_rows: OnRows) -> None:
        """Pass 1: the source, once, into provisional columns."""
        names = ["label.u1", "dense.f8", "sparse.i4"]
        names += [f"{s.name}.values.i4" for s in self.source.schema.sequences]
        names += [f"{s.name}.offsets.i8" for s in self.source.schema.sequences]
        with ExitStack() as stack:
            files = {n: stack.enter_context(file_path(self.folder, n).open("wb")) for n in names}
            ends = [0] * len(self.source.schema.sequences)
            for s in self.source.schema.sequences:
                files[f"{s.name}.offsets.i8"].write(np.zeros(1, np.int64).tobytes())
            for chunk in self.source.chunks():
                self._write_chunk(chunk, files, ends)
                self.rows += len(chunk)
                on_rows(self.rows)

    def _write_chunk(self, chunk: Chunk, files: Mapping[str, IO[bytes]], ends: list[int]) -> None:
        assert chunk.label_B is not None, "a format yields labels when it is trained on"
        files["label.u1"].write(chunk.label_B.tobytes())
        files["dense.f8"].write(np.ascontiguousarray(chunk.dense_BN, np.float64).tobytes())
        codes = np.zeros((len(chunk), self.width), np.int32)
        for i, values in enumerate(chunk.sparse):
            codes[:, i] = self.coders[i].encode(values)
        files["sparse.i4"].write(codes.tobytes())
        for k, (values, lengths) in enumerate(chunk.sequences):
            name = self.source.schema.sequences[k].name
            coder = self.coders[self.tables.sequences[k]]
            files[f"{name}.values.i4"].write(coder.encode(values).tobytes())
            offsets = ends[k] + np.cumsum(lengths, dtype=np.int64)
            files[f"{name}.offsets.i8"].write(offsets.tobytes())
            ends[k] = int(offsets[-1]) if len(offsets) else ends[k]

    def _write_split(self) -> NDArray[np.int64]:
        """Write the row numbers of both parts; the training part is returned."""
        parts: dict[bool, list[NDArray[np.int64]]] = {False: [], True: []}
        for start, stop in spans(self.rows):
            out = self._held_out(start, stop)
            for side, rows in parts.items():
                rows.append(np.nonzero(out == side)[0] + start)
        train, valid = (np.concatenate(parts[side]) for side in (False, True))
        if not len(train):
            message = f"all {self.rows} rows are held out; give it more rows or a smaller fraction"
            raise DataError(message, path=(*self.source.sources, Path("data"))[0])
        train.tofile(file_path(self.folder, "train.i8"))
        valid.tofile(file_path(self.folder, "valid.i8"))
        return train

    def _held_out(self, start: int, stop: int) -> NDArray[np.bool_]:
        together: int = getattr(self.source, "together", 1)
        return held_out(self.spec.valid, start, stop, self.rows, together)

    def _count(self) -> list[NDArray[np.int64]]:
        """Pass 2: how often the training rows have each provisional code."""
        counts = [np.zeros(len(coder), np.int64) for coder in self.coders]
        sparse = open_column(self.folder, "sparse.i4", (self.rows, self.width))
        for start, stop in spans(self.rows):
            kept = ~self._held_out(start, stop)
            block = np.asarray(sparse[start:stop])[kept]
            for i in range(len(self.source.schema.sparse)):
                if isinstance(self.coders[i], ReadyCoder):
                    continue
                counts[i] += np.bincount(block[:, i], minlength=len(counts[i]))
            for k, table in enumerate(self.tables.sequences):
                if isinstance(self.coders[table], ReadyCoder):
                    continue
                codes = self._train_sequence(k, start, stop, kept)
                counts[table] += np.bincount(codes, minlength=len(counts[table]))
        return counts

    def _train_sequence(
        self, k: int, start: int, stop: int, kept: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        name = self.source.schema.sequences[k].name
        offsets = open_column(self.folder, f"{name}.offsets.i8", (self.rows + 1,))[start : stop + 1]
        values = open_column(self.folder, f"{name}.values.i4", (-1,))[offsets[0] : offsets[-1]]
        return np.asarray(values)[np.repeat(kept, np.diff(offsets))]

    def _sample(self, train: NDArray[np.int64]) -> NDArray[np.float64]:
        dense = self._raw_dense()
        step = -(-len(train) // SAMPLE_ROWS)
        return np.asarray(dense[train[::step]], np.float64)

    def _raw_dense(self) -> NDArray[np.float64]:
        shape = (self.rows, len(self.source.schema.dense))
        return open_column(self.folder, "dense.f8", shape)

    def _finish(self, local: list[NDArray[np.int32] | None], dense: DenseTransform) -> None:
        """Pass 3: local ids in place of codes, transformed numbers, and bins."""
        raw = self._raw_dense()
        first_bin = self.width - self.bins
        with (
            (self.folder / "dense.f4").open("wb") as out,
            _in_place(self.folder / "sparse.i4") as f,
        ):
            for start, stop in spans(self.rows):
                numbers = np.asarray(raw[start:stop])
                out.write(dense.apply(numbers).tobytes())
                at = start * self.width * 4
                f.seek(at)
                ids = np.frombuffer(f.read((stop - start) * self.width * 4), np.int32)
                ids = ids.reshape(stop - start, self.width).copy()
                for i in range(first_bin):
                    if (known := local[i]) is not None:
                        ids[:, i] = known[ids[:, i]]
                if self.bins:
                    ids[:, first_bin:] = dense.bins(numbers)
                f.seek(at)
                f.write(ids.tobytes())
        for k, table in enumerate(self.tables.sequences):
            name = self.source.schema.sequences[k].name
            if (known := local[table]) is not None:
                _recode(file_path(self.folder, f"{name}.values.i4"), known)


def _recode(path: Path, local: NDArray[np.int32]) -> None:
    with _in_place(path) as file:
        at = 0
        while raw := file.read(PASS_ROWS * 32):
            file.seek(at)
            file.write(local[np.frombuffer(raw, np.int32)].tobytes())
            at += len(raw)
            file.seek(at)


def _in_place(path: Path) -> IO[bytes]:
    return path.open("r+b")


def spans(rows: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of successive groups of rows."""
    for start in range(0, rows, PASS_ROWS):
        yield start, min(rows, start + PASS_ROWS)


def file_path(folder: Path, name: str) -> Path:
    """The file of a column; what a file name cannot hold is escaped."""
    safe = "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):x}" for c in name)
    return folder / safe


def open_column(folder: Path, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A column mapped read-only; the file's ending names its type."""
    path = file_path(folder, name)
    dtype = np.dtype(name.rpartition(".")[2])
    if not path.stat().st_size:
        return np.empty(tuple(max(0, n) for n in shape), dtype)
    return np.memmap(path, dtype, mode="r").reshape(shape)
