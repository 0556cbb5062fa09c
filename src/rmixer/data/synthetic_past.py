"""Pasts whose users change: what the generators of Amazon's, Alimama's and KDD's shapes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmixer.data.synthetic import items_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Share of a past that is of the user's two categories; share of the items in question that are.
LOYALTY, LIKED = 0.8, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Pasts of some users and an item in question for each; categories are numbered from 0.

    Attributes:
        item_B, category_B: the item in question, and its category.
        items_L, categories_L: the entries of all pasts one after the other, the oldest first.
        length_B: how many entries each past has.
        owner_L: the row of each entry.
        age_L: how many newer entries its row has.
    """

    item_B: Integers
    category_B: Integers
    items_L: Integers
    categories_L: Integers
    length_B: Integers
    owner_L: Integers
    age_L: Integers

    def share(self, weight_L: Floats) -> Floats:
        """Which share of a past, by weight, is of the category of the item in question, ``[B]``."""
        rows = len(self.length_B)
        same = self.categories_L == self.category_B[self.owner_L]
        total = np.bincount(self.owner_L, weight_L, rows)
        return np.asarray(
            np.bincount(self.owner_L, weight_L * same, rows) / np.maximum(total, 1e-9)
        )


def pasts(
    generator: np.random.Generator, rows: int, *, items: int, categories: int, history: int
) -> Past:
    """Pasts of 0 to ``2 * history`` entries, moving from one category of interest to another.

    How likely an entry is of the newer category grows from the oldest entry to the newest.
    """
    interests = generator.integers(0, categories, (rows, 2))
    length = generator.integers(0, 2 * history + 1, rows)
    owner = np.repeat(np.arange(rows), length)
    age = np.repeat(np.cumsum(length), length) - np.arange(len(owner)) - 1
    newer = generator.random(len(owner)) < 1.0 - (age + 0.5) / length[owner]
    picked = interests[owner, newer.astype(np.int64)]
    other = generator.integers(0, categories, len(owner))
    category = np.where(generator.random(len(owner)) < LOYALTY, picked, other)
    liked = interests[np.arange(rows), generator.integers(0, 2, rows)]
    other = generator.integers(0, categories, rows)
    target = np.where(generator.random(rows) < LIKED, liked, other)
    return Past(
        item_B=items_of(generator, target, items, categories),
        category_B=target,
        items_L=items_of(generator, category, items, categories),
        categories_L=category,
        length_B=length,
        owner_L=owner,
        age_L=age,
    )
