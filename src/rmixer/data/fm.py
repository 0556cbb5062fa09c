"""Criteo's logs as PaddleRec's factorization machines read them: 39 ids and 39 values a line.

Two forms, told apart by the first line, words between spaces:

    feat_idx:1 .. feat_idx:767167 feat_value:0.00017 .. feat_value:1.0 label:0
    0 1 2 .. 955606 2.0 0.0 .. 1.0         (as AutoInt reads it: the label, 39 ids, 39 values)

The first 13 fields are numbers, of which the value counts; the others are ids, numbered over all
fields. Id 0 is a missing value; so is a value 0 of one of the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.checks import Problem, check_path
from rmixer.data.criteo import DENSE, SCHEMA, SPARSE
from rmixer.data.format import Chunk
from rmixer.data.parquet import of_frame
from rmixer.data.text import blocks
from rmixer.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.detect import Sample
    from rmixer.data.schema import DataSpec

FIELDS = len(DENSE) + len(SPARSE)
_NAMES = (b"feat_idx:", b"feat_value:", b"label:")
_WORDS = ("feat_idx:",) * FIELDS + ("feat_value:",) * FIELDS + ("label:",)
_EXACT = float(1 << 53)  # ids above are not whole in float64
_FORM = f"{FIELDS} words feat_idx:, {FIELDS} feat_value: and label:"
_BARE = f"a label, {FIELDS} ids and {FIELDS} values"


class PaddleRecFM:
    """The format ``paddlerec_fm``."""

    options: tuple[str, ...] = ("path",)
    default_dense = "none"  # what stands there has been scaled

    def __init__(self, spec: DataSpec) -> None:
        self.schema = SCHEMA
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        block = "".join(f"{line}\n" for line in sample.lines).encode()
        named = block.startswith(_NAMES[0])
        return {} if block and _table(block, named=named) is not None else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return check_path(data)

    def chunks(self) -> Iterator[Chunk]:
        """All rows of the file."""
        yield from _chunks(self.sources[0])

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file, or of a frame with I1 to I13 and C1 to C26."""
        if isinstance(source, str | Path):
            yield from _chunks(Path(source))
        else:
            yield of_frame(source, SCHEMA)


def _chunks(path: Path) -> Iterator[Chunk]:
    named: bool | None = None
    for block, line in blocks(path):
        if named is None:
            named = block.startswith(_NAMES[0])
        table = _table(block, named=named)
        if table is None:
            raise _fault(block, path, line, named=named)
        ids, values, label = (table[:, part] for part in _parts(named=named))
        yield _chunk(ids.astype(np.int64), values, label[:, 0])
    if named is None:
        raise DataError("the file is empty; at least one row is needed", path=path)


def _chunk(
    id_BF: NDArray[np.int64], value_BF: NDArray[np.float64], label_B: NDArray[np.float64]
) -> Chunk:
    import polars as pl  # noqa: PLC0415 - not needed where the cache is built

    dense = len(DENSE)
    gone = (id_BF == 0) | (value_BF == 0)
    columns = zip(id_BF[:, dense:].T, gone[:, dense:].T, strict=True)
    return Chunk(
        label_B=label_B.astype(np.uint8),
        dense_BN=np.where(id_BF[:, :dense] == 0, np.nan, value_BF[:, :dense]),
        sparse=tuple(
            pl.Series(np.ascontiguousarray(ids)).set(pl.Series(missing), None)
            for ids, missing in columns
        ),
        sequences=(),
    )


def _parts(*, named: bool) -> tuple[slice, slice, slice]:
    """Where ids, values and label stand among the words of a line."""
    if named:
        return slice(0, FIELDS), slice(FIELDS, 2 * FIELDS), slice(2 * FIELDS, None)
    return slice(1, FIELDS + 1), slice(FIELDS + 1, None), slice(0, 1)


def _table(block: bytes, *, named: bool) -> NDArray[np.float64] | None:
    """The numbers of some lines without their names; None if something is not right."""
    import polars as pl  # noqa: PLC0415

    names = _WORDS if named else ("",) * len(_WORDS)
    if block.count(b" ") != block.count(b"\n") * (len(names) - 1):
        block = b"".join(b" ".join(line.split()) + b"\n" for line in block.split(b"\n")[:-1])
    columns = {str(i): pl.String if named else pl.Float64 for i in range(len(names))}
    try:
        frame = pl.read_csv(block, has_header=False, separator=" ", schema=columns, quote_char=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return None
    if frame.height != block.count(b"\n") or frame.null_count().sum_horizontal()[0]:
        return None
    if named:
        pairs = list(zip(names, frame, strict=True))
        if not all(column.str.starts_with(name).all() for name, column in pairs):
            return None
        bare = [c.str.slice(len(name)).cast(pl.Float64, strict=False) for name, c in pairs]
        frame = pl.DataFrame(bare)
        if frame.null_count().sum_horizontal()[0]:
            return None
    table = frame.to_numpy()
    ids, _, label = (table[:, part] for part in _parts(named=named))
    whole = (ids >= 0) & (ids == np.floor(ids)) & (ids < _EXACT)
    right = np.isfinite(table).all() and whole.all() and np.isin(label, (0.0, 1.0)).all()
    return table if right else None


def _is_even(block: bytes, *, named: bool) -> bool:
    """Whether each line has as many words as the others, with the names in their places."""
    lines = block.split(b"\n")[:-1]
    if not named:
        return all(len(line.split()) == 2 * FIELDS + 1 for line in lines)
    counts = (FIELDS, FIELDS, 1)
    return all(
        [line.count(name) for name in _NAMES] == list(counts)
        and line.rfind(_NAMES[0]) < line.find(_NAMES[1])
        and line.rfind(_NAMES[1]) < line.find(_NAMES[2])
        and len(line.split()) == 2 * FIELDS + 1
        for line in lines
    )


def _fault(block: bytes, path: Path, first: int, *, named: bool) -> DataError:
    """The error of the first line that is not right."""
    for number, line in enumerate(block.decode(errors="replace").split("\n")[:-1], start=first):
        words = line.split()
        wanted = _FORM if named else _BARE
        if not _is_even(f"{line}\n".encode(), named=named):
            return DataError(f"{len(words)} words; {wanted} are needed", path=path, line=number)
        names = [n.decode() for n in _NAMES] if named else ["", "", ""]
        ids, values, label = (words[part] for part in _parts(named=named))
        for i, word in enumerate(ids):
            if not word.removeprefix(names[0]).isdigit():
                message = f"{word!r} is no id; it must be a whole number of at least 0"
                column = (*DENSE, *SPARSE)[i]
                return DataError(message, path=path, line=number, column=column)
        for i, word in enumerate(values):
            if not _is_number(word.removeprefix(names[1])):
                column = (*DENSE, *SPARSE)[i]
                return DataError(f"{word!r} is no number", path=path, line=number, column=column)
        if label[0].removeprefix(names[2]) not in ("0", "1", "0.0", "1.0"):
            message = f"{label[0]!r} is no label; it must be 0 or 1"
            return DataError(message, path=path, line=number, column="label")
    return DataError("cannot be parsed", path=path, line=first)


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False
