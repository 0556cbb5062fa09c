"""Data with a planted signal, of any length: Criteo-shaped rows, and behaviour sequences.

Rows come in chunks of `CHUNK_ROWS`; chunk ``i`` of a seed is always the same, whatever is asked for
before or after it. What an id means for the label is a hash of the id, so no table of effects is
kept and the memory does not grow with the number of ids or rows. The probability from which each
label was drawn is given too: no model can do better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmixer.data.split import mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ROWS = 1 << 15

#: Distinct values of C1..C26 in Criteo's Kaggle data, as published with facebookresearch/dlrm.
CRITEO_TABLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip

# An id of a small table is seen often enough to be learned, so it weighs more.
_LARGE = (1_000, 20_000)
_WEIGHTS = np.array((0.4, 0.2, 0.05))
#: Columns (from 0) of which each pair of ids has an effect of its own: all of small tables.
_PAIRS = ((5, 13), (8, 21), (16, 22), (19, 24))
#: How much they weigh, in hundredths, unless said otherwise.
PAIR_PERCENT = 100

#: Share of a history that is of the user's two categories; share of targets that are.
_LOYALTY, _LIKED = 0.8, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoRows:
    """Criteo-shaped rows.

    Attributes:
        label_B: uint8.
        probability_B: from which the label was drawn.
        dense_BN: whole numbers as float64; NaN is missing.
        id_BF: int64, at most 8 hexadecimal digits; -1 is missing.
    """

    label_B: NDArray[np.uint8]
    probability_B: NDArray[np.float64]
    dense_BN: NDArray[np.float64]
    id_BF: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaviourRows:
    """Behaviour rows: a user's history and one more item, which the user liked or not.

    Attributes:
        label_B: uint8.
        probability_B: from which the label was drawn.
        item_B, category_B: the item in question, from 1.
        history: item numbers of all histories, one after the other.
        length_B: how many of them each row has; may be 0.
        categories: the category of item ``i`` is ``1 + (i - 1) % categories``.
    """

    label_B: NDArray[np.uint8]
    probability_B: NDArray[np.float64]
    item_B: NDArray[np.int64]
    category_B: NDArray[np.int64]
    history: NDArray[np.int64]
    length_B: NDArray[np.int64]
    categories: int

    @property
    def history_categories(self) -> NDArray[np.int64]:
        """The category of each item of `history`."""
        return 1 + (self.history - 1) % self.categories


def criteo(
    rows: int, seed: int, max_table_rows: int, pair_percent: int = PAIR_PERCENT
) -> Iterator[CriteoRows]:
    """Criteo-shaped rows: skewed ids, counts, missing values.

    The log-odds are a sum of an effect per id, linear effects of the logarithms of the counts, and
    products of latent numbers of pairs of ids, which a linear model cannot see; ``pair_percent`` is
    the weight of these.
    """
    sizes = np.minimum(CRITEO_TABLE_ROWS, max_table_rows)
    for index, size in chunk_sizes(rows):
        generator = np.random.default_rng([seed, 1, index])
        yield _criteo_chunk(generator, size, sizes, pair_percent / 100)


def _criteo_chunk(
    generator: np.random.Generator, rows: int, sizes: NDArray[np.int64], pair_weight: float
) -> CriteoRows:
    fields = len(sizes)
    rank = (sizes * generator.random((rows, fields)) ** 3).astype(np.int64)
    rank_key = (rank + (np.arange(fields) << 40)).astype(np.uint64)
    dense = np.floor(np.exp(generator.normal(1.0, 1.2, (rows, 13))))
    logits = np.full(rows, -1.5)
    logits += 0.15 * ((np.log1p(dense) - 1.3) * np.resize((1.0, -1.0, 0.5), 13)).sum(axis=1)
    logits += (_WEIGHTS[np.searchsorted(_LARGE, sizes)] * normal_hash(rank_key, 7)).sum(axis=1)
    for a, b in _PAIRS:
        latent = normal_hash(rank_key[:, a], 11), normal_hash(rank_key[:, b], 13)
        logits += pair_weight * latent[0] * latent[1]
    probability = 1.0 / (1.0 + np.exp(-logits))
    label = (generator.random(rows) < probability).astype(np.uint8)
    ids = (mix(rank_key) & np.uint64(0xFFFFFFFF)).astype(np.int64)
    ids[generator.random((rows, fields)) < np.where(np.arange(fields) % 5 == 1, 0.1, 0.0)] = -1
    dense[generator.random((rows, 13)) < np.where(np.arange(13) % 4 == 0, 0.1, 0.0)] = np.nan
    return CriteoRows(label_B=label, probability_B=probability, dense_BN=dense, id_BF=ids)


def behaviour(
    rows: int, seed: int, *, items: int, categories: int, history: int
) -> Iterator[BehaviourRows]:
    """Behaviour rows: the label depends on how much of the history is of the item's category."""
    for index, size in chunk_sizes(rows):
        generator = np.random.default_rng([seed, 2, index])
        yield _behaviour_chunk(generator, size, items, categories, history)


def _behaviour_chunk(
    generator: np.random.Generator, rows: int, items: int, categories: int, history: int
) -> BehaviourRows:
    interests = generator.integers(0, categories, (rows, 2))
    length = generator.integers(0, 2 * history + 1, rows)
    owner = np.repeat(np.arange(rows), length)
    picked = interests[owner, generator.integers(0, 2, len(owner))]
    random = generator.integers(0, categories, len(owner))
    category = np.where(generator.random(len(owner)) < _LOYALTY, picked, random)
    past = items_of(generator, category, items, categories)
    liked = interests[np.arange(rows), generator.integers(0, 2, rows)]
    other = generator.integers(0, categories, rows)
    target = np.where(generator.random(rows) < _LIKED, liked, other)
    item = items_of(generator, target, items, categories)
    share = np.bincount(owner, category == target[owner], minlength=rows) / np.maximum(length, 1)
    logits = -1.8 + 8.0 * share + 0.4 * normal_hash(target.astype(np.uint64), 17)
    probability = 1.0 / (1.0 + np.exp(-logits))
    label = (generator.random(rows) < probability).astype(np.uint8)
    return BehaviourRows(
        label_B=label,
        probability_B=probability,
        item_B=item,
        category_B=target + 1,
        history=past,
        length_B=length,
        categories=categories,
    )


def items_of(
    generator: np.random.Generator, category: NDArray[np.int64], items: int, categories: int
) -> NDArray[np.int64]:
    """An item of each category, numbered from 1; the first ones of a category are frequent.

    Categories are numbered from 0 here; that of item ``i`` is ``(i - 1) % categories``.
    """
    members = (items - 1 - category) // categories + 1
    rank = (members * generator.random(len(category)) ** 2).astype(np.int64)
    return 1 + category + categories * rank


def normal_hash(keys: NDArray[np.uint64], salt: int) -> NDArray[np.float64]:
    """A number per key that looks standard normal (a sum of four uniforms) and never changes."""
    bits = mix(keys ^ mix(np.array([salt], np.uint64)))
    total = np.zeros(keys.shape)
    for shift in (0, 16, 32, 48):
        total += ((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.float64)
    return np.asarray((total / 65536.0 - 2.0) * np.sqrt(3.0))


def chunk_sizes(rows: int) -> Iterator[tuple[int, int]]:
    """The number of each chunk, from 0, and how many of so many rows it has."""
    for index, start in enumerate(range(0, rows, CHUNK_ROWS)):
        yield index, min(CHUNK_ROWS, rows - start)
