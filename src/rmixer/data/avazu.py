"""Avazu's click logs, as Kaggle gave them in 2014: a header and 24 columns between commas.

    id,click,hour,C1,banner_pos,site_id,..,device_conn_type,C14,..,C21

``hour`` (YYMMDDHH) becomes two columns, ``hour_of_day`` and ``weekday`` (0: Monday); ``id`` is left
out. The competition's test file has no ``click``: it can be predicted, not trained on.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rmixer.data.fixed import FixedText
from rmixer.data.schema import Schema
from rmixer.data.table import NotRightError, Table
from rmixer.data.text import first_line
from rmixer.errors import DataError

if TYPE_CHECKING:
    import polars as pl

    from rmixer.data.format import Chunk

_PLAIN = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
COLUMNS = ("id", "click", "hour", *_PLAIN)
_FORM = "%y%m%d%H"


class AvazuTable(Table):
    """Takes the hour apart."""

    def chunk(self, frame: pl.DataFrame) -> Chunk:
        """See `Table.chunk`."""
        import polars as pl  # noqa: PLC0415

        text = pl.col("hour").cast(pl.String)
        time = text.add("00").str.strptime(pl.Datetime, _FORM + "%M", strict=False)
        frame = frame.with_columns(
            time.dt.hour().cast(pl.String).alias("hour_of_day"),
            (time.dt.weekday() - 1).cast(pl.String).alias("weekday"),
        )
        if frame["hour_of_day"].null_count():
            raise NotRightError("an hour")
        return Table.chunk(self, frame)

    def fault(self, name: str, value: str) -> str | None:
        """See `Table.fault`."""
        if name != "hour":
            return Table.fault(self, name, value)
        try:
            datetime.strptime(value, _FORM)  # noqa: DTZ007 - the logs do not say where
        except ValueError:
            return "is no hour; it must be YYMMDDHH, for example 14102100"
        return None


class Avazu(FixedText):
    """The format ``avazu``."""

    table_class = AvazuTable
    SCHEMA = Schema(label="click", sparse=("hour_of_day", "weekday", *_PLAIN))

    def _needed(self) -> tuple[str, ...]:
        return ("click", "hour", *_PLAIN)

    def _table(self, path: Path, *, label_needed: bool) -> Table:
        line = first_line(path)
        columns = tuple(name.strip().strip('"') for name in line.split(","))
        if "hour" not in columns:
            raise DataError(
                f"has no header; it must be {','.join(COLUMNS[:4])},..,C21", path=path, line=1
            )
        self._check_columns(columns, path, label_needed=label_needed)
        return self.table_class(
            schema=self.schema,
            columns=columns,
            delimiter=",",
            skip_lines=1,
            labelled="click" in columns,
        )
