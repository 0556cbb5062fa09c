"""Who took what, in the order of time, as labelled rows: the leave-one-out practice of the field.

The last item of a user is the one in question, with label 1, and the items before it are the past.
Beside it stand rows with the same past and an item that the user has not taken, with label 0, drawn
uniformly from all items (He et al., Neural Collaborative Filtering, WWW 2017, section 4.1). The
draw is a hash of the user's number, so it is always the same. A user with one item has no past and
gives no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmixer.data.split import mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

USERS_AT_ONCE = 1 << 14
#: An item that the user has is drawn again so often; then any item but the right one will do.
_TRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Interactions:
    """Who took what: the lines of a user one after the other, the oldest first.

    Attributes:
        user_N: numbers of the users; equal ones stand together.
        item_N: items as codes from 0, each below ``items``.
        items: how many there are.
    """

    user_N: Integers
    item_N: Integers
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Labelled rows; the entries of the pasts as positions in `Interactions.item_N`."""

    label_B: NDArray[np.uint8]
    item_B: Integers
    past_L: Integers
    length_B: Integers


def rows(taken: Interactions, *, negatives: int = 1, max_length: int = 50) -> Iterator[Rows]:
    """The rows of some thousand users at a time: label 1, then ``negatives`` times label 0.

    Args:
        taken: by whom, in order.
        negatives: rows with label 0 beside each with label 1.
        max_length: so many of the newest items are the past.

    Raises:
        ValueError: there is only one item, so nothing else can be drawn, or no user has two.
    """
    if taken.items < 2:  # noqa: PLR2004
        raise ValueError("there is only one item, so no other can be drawn beside it")
    starts = np.flatnonzero(np.r_[True, taken.user_N[1:] != taken.user_N[:-1]])
    stops = np.r_[starts[1:], len(taken.user_N)]
    has = np.unique(np.repeat(np.arange(len(starts)), stops - starts) * taken.items + taken.item_N)
    users = np.flatnonzero(stops - starts > 1)
    if not len(users):
        raise ValueError("no user has two items, so there is nothing to predict")
    for at in range(0, len(users), USERS_AT_ONCE):
        some = users[at : at + USERS_AT_ONCE]
        yield _rows(taken, some, starts[some], stops[some], has, negatives, max_length)


def _rows(
    taken: Interactions,
    users: Integers,
    starts: Integers,
    stops: Integers,
    has: Integers,
    negatives: int,
    max_length: int,
) -> Rows:
    times, last = 1 + negatives, stops - 1
    right = taken.item_N[last]
    wrong = [
        draw(taken.user_N[last], users, right, has, taken.items, which)
        for which in range(negatives)
    ]
    begins = np.repeat(np.maximum(starts, last - max_length), times)
    lengths = np.repeat(last, times) - begins
    shift = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    return Rows(
        label_B=np.tile(np.eye(1, times, dtype=np.uint8)[0], len(users)),
        item_B=np.stack([right, *wrong], 1).ravel(),
        past_L=shift + np.arange(len(shift)),
        length_B=lengths,
    )


def draw(
    user_U: Integers, index_U: Integers, right_U: Integers, has: Integers, items: int, which: int
) -> Integers:
    """An item for each user that is not the right one, nor, if it can be helped, another of theirs.

    Args:
        user_U: the numbers of the users, which are hashed.
        index_U: the positions of the users among all.
        right_U: their last items.
        has: ``index * items + item`` of all that was taken, ascending.
        items: how many there are.
        which: the number of the draw, from 0.
    """
    found = np.empty(len(user_U), np.int64)
    left = np.arange(len(user_U))
    for again in range(_TRIES + 1):
        salt = np.uint64((which * (_TRIES + 1) + again) << 40)
        step = mix(user_U[left].astype(np.uint64) ^ salt) % np.uint64(items - 1)
        found[left] = (right_U[left] + 1 + step.astype(np.int64)) % items
        key = index_U[left] * items + found[left]
        at = np.minimum(np.searchsorted(has, key), len(has) - 1)
        left = left[has[at] == key]
        if not len(left):
            break
    return found
