"""RecBole's atomic files: ``NAME.inter``, and beside it ``NAME.user`` and ``NAME.item``.

    data:
      format: recbole
      path: ml-100k              # the folder NAME, or its file NAME.inter
      threshold: 4               # label 1 from this rating on; absent: the label is 0 or 1
      schema:
        label: rating
        sparse: [user_id, item_id, gender, occupation]
        dense: [timestamp]
        sequence: {class: {}}

Each file is a table between tabs with a header of ``name:type``, the type one of token, float,
token_seq, float_seq (Zhao et al., RecBole, CIKM 2021, section 3.2). A row is an interaction, with
the columns of its user and its item joined on the ids; an id that the other file lacks has missing
values. The interactions are streamed, users and items are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.checks import Problem
from rmixer.data.delimited import Delimited
from rmixer.data.schema import DataSpec, Schema
from rmixer.data.table import NotRightError, Table, frame_of
from rmixer.data.text import blocks, first_line
from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.detect import Sample
    from rmixer.data.format import Chunk

TYPES = ("token", "float", "token_seq", "float_seq")
#: The files beside the interactions, and what their ids are usually called.
_SIDES = {"user": "user_id", "item": "item_id"}


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of the users, or of the items: a frame, and the column of their ids."""

    key: str
    frame: pl.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicTable(Table):
    """Interactions, joined with what is known of their users and items.

    Attributes:
        threshold: the least value of the label column that means 1; None: it is 0 or 1.
        sides: to be joined.
    """

    threshold: float | None = None
    sides: tuple[Side, ...] = ()

    def chunk(self, frame: pl.DataFrame) -> Chunk:
        """See `Table.chunk`."""
        for side in self.sides:
            frame = frame.join(side.frame, on=side.key, how="left", maintain_order="left")
        return Table.chunk(self, frame)

    def fault(self, name: str, value: str) -> str | None:
        """See `Table.fault`."""
        if name != self.schema.label or self.threshold is None:
            return Table.fault(self, name, value)
        rating = replace(self, schema=Schema(label="", dense=(name,)), labelled=False)
        if value == "" or value in self.schema.missing:
            return "is no label; every row needs one"
        return Table.fault(rating, name, value)

    def side(self, path: Path, key: str) -> Side:
        """The file of the users, or of the items, whole.

        Raises:
            DataError: something in it is not right.
        """
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        kept = [name for name in self.columns if name == key or name in self.schema.used]
        frames = []
        for block, line in blocks(path, skip_lines=1):
            try:
                frame = self._read(block)
                numbers = {n: self._dense(frame[n]) for n in self.schema.dense if n in kept}
            except NotRightError as error:
                self._diagnose(block, path, line)
                raise DataError(f"cannot be parsed: {error}", path=path, line=line) from error
            columns = [
                pl.Series(name, values, nan_to_null=True) for name, values in numbers.items()
            ]
            frames.append(frame.with_columns(columns).select(kept))
        if not frames:
            raise DataError("has only a header; at least one row is needed", path=path)
        whole = pl.concat(frames)
        again = whole[key].is_duplicated() & ~whole[key].is_first_distinct()
        if (at := again.arg_true()).len():
            line = int(at[0]) + 2
            raise DataError(
                f"{whole[key][at[0]]!r} is there twice", path=path, line=line, column=key
            )
        return Side(key, whole)

    def _label(self, raw: pl.Series) -> NDArray[np.uint8]:
        if self.threshold is None:
            return super(AtomicTable, self)._label(raw)
        numbers = self._dense(raw)
        if np.isnan(numbers).any():
            raise NotRightError("a label is missing")
        return (numbers >= self.threshold).astype(np.uint8)


