"""Alimama's display ads on Taobao, as DMR reads them: 267 numbers between commas, no header.

Five times 50 numbers of the past (behaviour, category, brand, whether the cell is filled, whether
it may be matched), then 16 columns of user, ad and place, and the label: the form of the sample of
PaddleRec (models/rank/dmr), made from Tianchi's data set 56.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmixer.data.fixed import FixedText
from rmixer.data.schema import Schema, SequenceColumn
from rmixer.data.table import NotRightError, Table

if TYPE_CHECKING:
    import polars as pl

    from rmixer.data.detect import Sample
    from rmixer.data.format import Chunk

LENGTH = 50
_PARTS = ("btag", "cate", "brand", "mask", "match")
PAST = tuple(f"{part}_{i}" for part in _PARTS for i in range(LENGTH))
_USER = (
    "userid",
    "cms_segid",
    "cms_group_id",
    "final_gender_code",
    "age_level",
    "pvalue_level",
    "shopping_level",
    "occupation",
    "new_user_class_level",
)
_AD = ("adgroup_id", "cate_id", "campaign_id", "customer", "brand")
COLUMNS = (*PAST, *_USER, *_AD, "price", "pid", "clk")


class AlimamaTable(Table):
    """Gathers the filled cells of the past into lists."""

    def chunk(self, frame: pl.DataFrame) -> Chunk:
        """See `Table.chunk`; a frame may also have the lists themselves."""
        import polars as pl  # noqa: PLC0415

        if PAST[0] in frame.columns:
            right = frame.select(
                _filled(i).fill_null("").is_in(["0", "1"]).all() for i in range(LENGTH)
            )
            if not all(right.row(0)):
                raise NotRightError("a mask")
            lists = [
                pl.concat_list(
                    pl.when(_filled(i) == "1").then(pl.col(f"{part}_{i}").cast(pl.String))
                    for i in range(LENGTH)
                )
                .list.drop_nulls()
                .alias(f"hist_{part}")
                for part in _PARTS[:3]
            ]
            frame = frame.with_columns(lists)
        return Table.chunk(self, frame)

    def fault(self, name: str, value: str) -> str | None:
        """See `Table.fault`."""
        if name.startswith("mask_") and value not in ("0", "1"):
            return "does not say whether the cell is filled; it must be 0 or 1"
        return Table.fault(self, name, value)


class Alimama(FixedText):
    """The format ``alimama``."""

    table_class = AlimamaTable
    SCHEMA = Schema(
        label="clk",
        columns=COLUMNS,
        delimiter=",",
        dense=("price",),
        sparse=(*_USER, *_AD, "pid"),
        sequences=(
            SequenceColumn(name="hist_btag"),
            SequenceColumn(name="hist_cate", shares="cate_id"),
            SequenceColumn(name="hist_brand", shares="brand"),
        ),
    )

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        rows = sample.fields(",")
        return {} if rows and all(len(row) == len(COLUMNS) for row in rows) else None


def _filled(i: int) -> pl.Expr:
    import polars as pl  # noqa: PLC0415

    return pl.col(f"mask_{i}").cast(pl.String)
