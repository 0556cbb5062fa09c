"""Rows shaped like Amazon's Beauty as BERT4Rec has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmixer.data import leave_one_out
from rmixer.data.beauty import Beauty
from rmixer.data.checks import Problem
from rmixer.data.schema import Schema, parse
from rmixer.data.shapes import Drawn, Sizes, check_categories
from rmixer.data.synthetic import chunk_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: How often the next item is of the group of the last one; of the group behind it; else it is any.
SAME, BEHIND = 0.55, 0.2


class BeautyShape:
    """Users who stay in a group of items, move on to the group behind it, or take any item.

    So the next item depends on the last one, and the older ones say less. Items are equally
    frequent: an item alone says nothing. `categories` are the groups. A user gives two rows, as the
    format makes them: the true next item, and one that is drawn. Sizes are those of Sun et al.,
    BERT4Rec (CIKM 2019, table 1): 40,226 users, 54,542 items, 8.8 items each.
    """

    together = 2
    published_rows = 2 * 40_226
    defaults: ClassVar[Sizes] = {"items": 54_542, "categories": 200, "history": 8}
    schema: Schema = Beauty(parse({"format": "beauty", "path": "-"})).schema
    data: ClassVar[Mapping[str, Any]] = {"format": "beauty"}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        problems = check_categories(sizes)
        if sizes["rows"] % 2:
            problems.append(("rows", f"{sizes['rows']} is odd; each user gives two rows"))
        return problems

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`. Items are known by their ids, so those that occur are looked up first."""
        seen = np.zeros(sizes["items"] + 1, np.int64)
        for _, item_N in _walks(sizes):
            seen[item_N] = 1
        code, items = np.cumsum(seen) - 1, np.flatnonzero(seen)
        for user_N, item_N in _walks(sizes):
            taken = leave_one_out.Interactions(user_N=user_N, item_N=code[item_N], items=len(items))
            for rows in leave_one_out.rows(taken):
                past, item = item_N[rows.past_L], items[rows.item_B]
                yield Drawn(
                    label_B=rows.label_B,
                    probability_B=_probability(item, past, rows.length_B, sizes),
                    fields=(item,),
                    pasts=(past,),
                    length_B=rows.length_B,
                )

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        for user_N, item_N in _walks(sizes):
            pairs = zip(user_N.tolist(), item_N.tolist(), strict=True)
            yield "".join(f"{user} {item}\n" for user, item in pairs)


def _walks(sizes: Sizes) -> Iterator[tuple[Integers, Integers]]:
    """Users, numbered from 1, and what they took, in order."""
    groups, members = sizes["categories"], sizes["items"] // sizes["categories"]
    first = 0
    for index, many in chunk_sizes(sizes["rows"] // 2):
        generator = np.random.default_rng([sizes["seed"], 19, index])
        length = generator.integers(3, max(3, 2 * sizes["history"]), many, endpoint=True)
        group = generator.integers(0, groups, (many, int(length.max())))
        how = generator.random(group.shape)
        for t in range(1, group.shape[1]):
            last = group[:, t - 1]
            kinds = (how[:, t] < SAME, how[:, t] < SAME + BEHIND)
            group[:, t] = np.select(kinds, (last, (last + 1) % groups), group[:, t])
        item = 1 + group + groups * generator.integers(0, members, group.shape)
        there = np.arange(group.shape[1]) < length[:, None]
        yield np.repeat(np.arange(first, first + many) + 1, length), item[there]
        first += many


def _probability(item_B: Integers, past_L: Integers, length_B: Integers, sizes: Sizes) -> Any:
    """Of being the next item and not the drawn one.

    An item that the user has is never drawn; any other one is equally likely to be.
    """
    groups = sizes["categories"]
    ahead_B = (item_B - past_L[np.cumsum(length_B) - 1]) % groups
    chance = 1 - SAME - BEHIND + groups * (SAME * (ahead_B == 0) + BEHIND * (ahead_B == 1))
    owner = np.repeat(np.arange(len(item_B)), length_B)
    again = np.bincount(owner, past_L == item_B[owner], len(item_B))
    return np.where(again > 0, 1.0, chance / (chance + 1.0))
