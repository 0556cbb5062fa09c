"""Rows shaped like Criteo's: see `rmixer.data.synthetic.criteo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rmixer.data import synthetic
from rmixer.data.checks import Problem
from rmixer.data.criteo import SCHEMA
from rmixer.data.schema import Schema
from rmixer.data.shapes import Drawn, Sizes


class CriteoShape:
    """Criteo's Kaggle data.

    `max_table_rows` bounds the distinct ids of a column; `pair_percent` weighs the effects of
    pairs.
    """

    published_rows = 45_840_617
    defaults: ClassVar[Sizes] = {
        "max_table_rows": 100_000,
        "pair_percent": synthetic.PAIR_PERCENT,
    }
    schema: Schema = SCHEMA
    data: ClassVar[Mapping[str, Any]] = {"format": "criteo"}

    def check(self, sizes: Sizes) -> list[Problem]:
        """See `Shape`."""
        del sizes
        return []

    def rows(self, sizes: Sizes) -> Iterator[Drawn]:
        """See `Shape`."""
        for rows in _made(sizes):
            yield Drawn(
                label_B=rows.label_B,
                probability_B=rows.probability_B,
                fields=tuple(np.ascontiguousarray(rows.id_BF.T)),
                dense_BN=rows.dense_BN,
            )

    def text(self, sizes: Sizes) -> Iterator[str]:
        """See `Shape`."""
        for rows in _made(sizes):
            lines = []
            dense, ids = rows.dense_BN.tolist(), rows.id_BF.tolist()
            for label, numbers, row in zip(rows.label_B.tolist(), dense, ids, strict=True):
                fields = [str(label)]
                fields += ["" if n != n else str(int(n)) for n in numbers]  # noqa: PLR0124
                fields += ["" if value < 0 else f"{value:08x}" for value in row]
                lines.append("\t".join(fields))
            yield "\n".join(lines) + "\n"


def _made(sizes: Sizes) -> Iterator[synthetic.CriteoRows]:
    return synthetic.criteo(
        sizes["rows"], sizes["seed"], sizes["max_table_rows"], sizes["pair_percent"]
    )
