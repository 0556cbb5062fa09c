"""Rows of the published data sets' forms, with a planted signal; see `rmixer.data.synthetic`.

Each class writes the published text, which the format of that name reads, and knows the probability
from which it drew each label: no model can do better. Sizes are what a caller asks for; ``rows`` of
a class says how many the published data set has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from rmixer.data import leave_one_out, synthetic
from rmixer.data.alimama import LENGTH
from rmixer.data.avazu import COLUMNS as AVAZU_COLUMNS
from rmixer.data.split import mix
from rmixer.data.synthetic import normal_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Published(Protocol):
    """A generator of one data set's form.

    Attributes:
        rows: of the published data set.
    """

    rows: ClassVar[int]

    @staticmethod
    def text(sizes: Mapping[str, int]) -> Iterator[str]:
        """The file, many lines at a time."""

    @staticmethod
    def probabilities(sizes: Mapping[str, int]) -> Iterator[Floats]:
        """Of label 1, for each row that the format makes of the file."""


class Avazu:
    """Skewed ids of Avazu's columns; effects of ids, and of pairs that no sum of effects has.

    `SIZES` are the distinct values of Kaggle's training file, of which a caller may want fewer.
    """

    rows: ClassVar[int] = 40_428_967
    SIZES: ClassVar[dict[str, int]] = {
        "C1": 7, "banner_pos": 7, "site_id": 4737, "site_domain": 7745, "site_category": 26,
        "app_id": 8552, "app_domain": 559, "app_category": 36, "device_id": 2_686_408,
        "device_ip": 6_729_486, "device_model": 8251, "device_type": 5, "device_conn_type": 4,
        "C14": 2626, "C15": 8, "C16": 9, "C17": 435, "C18": 4, "C19": 68, "C20": 172, "C21": 60,
    }  # fmt: skip
    PAIRS = (("site_category", "app_category"), ("C18", "C21"), ("banner_pos", "C16"))

    @staticmethod
    def text(sizes: Mapping[str, int]) -> Iterator[str]:
        """See `Published`."""
        yield ",".join(AVAZU_COLUMNS) + "\n"
        number = 0
        for index, (key, label, _) in enumerate(Avazu._chunks(sizes)):
            generator = np.random.default_rng([sizes["seed"], 31, index])
            hours = generator.integers(0, 240, len(label))
            rows = (mix(key) & np.uint64(0xFFFFFFFF)).tolist()
            lines = []
            for row, click, hour in zip(rows, label.tolist(), hours.tolist(), strict=True):
                number += 1
                day, of_day = divmod(hour, 24)
                ids = ",".join(f"{word:08x}" for word in row)
                lines.append(f"{number},{click},1410{21 + day}{of_day:02d},{ids}\n")
            yield "".join(lines)

    @staticmethod
    def probabilities(sizes: Mapping[str, int]) -> Iterator[Floats]:
        """See `Published`."""
        for _, _, probability in Avazu._chunks(sizes):
            yield probability

    @staticmethod
    def _chunks(
        sizes: Mapping[str, int],
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint8], Floats]]:
        names = list(Avazu.SIZES)
        many = np.minimum(list(Avazu.SIZES.values()), sizes["max_table_rows"])
        for index, rows in synthetic.chunk_sizes(sizes["rows"]):
            generator = np.random.default_rng([sizes["seed"], 3, index])
            rank = (many * generator.random((rows, len(many))) ** 3).astype(np.uint64)
            key = rank + (np.arange(len(many), dtype=np.uint64) << np.uint64(40))
            weight = np.array((0.35, 0.2, 0.05))[np.searchsorted((1_000, 20_000), many)]
            logits = -1.6 + (weight * normal_hash(key, 23)).sum(1)
            for a, b in Avazu.PAIRS:
                i, j = names.index(a), names.index(b)
                logits += 0.6 * normal_hash(key[:, i], 25) * normal_hash(key[:, j], 27)
            yield key, *_drawn(generator, logits)


class Amazon:
    """A user's past and one more item: the label is about how much of the past is of its category.

    Electronics has 192,403 users, 63,001 items, 801 categories (Zhou et al., KDD 2018, table 1).
    """

    rows: ClassVar[int] = 1_689_188

    @staticmethod
    def text(sizes: Mapping[str, int]) -> Iterator[str]:
        """See `Published`."""
        for rows in _behaviour(sizes):
            yield _lines(rows, (), (rows.label_B,))

    @staticmethod
    def probabilities(sizes: Mapping[str, int]) -> Iterator[Floats]:
        """See `Published`."""
        for rows in _behaviour(sizes):
            yield rows.probability_B


class KDD2012:
    """An ad at one of three positions: how well it fits the past, and how well one looks there."""

    rows: ClassVar[int] = 149_639_105
    POSITIONS: ClassVar[int] = 3

    @staticmethod
    def text(sizes: Mapping[str, int]) -> Iterator[str]:
        """See `Published`."""
        for rows, places, past_places, label, _ in KDD2012._chunks(sizes):
            yield _lines(rows, (past_places,), (places, label))

    @staticmethod
    def probabilities(sizes: Mapping[str, int]) -> Iterator[Floats]:
        """See `Published`."""
        for *_, probability in KDD2012._chunks(sizes):
            yield probability

    @staticmethod
    def _chunks(sizes: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
        for index, rows in enumerate(_behaviour(sizes)):
            generator = np.random.default_rng([sizes["seed"], 5, index])
            places = generator.integers(1, KDD2012.POSITIONS + 1, len(rows.label_B))
            past_places = generator.integers(1, KDD2012.POSITIONS + 1, len(rows.history))
            fit = np.log(rows.probability_B / (1 - rows.probability_B))
            yield rows, places, past_places, *_drawn(generator, fit + 1.2 * (2 - places))


class Alimama:
    """Behaviours on categories and brands, and an ad: what was bought counts more than a look."""

    rows: ClassVar[int] = 26_557_961

    @staticmethod
    def text(sizes: Mapping[str, int]) -> Iterator[str]:
        """See `Published`."""
        for rows, kinds, profile, label, _ in Alimama._chunks(sizes):
            past = (kinds, rows.history_categories, 1 + rows.history % 97)
            words = [_words(part) for part in past]
            item = rows.item_B
            ad = (item, rows.category_B, item % 50, item % 40, 1 + item % 97, 1 + item % 7)
            fields = np.column_stack([profile[:, :9], *ad, profile[:, 9], label]).tolist()
            lines = []
            ends = np.cumsum(rows.length_B).tolist()
            for end, length, row in zip(ends, rows.length_B.tolist(), fields, strict=True):
                kept = min(length, LENGTH)
                empty = ["0"] * (LENGTH - kept)
                cells = [cell for part in words for cell in (*empty, *part[end - kept : end])]
                mask = [*empty, *["1"] * kept]
                lines.append(",".join([*cells, *mask, *mask, *map(str, row)]) + "\n")
            yield "".join(lines)

    @staticmethod
    def probabilities(sizes: Mapping[str, int]) -> Iterator[Floats]:
        """See `Published`."""
        for *_, probability in Alimama._chunks(sizes):
            yield probability

    @staticmethod
    def _chunks(sizes: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
        for index, rows in enumerate(_behaviour(sizes)):
            generator = np.random.default_rng([sizes["seed"], 7, index])
            count = len(rows.label_B)
            kinds = generator.integers(1, 5, len(rows.history))  # 1: looked at, 4: bought
            profile = generator.integers(0, (5000, 90, 13, 3, 7, 4, 4, 2, 5, 2), (count, 10))
            owner = np.repeat(np.arange(count), rows.length_B)
            from_end = np.repeat(np.cumsum(rows.length_B), rows.length_B) - np.arange(len(owner))
            weight = kinds * (from_end <= LENGTH)
            same = rows.history_categories == rows.category_B[owner]
            share = np.bincount(owner, same * weight, minlength=count)
            part = share / np.maximum(1, np.bincount(owner, weight, minlength=count))
            age = normal_hash(profile[:, 4].astype(np.uint64), 29)
            yield rows, kinds, profile, *_drawn(generator, -1.9 + 8.0 * part + 0.5 * age)


class Beauty:
    """Users who go from one group of items to the next one, mostly.

    22,363 users, 12,101 items, 198,502 reviews in the 5-core of Amazon's Beauty (McAuley et al.).
    Rows are those that the format makes: two per user.
    """

    rows: ClassVar[int] = 2 * 22_363
    #: How often the next item is of the group after the one of the last.
    NEXT: ClassVar[float] = 0.8

    @staticmethod
    def text(sizes: Mapping[str, int]) -> Iterator[str]:
        """See `Published`."""
        for first, walks in Beauty._users(sizes):
            yield "".join(
                f"{user} {item}\n"
                for user, walk in enumerate(walks, start=first)
                for item in walk.tolist()
            )

    @staticmethod
    def probabilities(sizes: Mapping[str, int]) -> Iterator[Floats]:
        """See `Published`: of being the next item and not one that was drawn."""
        walks = [walk for _, some in Beauty._users(sizes) for walk in some]
        user_N = np.repeat(np.arange(1, len(walks) + 1), [len(walk) for walk in walks])
        item_N = np.concatenate(walks)
        items, code_N = np.unique(item_N, return_inverse=True)
        taken = leave_one_out.Interactions(user_N=user_N, item_N=code_N, items=len(items))
        groups = sizes["categories"]
        for rows in leave_one_out.rows(taken, max_length=len(item_N)):
            before = item_N[rows.past_L[np.cumsum(rows.length_B) - 1]]
            goes = (items[rows.item_B] - 1) % groups == before % groups
            chance = Beauty.NEXT * groups * goes + (1 - Beauty.NEXT)
            owner = np.repeat(np.arange(len(rows.item_B)), rows.length_B)
            again = np.bincount(owner, code_N[rows.past_L] == rows.item_B[owner], len(rows.item_B))
            yield np.where(again > 0, 1.0, chance / (chance + 1.0))  # one's own is never drawn

    @staticmethod
    def _users(sizes: Mapping[str, int]) -> Iterator[tuple[int, list[Integers]]]:
        groups = sizes["categories"]
        members = max(1, sizes["items"] // groups)
        first = 1
        for index, count in synthetic.chunk_sizes(max(1, sizes["rows"] // 2)):
            generator = np.random.default_rng([sizes["seed"], 9, index])
            walks = []
            for length in generator.integers(3, 2 * sizes["history"] + 3, count).tolist():
                follows = generator.random(length) < Beauty.NEXT
                steps = np.where(follows, 1, generator.integers(0, groups, length))
                group = np.cumsum(steps) % groups
                walks.append(1 + group + groups * generator.integers(0, members, length))
            yield first, walks
            first += count


#: What ``like`` may name beside the shapes of `rmixer.data.synthetic`, by the format that reads it.
PUBLISHED: dict[str, type[Published]] = {
    "alimama": Alimama,
    "amazon": Amazon,
    "avazu": Avazu,
    "beauty": Beauty,
    "kdd2012": KDD2012,
}


def _behaviour(sizes: Mapping[str, int]) -> Iterator[synthetic.BehaviourRows]:
    shape = {key: sizes[key] for key in ("items", "categories", "history")}
    return synthetic.behaviour(sizes["rows"], sizes["seed"], **shape)


def _lines(
    rows: synthetic.BehaviourRows, more_past: tuple[Integers, ...], more: tuple[Any, ...]
) -> str:
    """Histories of items, categories and more; item, category and more; between semicolons."""
    past = [_words(part) for part in (rows.history, rows.history_categories, *more_past)]
    fields = np.column_stack([rows.item_B, rows.category_B, *more]).tolist()
    lines, start = [], 0
    for length, row in zip(rows.length_B.tolist(), fields, strict=True):
        stop = start + length
        lists = [" ".join(words[start:stop]) for words in past]
        lines.append(";".join([*lists, *map(str, row)]) + "\n")
        start = stop
    return "".join(lines)


def _drawn(generator: np.random.Generator, logits: Floats) -> tuple[NDArray[np.uint8], Floats]:
    probability = 1.0 / (1.0 + np.exp(-logits))
    return (generator.random(len(logits)) < probability).astype(np.uint8), probability


def _words(numbers: Integers) -> list[str]:
    words: list[str] = numbers.astype(str).tolist()
    return words
