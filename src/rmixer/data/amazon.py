"""Amazon reviews: a user's past, one more item, and whether it was reviewed next.

Three forms, told apart by their first line:

* ``hist_items;hist_cates;item;cate;label``, ids in a list between spaces, as DIN reads Electronics
  (Zhou et al., KDD 2018): the sample of PaddleRec (models/rank/din);
* words ``slot:value`` between spaces, as BST reads it (models/rank/bst): history, cate, target,
  target_cate, label; other slots (userid, position) are not used;
* a review a line, between commas under the header ``user_id,item_id,time,cate_id``, in any order,
  as in torch-rechub. They become rows by `rmixer.data.leave_one_out`; ``cate_id`` may be absent,
  then categories are missing values. The reviews are held in memory, some 100 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data import leave_one_out
from rmixer.data.checks import Problem, check_int, check_path
from rmixer.data.delimited import Delimited
from rmixer.data.format import Chunk
from rmixer.data.leave_one_out import Interactions
from rmixer.data.schema import DataSpec, Schema, SequenceColumn
from rmixer.data.table import NotRightError, Table
from rmixer.data.text import first_line
from rmixer.errors import DataError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.detect import Sample

COLUMNS = ("hist_items", "hist_cates", "item", "cate", "label")
_SLOTS = ("history", "cate", "target", "target_cate", "label")


class Amazon(Delimited):
    """The format ``amazon``."""

    options: tuple[str, ...] = ("path", "max_length", "negatives")
    default_dense = "none"

    def __init__(self, spec: DataSpec) -> None:
        self.negatives: int = spec.options.get("negatives", 1)
        self.max_length: int = spec.options.get("max_length", 100)
        self.schema = Schema(
            label="label",
            columns=COLUMNS,
            delimiter=";",
            sparse=("item", "cate"),
            sequences=(
                SequenceColumn(name="hist_items", shares="item", max_length=self.max_length),
                SequenceColumn(name="hist_cates", shares="cate", max_length=self.max_length),
            ),
        )
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        line = sample.lines[0] if sample.lines else ""
        words = {word.partition(":")[0] for word in line.split(" ")}
        fields = sample.fields(";")
        lists = all(len(row) == len(COLUMNS) and row[-1] in ("0", "1") for row in fields)
        reviews = {"user_id", "item_id", "time"} <= {name.strip() for name in line.split(",")}
        slots = {"target", "target_cate", "label"} <= words
        return {} if line and (lists or reviews or slots) else None

    @property
    def together(self) -> int:
        """How many rows a user gives; see `rmixer.data.format.Format`."""
        return 1 + self.negatives if _has_reviews(first_line(self.sources[0])) else 1

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return [
            *check_path(data),
            *check_int(data, "max_length", 1),
            *check_int(data, "negatives", 1),
        ]

    def chunks(self) -> Iterator[Chunk]:
        """All rows of the file."""
        yield from self._chunks(self.sources[0], label_needed=True)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file or of a frame; the label may be absent."""
        if isinstance(source, str | Path):
            yield from self._chunks(Path(source), label_needed=False)
        else:
            yield from super().chunks_of(source)

    def _chunks(self, path: Path, *, label_needed: bool) -> Iterator[Chunk]:
        line = first_line(path)
        if _has_reviews(line):
            yield from self._left_out(path, tuple(name.strip() for name in line.split(",")))
            return
        lists = ";" in line
        labelled = label_needed or (
            line.count(";") == len(COLUMNS) - 1 if lists else "label:" in line
        )
        yield from (Table if lists else SlotTable)(
            schema=self.schema,
            columns=COLUMNS if labelled else COLUMNS[:-1],
            delimiter=";",
            labelled=labelled,
        ).chunks(path)

    def _left_out(self, path: Path, names: tuple[str, ...]) -> Iterator[Chunk]:
        """Rows out of reviews."""
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        user, item, time, cate = _reviews(path, names)
        user_N = _codes(user)[1]
        order = np.lexsort((time, user_N))  # at the same time: as in the file
        item, cate = item[order], cate[order]
        items, item_N = _codes(item)
        first = pl.DataFrame({"item": item, "cate": cate}).unique("item", keep="first")
        cate_of = first.sort("item")["cate"]
        taken = Interactions(user_N=user_N[order], item_N=item_N, items=len(items))
        try:
            for rows in leave_one_out.rows(
                taken, negatives=self.negatives, max_length=self.max_length
            ):
                yield Chunk(
                    label_B=rows.label_B,
                    dense_BN=np.empty((len(rows.label_B), 0)),
                    sparse=(items[rows.item_B], cate_of[rows.item_B]),
                    sequences=(
                        (item[rows.past_L], rows.length_B),
                        (cate[rows.past_L], rows.length_B),
                    ),
                )
        except ValueError as error:
            raise DataError(str(error), path=path) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable(Table):
    """Lines of words ``slot:value``."""

    def _read(self, block: bytes) -> pl.DataFrame:
        import polars as pl  # noqa: PLC0415

        try:
            lines = pl.Series(block.decode().split("\n")[:-1], dtype=pl.String)
        except UnicodeDecodeError as error:
            raise NotRightError(str(error)) from error
        lists = {}
        for slot, name in zip(_SLOTS, COLUMNS, strict=True):
            if name not in self.columns:
                continue
            words = lines.str.extract_all(rf"(?:^| ){slot}:[^ ]+")
            lists[name] = words.list.eval(
                pl.element().str.strip_chars_start(" ").str.slice(len(slot) + 1)
            )
        frame = pl.DataFrame(lists)
        single = [name for name in self.columns if name not in COLUMNS[:2]]
        ones = all((frame[name].list.len() == 1).all() for name in single)
        pasts = (frame[COLUMNS[0]].list.len() == frame[COLUMNS[1]].list.len()).all()
        if not (ones and pasts):
            raise NotRightError("a slot")
        return frame.with_columns(pl.col(single).list.first())

    def _diagnose(self, block: bytes, path: Path, first: int) -> None:
        for line, text in enumerate(block.decode(errors="replace").split("\n")[:-1], start=first):
            slots: dict[str, list[str]] = {slot: [] for slot in _SLOTS}
            for word in text.split(" "):
                slot, _, value = word.partition(":")
                if slot in slots and value:
                    slots[slot].append(value)
            for slot, name in zip(_SLOTS[2:], COLUMNS[2:], strict=True):
                if name in self.columns and len(slots[slot]) != 1:
                    message = f"{len(slots[slot])} words {slot}:VALUE; one is needed"
                    raise DataError(message, path=path, line=line, column=slot)
            if len(slots["history"]) != len(slots["cate"]):
                counts = f"{len(slots['history'])} words history: and {len(slots['cate'])} cate:"
                raise DataError(f"{counts}; as many are needed", path=path, line=line)
            value = (slots["label"] or ["0"])[0]
            if message_ := self.fault("label", value):
                raise DataError(f"{value!r} {message_}", path=path, line=line, column="label")


