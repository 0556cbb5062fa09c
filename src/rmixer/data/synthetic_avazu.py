"""Rows shaped like Avazu's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmixer.data.avazu import COLUMNS, Avazu
from rmixer.data.checks import Problem
from rmixer.data.schema import Schema
from rmixer.data.shapes import Drawn, Sizes, draw, sigmoid
from rmixer.data.split import mix
from rmixer.data.synthetic import chunk_sizes, normal_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Distinct values in Kaggle's training file of 40,428,967 rows, as hpcaitech/CachedEmbedding has
#: them (recsys/datasets/avazu.py); they leave out id and hour.
SIZES = {
    "C1": 7, "banner_pos": 7, "site_id": 4737, "site_domain": 7745, "site_category": 26,
    "app_id": 8552, "app_domain": 559, "app_category": 36, "device_id": 2_686_408,
    "device_ip": 6_729_486, "device_model": 8251, "device_type": 5, "device_conn_type": 4,
    "C14": 2626, "C15": 8, "C16": 9, "C17": 435, "C18": 4, "C19": 68, "C20": 172, "C21": 60,
}  # fmt: skip
#: Columns of which each pair of ids has an effect of its own: all of small tables.
PAIRS = (("site_category", "app_category"), ("C18", "C21"), ("banner_pos", "C16"))
# An id of a small table is seen often enough to be learned, so it weighs more.
_LARGE = (1_000, 20_000)
_WEIGHTS = np.array((0.35, 0.2, 0.05))
_HOURS = 240  # ten days from 2014-10-21, a Tuesday


class AvazuShape:
    """Skewed ids; effects of ids, and of pairs that no sum of effects has.

    `max_table_rows` bounds the distinct ids of a column; `pair_percent` weighs the effects of
    pairs.
    """

    published_rows = 40_428_967
    defaults: ClassVar[Sizes] = {"max_table_rows": 100_000, "pair_percent": 60}
    schema: Schema = Avazu.SCHEMA
    data: ClassVar[Mapping[str, Any]] = {"format": "avazu"}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        del sizes
        return []

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`."""
        for rows, _ in _made(sizes):
            yield rows

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        yield ",".join(COLUMNS) + "\n"
        number = 0
        for rows, hour_B in _made(sizes):
            days, hours = np.divmod(hour_B, 24)
            ids = np.stack(rows.fields[2:], 1).tolist()
            columns = zip(rows.label_B.tolist(), days.tolist(), hours.tolist(), ids, strict=True)
            yield "".join(
                f"{row},{label},1410{21 + day}{hour:02d},{','.join(words)}\n"
                for row, (label, day, hour, words) in enumerate(columns, start=number + 1)
            )
            number += len(rows)


def _made(sizes: Sizes) -> Iterator[tuple[Drawn, NDArray[np.int64]]]:
    """Rows, and the hour of each, from 0."""
    names = list(SIZES)
    many = np.minimum(list(SIZES.values()), sizes["max_table_rows"])
    for index, rows in chunk_sizes(sizes["rows"]):
        generator = np.random.default_rng([sizes["seed"], 23, index])
        rank = (many * generator.random((rows, len(many))) ** 3).astype(np.uint64)
        key = rank + (np.arange(len(many), dtype=np.uint64) << np.uint64(40))
        logits = -1.6 + (_WEIGHTS[np.searchsorted(_LARGE, many)] * normal_hash(key, 23)).sum(1)
        for a, b in PAIRS:
            i, j = names.index(a), names.index(b)
            latent = normal_hash(key[:, i], 25), normal_hash(key[:, j], 27)
            logits += sizes["pair_percent"] / 100 * latent[0] * latent[1]
        label, probability = draw(generator, sigmoid(logits))
        hour = generator.integers(0, _HOURS, rows)
        ids = (_hexadecimal(mix(column)) for column in np.ascontiguousarray(key.T))
        fields = (hour % 24, (1 + hour // 24) % 7, *ids)
        yield Drawn(label_B=label, probability_B=probability, fields=fields), hour


def _hexadecimal(values: NDArray[np.uint64]) -> NDArray[np.str_]:
    """The lower 32 bits as 8 digits each."""
    digits = (values & np.uint64(0xFFFFFFFF)).astype(">u4").tobytes().hex().encode()
    return np.frombuffer(digits, "S8").astype(np.str_)
