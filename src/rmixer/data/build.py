"""Builds the files of a data set, in memory that does not grow with the number of rows.

Pass 1 reads the source once and writes parts: raw numbers, and provisional codes
(`rmixer.data.vocabulary.Coder`). What a killed builder has read is taken over from its parts.
Pass 2 counts the codes of the training rows; pass 3 turns codes into local ids and raw numbers
into transformed ones.

    rows.i4           [rows, 1 + dense + fields]  the label and the numbers (the bits of float32),
                                                  the local ids: a row of a batch is one place
    NAME.values.i4    [ids]                       sequence K: all ids one after the other
    NAME.offsets.i8   [rows + 1]                  where each row's ids begin
    train.i4 valid.i4                             row numbers of the two parts, ascending (i8 if
                                                  there are more than 2**31 rows)
    vocabulary.npz
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.columns import ColumnWriter
from rmixer.data.compiled import kernels
from rmixer.data.encode import Encoder, Tables
from rmixer.data.format import WholeChunk
from rmixer.data.ids import IdCoder
from rmixer.data.parts import Part, Parts
from rmixer.data.ready import ReadyCoder, ReadyVocabulary, ready_rows
from rmixer.data.split import held_out
from rmixer.data.text import Place
from rmixer.data.transforms import SAMPLE_ROWS, DenseTransform, numbers_of
from rmixer.data.vocabulary import Coder, Vocabulary
from rmixer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.format import Chunk, Format
    from rmixer.data.info import DataInfo
    from rmixer.data.schema import DataSpec

#: Rows that are put together at once: they stay in a core's cache.
GROUP_ROWS = 1 << 12
PARTS = "parts"
_WHOLE = "dense.whole"

OnRows = Callable[[int], None]
Sums = dict[str, dict[str, int]]


def build(
    spec: DataSpec,
    source: Format,
    folder: Path,
    on_rows: OnRows,
    check: Callable[[], None] = lambda: None,
) -> tuple[DataInfo, Sums]:
    """Write all files of a data set.

    Args:
        spec: what to do with the rows.
        source: where they come from.
        folder: exists; it has nothing, or what a killed builder of the same data has left.
        on_rows: called with the rows read so far; may raise to stop.
        check: called now and then in the later passes; may raise to stop.

    Returns:
        The shape, and the sizes and checksums of files by their names (not of all).

    Raises:
        DataError: something in the source is not right.
        OSError: a file cannot be written.
    """
    return _Builder(spec, source, folder).run(on_rows, check)


class _Builder:
    def __init__(self, spec: DataSpec, source: Format, folder: Path) -> None:
        self.spec, self.source, self.folder = spec, source, folder
        schema = source.schema
        self.tables = Tables.of(schema)
        self.ready = ready_rows(schema, spec.transform)
        self.coders: list[Coder | IdCoder | ReadyCoder] = [
            ReadyCoder() if name in self.ready else Coder() for name in self.tables.names
        ]
        self.bins = len(schema.dense) if spec.transform.bins else 0
        self.rows = self.train_rows = 0
        self.sums: Sums = {}
        for path in folder.iterdir():
            if path.name != PARTS:
                path.unlink()
        self.parts = Parts(folder / PARTS, [_identity(path) for path in source.sources])

    def run(self, on_rows: OnRows, check: Callable[[], None]) -> tuple[DataInfo, Sums]:
        self._read(on_rows)
        counts = self._count(check)
        transform = self.spec.transform
        pairs = [self._vocabulary(i, count) for i, count in enumerate(counts)]
        dense = DenseTransform.fit(transform, self._sample())
        encoder = Encoder(self.source.schema, tuple(pair[0] for pair in pairs), dense)
        self._finish([pair[1] for pair in pairs], dense, check)
        encoder.save(self.folder)
        shutil.rmtree(self.folder / PARTS)
        return encoder.info(self.rows, self.train_rows), self.sums

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

    # --- pass 1 ---------------------------------------------------------------------------------

    def _read(self, on_rows: OnRows) -> None:
        """The source, once, into parts."""
        place = self._take_over(on_rows)
        for chunk, after in self._chunks(place):
            if isinstance(chunk, WholeChunk):
                arrays = self._encode_whole(chunk)
            else:
                arrays = self._encode(chunk)
            self._add_news(arrays)
            at = None if after is None else (after.offset, after.line)
            self.parts.add({"rows": len(chunk), "after": at}, arrays)
            self.rows += len(chunk)
            on_rows(self.rows)

    def _chunks(self, place: Place | None) -> Iterator[tuple[Chunk | WholeChunk, Place | None]]:
        """The chunks that are not in parts yet, and where the next one begins, if that is known."""
        if _is_placed(type(self.source)):
            yield from self.source.placed_chunks(place)  # type: ignore[attr-defined]
            return
        before = self.rows
        for chunk in self.source.chunks():
            if before <= 0:
                yield chunk, None
            before -= len(chunk)

    def _take_over(self, on_rows: OnRows) -> Place | None:
        """Learn what a killed builder has read; where to go on."""
        news: list[list[Mapping[str, NDArray[Any]]]] = [[] for _ in self.coders]
        place = None
        for part in self.parts.found():
            self.rows += part.about["rows"]
            after = part.about["after"]
            place = None if after is None else Place(*after)
            for table in range(len(self.coders)):
                prefix = f"new.{table}."
                named = {
                    name.removeprefix(prefix): array
                    for name, array in part.arrays.items()
                    if name.startswith(prefix)
                }
                news[table].append(named)
            on_rows(self.rows)
        for coder, told in zip(self.coders, news, strict=True):
            if isinstance(coder, ReadyCoder) or not told:
                continue
            if "integers" in told[0]:
                coder.learn({"integers": np.concatenate([one["integers"] for one in told])})
            else:
                for one in told:
                    coder.learn(one)
        return place

    def _encode(self, chunk: Chunk) -> dict[str, NDArray[Any]]:
        assert chunk.label_B is not None, "a format yields labels when it is trained on"
        arrays: dict[str, NDArray[Any]] = {"label": chunk.label_B}
        arrays["dense"] = np.asarray(chunk.dense_BN, np.float64)
        for i, values in enumerate(chunk.sparse):
            coder = self.coders[i]
            arrays[f"sparse.{i}"] = _narrow(coder.encode(values), len(coder))
        for k, (values, lengths) in enumerate(chunk.sequences):
            coder = self.coders[self.tables.sequences[k]]
            arrays[f"values.{k}"] = _narrow(coder.encode(values), len(coder))
            arrays[f"lengths.{k}"] = np.asarray(lengths, np.int64)
        return arrays

    def _encode_whole(self, chunk: WholeChunk) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {"label": chunk.label_B, _WHOLE: chunk.dense_NB}
        for i, id_B in enumerate(chunk.id_FB):
            coder = self.coders[i]
            if isinstance(coder, Coder):
                compiled = kernels()
                assert compiled is not None, "it has just been used to read the rows"
                self.coders[i] = coder = IdCoder(compiled, coder)
            assert isinstance(coder, IdCoder)
            arrays[f"sparse.{i}"] = _narrow(coder.encode_ids(id_B), len(coder))
        return arrays

    def _add_news(self, arrays: dict[str, NDArray[Any]]) -> None:
        for table, coder in enumerate(self.coders):
            if not isinstance(coder, ReadyCoder):
                for name, array in coder.news().items():
                    arrays[f"new.{table}.{name}"] = array

    # --- pass 2 ---------------------------------------------------------------------------------

    def _placed_parts(self) -> Iterator[tuple[int, Part, NDArray[np.bool_]]]:
        """Each part with the number of its first row, and which of its rows are trained on."""
        start = 0
        together: int = getattr(self.source, "together", 1)
        for part in self.parts:
            stop = start + part.about["rows"]
            yield start, part, ~held_out(self.spec.valid, start, stop, self.rows, together)
            start = stop

    def _count(self, check: Callable[[], None]) -> list[NDArray[np.int64]]:
        """How often the training rows have each provisional code."""
        counts = [np.zeros(len(coder), np.int64) for coder in self.coders]
        counted = [not isinstance(coder, ReadyCoder) for coder in self.coders]
        for _, part, kept in self._placed_parts():
            check()
            self.train_rows += int(np.count_nonzero(kept))
            for i in range(len(self.source.schema.sparse)):
                if counted[i]:
                    _add_counts(self.coders[i], part.arrays[f"sparse.{i}"], kept, counts[i])
            for k, table in enumerate(self.tables.sequences):
                if counted[table]:
                    each = np.repeat(kept, part.arrays[f"lengths.{k}"])
                    codes = part.arrays[f"values.{k}"]
                    _add_counts(self.coders[table], codes, each, counts[table])
        if not self.train_rows:
            message = f"all {self.rows} rows are held out; give it more rows or a smaller fraction"
            raise DataError(message, path=(*self.source.sources, Path("data"))[0])
        return counts

    def _sample(self) -> NDArray[np.float64]:
        """Raw numbers of training rows, evenly spread."""
        step = -(-self.train_rows // SAMPLE_ROWS)
        if not DenseTransform.is_fitted(self.spec.transform):
            return np.empty((0, len(self.source.schema.dense)))
        samples, before = [], 0
        for _, part, kept in self._placed_parts():
            chosen = np.nonzero(kept)[0][-before % step :: step]
            before += int(np.count_nonzero(kept))
            samples.append(_raw_numbers(part, chosen))
        return np.concatenate(samples)

    # --- pass 3 ---------------------------------------------------------------------------------

    def _finish(
        self,
        local: list[NDArray[np.int32] | None],
        dense: DenseTransform,
        check: Callable[[], None],
    ) -> None:
        """Local ids in place of codes, transformed numbers, bins, and the two parts of the rows."""
        lists = [s.name for s in self.source.schema.sequences]
        kind = np.dtype(np.int32 if self.rows < 1 << 31 else np.int64)
        train, valid = (f"{name}.{kind.str[1:]}" for name in ("train", "valid"))
        names = ["rows.i4", train, valid]
        names += [f"{name}.{what}" for name in lists for what in ("values.i4", "offsets.i8")]
        ends = [0] * len(lists)
        with ExitStack() as stack:
            files = {n: stack.enter_context(ColumnWriter(self.folder, n)) for n in names}
            for name in lists:
                files[f"{name}.offsets.i8"].write(np.zeros(1, np.int64))
            for start, part, kept in self._placed_parts():
                check()
                for rows in self._records(part, local, dense):
                    files["rows.i4"].write(rows)
                files[train].write((np.nonzero(kept)[0] + start).astype(kind))
                files[valid].write((np.nonzero(~kept)[0] + start).astype(kind))
                for k, name in enumerate(lists):
                    known = local[self.tables.sequences[k]]
                    codes = part.arrays[f"values.{k}"]
                    files[f"{name}.values.i4"].write(_local_ids(codes, known))
                    offsets = ends[k] + np.cumsum(part.arrays[f"lengths.{k}"])
                    files[f"{name}.offsets.i8"].write(offsets)
                    ends[k] += len(codes)
        for file in files.values():
            self.sums[file.name] = {"bytes": file.bytes, "crc32": file.crc32}

    def _records(
        self, part: Part, local: list[NDArray[np.int32] | None], dense: DenseTransform
    ) -> Iterator[NDArray[np.int32]]:
        """The rows of a part as they are kept, some at a time."""
        numbers, fields = len(self.source.schema.dense), len(self.source.schema.sparse)
        width = 1 + numbers + fields + self.bins
        label, arrays = part.arrays["label"], part.arrays
        for start in range(0, len(label), GROUP_ROWS):
            span = slice(start, start + GROUP_ROWS)
            rows = np.empty((len(label[span]), width), np.int32)
            as_floats = rows.view(np.float32)
            as_floats[:, 0] = label[span]
            if _WHOLE in arrays:
                as_floats[:, 1 : 1 + numbers] = dense.apply_whole(arrays[_WHOLE][:, span]).T
            else:
                as_floats[:, 1 : 1 + numbers] = dense.apply(arrays["dense"][span])
            for i in range(fields):
                _put(
                    self.coders[i], arrays[f"sparse.{i}"][span], local[i], rows[:, 1 + numbers + i]
                )
            if self.bins:
                rows[:, width - self.bins :] = dense.bins(_raw_numbers(part, span))
            yield rows


def _identity(path: Path) -> list[int | str]:
    """What changes if a file's content does, as far as the file system tells."""
    stat = path.stat()
    return [str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _is_placed(format_class: type[Any]) -> bool:
    """Whether it has ``placed_chunks``, and no ``chunks`` in a class that is nearer."""
    for one in format_class.__mro__:
        if "placed_chunks" in vars(one):
            return True
        if "chunks" in vars(one):
            return False
    return False


def _narrow(codes: NDArray[np.int32], size: int) -> NDArray[Any]:
    """Codes below a size in as few bytes as they need."""
    if size <= 1 << 8:
        return codes.astype(np.uint8)
    return codes.astype(np.uint16) if size <= 1 << 16 else codes


def _raw_numbers(part: Part, rows: slice | NDArray[np.int64]) -> NDArray[np.float64]:
    """Some rows of a part's raw numbers, ``[B, N]``."""
    if _WHOLE in part.arrays:
        return numbers_of(part.arrays[_WHOLE][:, rows])
    return np.asarray(part.arrays["dense"][rows], np.float64)


def _add_counts(
    coder: object, codes: NDArray[Any], kept: NDArray[np.bool_], counts: NDArray[np.int64]
) -> None:
    compiled = kernels() if isinstance(coder, IdCoder) else None
    if compiled is not None:
        compiled.count(codes, kept, counts)
    else:
        counts += np.bincount(codes[kept], minlength=len(counts))


def _put(
    coder: object,
    codes: NDArray[Any],
    local: NDArray[np.int32] | None,
    column: NDArray[np.int32],
) -> None:
    """Write the local id of each code into a column of the rows."""
    compiled = kernels() if isinstance(coder, IdCoder) else None
    if compiled is not None:
        compiled.put(codes, local, column)
    else:
        column[:] = _local_ids(codes, local)


def _local_ids(codes: NDArray[Any], local: NDArray[np.int32] | None) -> NDArray[np.int32]:
    return codes.astype(np.int32) if local is None else local[codes]
