"""KDD Cup 2012, track 2 (Tencent's search ads), as DPIN reads it.

    hist_items;hist_cates;hist_positions;item;cate;position;label

without a header, ids in a list between spaces: the form of the sample of PaddleRec
(models/rank/dpin). A row is one ad that was shown at a position, with the ads that the user clicked
before and where they stood.
"""

from __future__ import annotations

from rmixer.data.fixed import FixedText
from rmixer.data.schema import Schema, SequenceColumn


class KDD2012(FixedText):
    """The format ``kdd2012``."""

    SCHEMA = Schema(
        label="label",
        columns=(
            "hist_items",
            "hist_cates",
            "hist_positions",
            "item",
            "cate",
            "position",
            "label",
        ),
        delimiter=";",
        sparse=("item", "cate", "position"),
        sequences=(
            SequenceColumn(name="hist_items", shares="item"),
            SequenceColumn(name="hist_cates", shares="cate"),
            SequenceColumn(name="hist_positions", shares="position"),
        ),
    )