class RecBole(Delimited):
    """The format ``recbole``."""

    options: tuple[str, ...] = ("path", "schema", "threshold")
    takes_folder = True

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.threshold: float | None = spec.options.get("threshold")
        if self.sources:
            self.sources = atomic_files(self.sources[0])

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        if f"{sample.path.name}.inter" in sample.names:
            return {}
        words = sample.lines[0].split("\t") if sample.lines else []
        return {} if words and all(w.rpartition(":")[2] in TYPES for w in words) else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = Delimited.check(data)
        threshold = data.get("threshold")
        if threshold is not None and (
            isinstance(threshold, bool) or not isinstance(threshold, int | float)
        ):
            problems.append(("threshold", f"{threshold!r} is no number, such as 4"))
        return problems

    def chunks(self) -> Iterator[Chunk]:
        """All interactions."""
        path = self.sources[0]
        yield from self._table(path, label_needed=True).chunks(path)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """Other interactions, with their own users and items beside them; or a frame, joined."""
        if isinstance(source, str | Path):
            path = atomic_files(Path(source))[0]
            yield from self._table(path, label_needed=False).chunks(path)
            return
        frame = frame_of(source, self.schema.missing)
        if self.threshold is not None and self.schema.label in frame.columns:
            import polars as pl  # noqa: PLC0415

            rating = pl.col(self.schema.label).cast(pl.Float64, strict=False)
            frame = frame.with_columns((rating >= self.threshold).cast(pl.UInt8))
        yield from super().chunks_of(frame)

    def _table(self, path: Path, *, label_needed: bool) -> Table:
        inter, *others = atomic_files(path)
        delimiter = self.schema.delimiter or "\t"
        types = read_header(inter, delimiter)
        shape: dict[str, Any] = {"schema": self.schema, "delimiter": delimiter, "skip_lines": 1}
        found, sides = dict(types), []
        for file in others:
            theirs = read_header(file, delimiter)
            key = _key(file, theirs, types)
            for name in theirs:
                if name != key and name in found and name in self.schema.used:
                    message = f"column {name!r} is in two files; only an id may be"
                    raise DataError(message, path=file, line=1)
            found |= theirs
            table = AtomicTable(columns=tuple(theirs), labelled=False, **shape)
            sides.append(table.side(file, key))
        self._check_types(found, inter, label_needed=label_needed)
        return AtomicTable(
            columns=tuple(types),
            labelled=self.schema.label in types,
            threshold=self.threshold,
            sides=tuple(sides),
            **shape,
        )

    def _check_types(self, types: Mapping[str, str], path: Path, *, label_needed: bool) -> None:
        """Every column of the schema is there, and of a type that suits its role."""
        schema = self.schema
        for name in schema.used if label_needed else schema.used[1:]:
            if name not in types:
                raise DataError(unknown_name("column", name, types), path=path, line=1)
        for name in (*schema.dense, *schema.sparse):
            if types[name].endswith("_seq"):
                message = f"column {name!r} is {types[name]}: a list goes under schema.sequence"
                raise DataError(message, path=path, line=1)
        for sequence in schema.sequences:
            if types[sequence.name] != "token_seq":
                message = f"column {sequence.name!r} is {types[sequence.name]}, no list of ids"
                raise DataError(f"{message}; a sequence must be token_seq", path=path, line=1)


def atomic_files(path: Path) -> tuple[Path, ...]:
    """The interactions, then the users and the items if their files are there.

    Args:
        path: of the folder, whose files have its name, or of the interactions.
    """
    inter = path / f"{path.name}.inter" if path.is_dir() else path
    if inter.suffix != ".inter":
        return (inter,)
    sides = (inter.with_suffix(f".{kind}") for kind in _SIDES)
    return (inter, *(side for side in sides if side.exists()))


def read_header(path: Path, delimiter: str) -> dict[str, str]:
    """Names and types of the columns.

    Raises:
        DataError: the first line is no header of an atomic file.
    """
    types: dict[str, str] = {}
    for part in first_line(path).split(delimiter):
        name, _, kind = part.strip().rpartition(":")
        if not name or kind not in TYPES:
            message = f"{part!r} in the header is no NAME:TYPE, TYPE being one of"
            raise DataError(f"{message} {', '.join(TYPES)}", path=path, line=1)
        if name in types:
            raise DataError(f"the header has {name!r} twice", path=path, line=1)
        types[name] = kind
    return types


def _key(path: Path, theirs: Mapping[str, str], inter: Mapping[str, str]) -> str:
    """The column on which a file is joined: the one that the interactions have too."""
    common = [name for name in theirs if name in inter]
    usual = _SIDES[path.suffix[1:]]
    if usual in common or len(common) == 1:
        return usual if usual in common else common[0]
    what = f"has {' and '.join(common)}" if common else "has no column"
    message = f"{what} in common with the interactions; one column of ids is needed, as {usual}"
    raise DataError(message, path=path, line=1)
