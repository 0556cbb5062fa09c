"""Amazon reviews as DIN reads them: a user's past, one more item, and whether it was reviewed next.

    hist_items;hist_cates;item;cate;label

without a header, ids in a list between spaces: the form of the Electronics sample of PaddleRec
(models/rank/din), made from the reviews of McAuley et al. (SIGIR 2015).
"""

from __future__ import annotations

from rmixer.data.fixed import FixedText
from rmixer.data.schema import Schema, SequenceColumn


class Amazon(FixedText):
    """The format ``amazon``."""

    SCHEMA = Schema(
        label="label",
        columns=("hist_items", "hist_cates", "item", "cate", "label"),
        delimiter=";",
        sparse=("item", "cate"),
        sequences=(
            SequenceColumn(name="hist_items", shares="item", max_length=100),
            SequenceColumn(name="hist_cates", shares="cate", max_length=100),
        ),
    )
