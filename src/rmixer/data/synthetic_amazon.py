"""Rows shaped like Amazon's Electronics as DIN reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rmixer.data.amazon import Amazon
from rmixer.data.checks import Problem
from rmixer.data.schema import Schema, parse
from rmixer.data.shapes import Drawn, Sizes, check_categories, draw, semicolons, sigmoid
from rmixer.data.synthetic import chunk_sizes, normal_hash
from rmixer.data.synthetic_past import pasts

#: An entry counts half of one that is so many entries newer.
HALF_LIFE = 6.0


class AmazonShape:
    """A user's past and one more item.

    The label depends on how much of the past is of the item's category, newer entries counting
    more, and a little on the category itself. Sizes are those of Zhou et al., Deep Interest Network
    (KDD 2018, table 1): 192,403 users, 63,001 items, 801 categories, 1,689,188 samples.
    """

    published_rows = 1_689_188
    defaults: ClassVar[Sizes] = {"items": 63_001, "categories": 801, "history": 9}
    schema: Schema = Amazon(parse({"format": "amazon", "path": "-"})).schema
    data: ClassVar[Mapping[str, Any]] = {"format": "amazon"}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        return check_categories(sizes)

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`."""
        shape = {key: sizes[key] for key in self.defaults}
        for index, rows in chunk_sizes(sizes["rows"]):
            generator = np.random.default_rng([sizes["seed"], 11, index])
            past = pasts(generator, rows, **shape)
            share = past.share(0.5 ** (past.age_L / HALF_LIFE))
            taste = normal_hash(past.category_B.astype(np.uint64), 31)
            label, probability = draw(generator, sigmoid(-1.8 + 6.0 * share + 0.4 * taste))
            yield Drawn(
                label_B=label,
                probability_B=probability,
                fields=(past.item_B, 1 + past.category_B),
                pasts=(past.items_L, 1 + past.categories_L),
                length_B=past.length_B,
            )

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        for rows in self.rows(sizes):
            yield semicolons(rows)
