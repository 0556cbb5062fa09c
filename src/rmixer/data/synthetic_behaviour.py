"""Behaviour rows: see `rmixer.data.synthetic.behaviour`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rmixer.data import synthetic
from rmixer.data.checks import Problem
from rmixer.data.schema import Schema, parse_schema
from rmixer.data.shapes import Drawn, Sizes, check_categories, semicolons

HEADER = "hist_items;hist_cates;item;cate;label\n"
#: What a jobs file says to read its text.
FILE_SCHEMA: dict[str, Any] = {
    "label": "label",
    "sparse": ["item", "cate"],
    "sequence": {
        "hist_items": {"separator": " ", "shares": "item"},
        "hist_cates": {"separator": " ", "shares": "cate"},
    },
}


class BehaviourShape:
    """No data set's, but the simplest of its kind: a past, an item, and whether it was liked."""

    published_rows = None
    defaults: ClassVar[Sizes] = {"items": 10_000, "categories": 100, "history": 15}
    schema: Schema = parse_schema(FILE_SCHEMA)
    data: ClassVar[Mapping[str, Any]] = {"format": "csv", "schema": FILE_SCHEMA}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        return check_categories(sizes)

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`."""
        shape = {key: sizes[key] for key in self.defaults}
        for rows in synthetic.behaviour(sizes["rows"], sizes["seed"], **shape):
            yield Drawn(
                label_B=rows.label_B,
                probability_B=rows.probability_B,
                fields=(rows.item_B, rows.category_B),
                pasts=(rows.history, rows.history_categories),
                length_B=rows.length_B,
            )

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        yield HEADER
        for rows in self.rows(sizes):
            yield semicolons(rows)
