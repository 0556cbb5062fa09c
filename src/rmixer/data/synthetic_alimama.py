"""Rows shaped like Alimama's display ads as DMR reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmixer.data.alimama import LENGTH, Alimama
from rmixer.data.checks import Problem
from rmixer.data.schema import Schema
from rmixer.data.shapes import Drawn, Sizes, check_categories, draw, from_end, sigmoid, words
from rmixer.data.split import mix
from rmixer.data.synthetic import chunk_sizes, normal_hash
from rmixer.data.synthetic_past import pasts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: How much a behaviour counts: looked at, kept, put into the cart, bought.
WEIGHTS = np.array((1.0, 1.5, 2.0, 2.5))
_OFTEN = np.array((0.7, 0.1, 0.1, 0.1))
#: An entry counts half of one that is so many entries newer.
HALF_LIFE = 8.0
#: Values of cms_segid to new_user_class_level.
_PROFILE = (97, 13, 2, 7, 4, 4, 2, 5)


class AlimamaShape:
    """Behaviours on categories and brands, an ad, and the user's profile.

    The label depends on how much of the past is of the ad's category, by kind and age of the
    behaviours, on the age group together with the category, and on the place. Sizes are those of
    PaddleRec's models/rank/dmr (config_bigdata.yaml): 846,811 ads, 12,977 categories, 1,141,729
    users, and for each ad 0.545 brands, 0.5 campaigns and 0.302 customers; a user has 23 rows.
    """

    published_rows = 26_557_961
    defaults: ClassVar[Sizes] = {
        "items": 846_811,
        "categories": 12_977,
        "history": 20,
        "users": 1_141_729,
    }
    schema: Schema = Alimama.SCHEMA
    data: ClassVar[Mapping[str, Any]] = {"format": "alimama"}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        return check_categories(sizes)

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`."""
        shape = {key: sizes[key] for key in ("items", "categories", "history")}
        users = max(1, min(sizes["users"], sizes["rows"] // 23))
        for index, rows in chunk_sizes(sizes["rows"]):
            generator = np.random.default_rng([sizes["seed"], 17, index])
            past = pasts(generator, rows, **shape)
            kind = generator.choice(len(WEIGHTS), len(past.items_L), p=_OFTEN)
            user = generator.integers(0, users, rows)
            place = generator.integers(0, 2, rows)
            profile = _profile(user)
            recent = np.where(past.age_L < LENGTH, 0.5 ** (past.age_L / HALF_LIFE), 0.0)
            logits = -2.3 + 7.0 * past.share(WEIGHTS[kind] * recent) + 0.3 * place
            pair = (profile[:, 3] * sizes["categories"] + past.category_B).astype(np.uint64)
            label, probability = draw(generator, sigmoid(logits + 0.5 * normal_hash(pair, 41)))
            ad = past.item_B
            yield Drawn(
                label_B=label,
                probability_B=probability,
                dense_BN=np.floor(np.exp(3 + normal_hash(ad.astype(np.uint64), 43)))[:, None],
                fields=(
                    1 + user,
                    *profile.T,
                    ad,
                    1 + past.category_B,
                    _some_of(ad, sizes["items"] * 0.5, 47),
                    _some_of(ad, sizes["items"] * 0.302, 53),
                    _brand(ad, sizes["items"]),
                    place,
                ),
                pasts=(1 + kind, 1 + past.categories_L, _brand(past.items_L, sizes["items"])),
                length_B=past.length_B,
            )

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        for rows in self.rows(sizes):
            yield _lines(rows)


def _profile(user_B: Integers) -> Integers:
    """What a user is, ``[B, 8]``, always the same."""
    bits = mix(user_B.astype(np.uint64) ^ np.uint64(59 << 40))
    columns = []
    for values in _PROFILE:
        columns.append((bits % np.uint64(values)).astype(np.int64))
        bits //= np.uint64(values)
    return np.stack(columns, 1)


def _some_of(ad_B: Integers, many: float, salt: int) -> Integers:
    """One of so many owners of an ad, always the same."""
    bits = mix(ad_B.astype(np.uint64) ^ np.uint64(salt << 40))
    return 1 + (bits % np.uint64(max(1, int(many)))).astype(np.int64)


def _brand(ad_B: Integers, items: int) -> Integers:
    return _some_of(ad_B, items * 0.545, 61)


def _lines(rows: Drawn) -> str:
    """Five times 50 cells, the user, the ad, its price, the place and the label."""
    assert rows.length_B is not None
    assert rows.dense_BN is not None
    age = from_end(rows.length_B)
    kept = age < LENGTH
    owner = np.repeat(np.arange(len(rows)), rows.length_B)[kept]
    cells = np.zeros((5, len(rows), LENGTH), np.int64)
    for i, past in enumerate((*rows.pasts, np.ones_like(age), np.ones_like(age))):
        cells[i, owner, LENGTH - 1 - age[kept]] = past[kept]
    *fields, place = rows.fields
    price = rows.dense_BN[:, 0].astype(np.int64)
    table = np.column_stack([*cells, *fields, price, place, rows.label_B])
    columns = table.shape[1]
    flat = words(table.ravel())
    return "".join(
        ",".join(flat[start : start + columns]) + "\n" for start in range(0, len(flat), columns)
    )