def _has_reviews(line: str) -> bool:
    return ";" not in line and "," in line


def _reviews(
    path: Path, names: tuple[str, ...]
) -> tuple[pl.Series, pl.Series, NDArray[np.float64], pl.Series]:
    """Users, items, times and categories, line by line."""
    import polars as pl  # noqa: PLC0415

    needed = ("user_id", "item_id", "time")
    for name in needed:
        if name not in names:
            message = f"the header has no {name!r}; it must be user_id,item_id,time,cate_id"
            raise DataError(message, path=path, line=1)
    sparse = tuple(name for name in ("user_id", "item_id", "cate_id") if name in names)
    schema = Schema(label="", dense=("time",), sparse=sparse)
    table = Table(schema=schema, columns=names, delimiter=",", skip_lines=1, labelled=False)
    chunks = list(table.chunks(path))
    columns = [pl.concat([chunk.sparse[i] for chunk in chunks]) for i in range(len(sparse))]
    time = np.concatenate([chunk.dense_BN[:, 0] for chunk in chunks])
    for name, empty in (
        ("user_id", columns[0].is_null().to_numpy()),
        ("item_id", columns[1].is_null().to_numpy()),
        ("time", np.isnan(time)),
    ):
        if empty.any():
            message = "is empty; every review needs one"
            raise DataError(message, path=path, line=int(np.argmax(empty)) + 2, column=name)
    cate = (
        columns[-1]
        if "cate_id" in sparse
        else pl.repeat(None, len(time), dtype=pl.String, eager=True)
    )
    return columns[0], columns[1], time, cate


def _codes(values: pl.Series) -> tuple[pl.Series, NDArray[np.int64]]:
    """The distinct values, sorted, and the position of each value among them."""
    import polars as pl  # noqa: PLC0415

    known = values.unique().sort()
    codes = values.replace_strict(known, np.arange(len(known)), return_dtype=pl.Int64)
    return known, codes.to_numpy()
