"""Rows shaped like KDD Cup 2012, track 2, as DPIN reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmixer.data.checks import Problem
from rmixer.data.kdd2012 import KDD2012
from rmixer.data.schema import Schema
from rmixer.data.shapes import Drawn, Sizes, check_categories, draw, semicolons, sigmoid
from rmixer.data.synthetic import chunk_sizes, normal_hash
from rmixer.data.synthetic_past import Past, pasts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: How often positions are clicked, over all users.
CLICKED = np.array((0.5, 0.3, 0.2))


class KDD2012Shape:
    """An ad at one of three positions, and the ads that the user clicked before.

    It is clicked if it is looked at and relevant (the examination hypothesis: Richardson et al.,
    WWW 2007). How likely a user looks at a position shows in the positions of the past clicks;
    relevance depends on the advertiser, and a little on how much of the past is of it. Sizes are
    those of PaddleRec's models/rank/dpin (config_bigdata.yaml): 455,564 ads, 14,615 advertisers, 3
    positions; `categories` are advertisers.
    """

    published_rows = 149_639_105
    defaults: ClassVar[Sizes] = {"items": 455_564, "categories": 14_615, "history": 8}
    schema: Schema = KDD2012.SCHEMA
    data: ClassVar[Mapping[str, Any]] = {"format": "kdd2012"}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        return check_categories(sizes)

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`."""
        shape = {key: sizes[key] for key in self.defaults}
        for index, rows in chunk_sizes(sizes["rows"]):
            generator = np.random.default_rng([sizes["seed"], 13, index])
            past = pasts(generator, rows, **shape)
            place = generator.integers(0, len(CLICKED), rows)
            habit = generator.dirichlet(2 * CLICKED, rows).cumsum(1)[past.owner_L]
            past_place = (habit < generator.random(len(habit))[:, None]).sum(1)
            label, probability = draw(generator, _chance(past, place, past_place))
            yield Drawn(
                label_B=label,
                probability_B=probability,
                fields=(past.item_B, 1 + past.category_B, 1 + place),
                pasts=(past.items_L, 1 + past.categories_L, 1 + past_place),
                length_B=past.length_B,
            )

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        for rows in self.rows(sizes):
            yield semicolons(rows)


def _chance(past: Past, place_B: Integers, past_place_L: Integers) -> Floats:
    """Of a click: looked at, times relevant."""
    there = np.bincount(past.owner_L, past_place_L == place_B[past.owner_L], len(place_B))
    share = (there + CLICKED[place_B]) / (past.length_B + 1)
    taste = normal_hash(past.category_B.astype(np.uint64), 37)
    match = past.share(np.ones(len(past.owner_L)))
    return sigmoid(8.0 * share - 3.0) * sigmoid(0.7 + taste + match)
