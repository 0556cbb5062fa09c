"""The format ``generated``: synthetic rows straight into the cache, without a text file between.

The columns are equal to those of the file that `rmixer.data.generate` writes with the same options.
Those of the published forms (`rmixer.data.published`) are read from such a file, by their formats.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rmixer.data import synthetic
from rmixer.data.checks import Problem, check_int
from rmixer.data.criteo import SCHEMA as CRITEO_SCHEMA
from rmixer.data.criteo import Criteo
from rmixer.data.delimited import Delimited
from rmixer.data.format import Chunk, Format, load_format
from rmixer.data.published import PUBLISHED
from rmixer.data.schema import DataSpec, Schema, SequenceColumn, Transform, Valid
from rmixer.errors import unknown_name

LIKE = ("criteo", "behaviour", *PUBLISHED)
DEFAULTS = {
    "rows": 0,
    "seed": 0,
    "max_table_rows": 100_000,
    "items": 10_000,
    "categories": 100,
    "history": 15,
}

#: What a jobs file says to read the behaviour file of `rmixer.data.generate`.
BEHAVIOUR_FILE_SCHEMA: dict[str, Any] = {
    "label": "label",
    "sparse": ["item", "cate"],
    "sequence": {
        "hist_items": {"separator": " ", "shares": "item"},
        "hist_cates": {"separator": " ", "shares": "cate"},
    },
}
BEHAVIOUR_SCHEMA = Schema(
    label="label",
    sparse=("item", "cate"),
    sequences=(
        SequenceColumn(name="hist_items", shares="item"),
        SequenceColumn(name="hist_cates", shares="cate"),
    ),
)

_SCHEMAS = {"criteo": CRITEO_SCHEMA, "behaviour": BEHAVIOUR_SCHEMA}


class Generated:
    """The format ``generated``: ``{format: generated, like: criteo, rows: 1000000, seed: 0}``."""

    options: tuple[str, ...] = ("like", *DEFAULTS)
    default_dense = "log1p"

    def __init__(self, spec: DataSpec) -> None:
        self.like: str = spec.options["like"]
        self.sizes: dict[str, int] = {**DEFAULTS, **_numbers(spec.options)}
        self.schema: Schema = _SCHEMAS.get(self.like) or self._published().schema
        self.sources: tuple[Path, ...] = ()

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems: list[Problem] = []
        if "like" not in data:
            problems.append(("like", f"is missing; one of {', '.join(sorted(LIKE))}"))
        elif data["like"] not in LIKE:
            problems.append(("like", unknown_name("shape", str(data["like"]), LIKE)))
        if "rows" not in data:
            problems.append(("rows", "is missing; say how many rows to generate"))
        for key in DEFAULTS:
            problems += check_int(data, key, 0 if key == "seed" else 1)
        if not problems and data.get("items", 10_000) < data.get("categories", 100):
            problems.append(("items", "there must be at least as many items as categories"))
        return problems

    def chunks(self) -> Iterator[Chunk]:
        """All rows."""
        if self.like in PUBLISHED:
            yield from self._written()
        elif self.like == "criteo":
            for rows in criteo_rows(self.sizes):
                yield _criteo_chunk(rows)
        else:
            for behaviour in behaviour_rows(self.sizes):
                yield _behaviour_chunk(behaviour)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of a file of this shape, or of a frame."""
        common: dict[str, Any] = {"transform": Transform(), "valid": Valid()}
        if self.like in PUBLISHED:
            yield from self._published().chunks_of(source)
        elif self.like == "criteo":
            yield from Criteo(DataSpec(format="criteo", **common)).chunks_of(source)
        else:
            options = {"schema": BEHAVIOUR_FILE_SCHEMA}
            spec = DataSpec(format="csv", options=options, **common)
            yield from Delimited(spec).chunks_of(source)

    def _published(self, path: Path | None = None) -> Format:
        """The format that reads what `rmixer.data.published` writes."""
        options = {} if path is None else {"path": str(path)}
        common: dict[str, Any] = {"transform": Transform(), "valid": Valid()}
        spec = DataSpec(format=self.like, options=options, **common)
        return load_format(self.like)(spec)

    def _written(self) -> Iterator[Chunk]:
        """The rows as the format reads them from the text, which is kept while it is read."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="ascii") as file:
            for piece in PUBLISHED[self.like].text(self.sizes):
                file.write(piece)
            file.flush()
            yield from self._published(Path(file.name)).chunks()


def criteo_rows(sizes: Mapping[str, int]) -> Iterator[synthetic.CriteoRows]:
    """The Criteo-shaped rows of these options."""
    return synthetic.criteo(sizes["rows"], sizes["seed"], sizes["max_table_rows"])


def behaviour_rows(sizes: Mapping[str, int]) -> Iterator[synthetic.BehaviourRows]:
    """The behaviour rows of these options."""
    shape = {key: sizes[key] for key in ("items", "categories", "history")}
    return synthetic.behaviour(sizes["rows"], sizes["seed"], **shape)


def _numbers(options: Mapping[str, Any]) -> dict[str, int]:
    return {key: int(options[key]) for key in DEFAULTS if key in options}


def _criteo_chunk(rows: synthetic.CriteoRows) -> Chunk:
    import polars as pl  # noqa: PLC0415 - not needed where the cache is built

    columns = (pl.Series(column) for column in np.ascontiguousarray(rows.id_BF.T))
    return Chunk(
        label_B=rows.label_B,
        dense_BN=rows.dense_BN,
        sparse=tuple(pl.select(pl.when(c >= 0).then(c)).to_series() for c in columns),
        sequences=(),
    )


def _behaviour_chunk(rows: synthetic.BehaviourRows) -> Chunk:
    import polars as pl  # noqa: PLC0415

    longest = BEHAVIOUR_SCHEMA.sequences[0].max_length
    ends = np.cumsum(rows.length_B)
    position = np.arange(len(rows.history))
    kept = position >= np.repeat(ends - longest, rows.length_B)
    length = np.minimum(rows.length_B, longest)
    return Chunk(
        label_B=rows.label_B,
        dense_BN=np.empty((len(rows.label_B), 0)),
        sparse=(pl.Series(rows.item_B), pl.Series(rows.category_B)),
        sequences=(
            (pl.Series(rows.history[kept]), length),
            (pl.Series(rows.history_categories[kept]), length),
        ),
    )
