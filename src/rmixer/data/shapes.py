"""What makes rows shaped like a published data set; `rmixer.data.generated.LIKE` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rmixer.data.checks import Problem, check_int
from rmixer.data.format import Chunk

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.schema import Schema

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Some consecutive generated rows, column by column.

    Attributes:
        label_B: 0 or 1.
        probability_B: from which the label was drawn: no model can do better.
        fields: one array per sparse column, of text or of numbers; below 0 is missing.
        pasts: one array per sequence, the entries of all rows one after the other.
        length_B: how many entries each row has.
        dense_BN: NaN is missing; None: no such columns.
    """

    label_B: NDArray[np.uint8]
    probability_B: Floats
    fields: tuple[NDArray[Any], ...]
    pasts: tuple[Integers, ...] = ()
    length_B: Integers | None = None
    dense_BN: Floats | None = None

    def __len__(self) -> int:
        return len(self.label_B)

    def chunk(self, schema: Schema) -> Chunk:
        """The rows as a format gives them; of a past the newest entries, as the schema says."""
        dense = np.empty((len(self), 0)) if self.dense_BN is None else self.dense_BN
        return Chunk(
            label_B=self.label_B,
            dense_BN=dense,
            sparse=tuple(_series(column) for column in self.fields),
            sequences=tuple(
                self._newest(past, column.max_length)
                for past, column in zip(self.pasts, schema.sequences, strict=True)
            ),
        )

    def _newest(self, past: Integers, longest: int) -> tuple[Any, Integers]:
        import polars as pl  # noqa: PLC0415

        assert self.length_B is not None
        kept = from_end(self.length_B) < longest
        return pl.Series(past[kept]), np.minimum(self.length_B, longest)


def _series(column: NDArray[Any]) -> pl.Series:
    import polars as pl  # noqa: PLC0415 - not needed where the cache is built

    values = pl.Series(column)
    if values.dtype == pl.String:
        return values
    return pl.select(pl.when(values >= 0).then(values)).to_series()


class Shape(Protocol):
    """Rows shaped like a published data set, with a planted signal, as many as are wanted.

    ``sizes`` has ``rows``, ``seed`` and the keys of `defaults`. The same sizes give the same rows
    and the same text; to read the text gives the rows. Both are made some thousand rows at a time.

    Attributes:
        published_rows: how many rows the published data have; None: they are nobody's.
        defaults: its own options, whole numbers of at least 1.
        schema: the columns.
        data: what a jobs file says to read its text, beside ``path``.
    """

    published_rows: int | None
    defaults: Sizes
    schema: Schema
    data: Mapping[str, Any]

    def check(self, sizes: Sizes) -> list[Problem]:
        """The problems of options that are right one by one but not together."""

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """All rows."""

    def text(self, sizes: Sizes) -> Iterator[str]:
        """The same rows as the text that is published."""


def check_sizes(shape: Shape, sizes: Mapping[str, Any]) -> list[Problem]:
    """The problems of ``rows``, ``seed`` and a shape's own options; others are not looked at."""
    problems: list[Problem] = []
    if "rows" not in sizes:
        problems.append(("rows", f"is missing; say how many rows to generate{published(shape)}"))
    for key in ("rows", "seed", *shape.defaults):
        problems += check_int(sizes, key, 0 if key == "seed" else 1)
    return problems or shape.check({"seed": 0, **shape.defaults, **sizes})


def published(shape: Shape) -> str:
    """How many rows the published data have, as a remark."""
    return f" (published are {shape.published_rows:,})" if shape.published_rows else ""


def check_categories(sizes: Sizes) -> list[Problem]:
    """The problem of categories that are left without an item."""
    if sizes["items"] < sizes["categories"]:
        return [("items", "there must be at least as many items as categories")]
    return []


def from_end(length_B: Integers) -> Integers:
    """For each entry of all rows how many newer ones its row has, ``[L]``."""
    return np.repeat(np.cumsum(length_B), length_B) - np.arange(length_B.sum()) - 1


def draw(generator: np.random.Generator, probability_B: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Labels, and the probabilities that they were drawn from."""
    return (generator.random(len(probability_B)) < probability_B).astype(np.uint8), probability_B


def sigmoid(logits: Floats) -> Floats:
    """Log-odds to probabilities."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def semicolons(rows: Drawn) -> str:
    """Lines of pasts, fields and the label between semicolons; entries between spaces."""
    assert rows.length_B is not None
    pasts = [words(past) for past in rows.pasts]
    fields = np.column_stack([*rows.fields, rows.label_B]).tolist()
    lines, start = [], 0
    for length, row in zip(rows.length_B.tolist(), fields, strict=True):
        stop = start + length
        lists = [" ".join(past[start:stop]) for past in pasts]
        lines.append(";".join([*lists, *map(str, row)]) + "\n")
        start = stop
    return "".join(lines)


def words(numbers: NDArray[Any]) -> list[str]:
    """Each number as text."""
    found: list[str] = numbers.astype(str).tolist()
    return found
