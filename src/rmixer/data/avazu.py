"""Avazu's click logs, columns between commas, in one of three forms, chosen by ``form``.

* ``kaggle``, as they were given in 2014, with a header:
  ``id,click,hour,C1,banner_pos,site_id,..,device_conn_type,C14,..,C21``. ``hour`` (YYMMDDHH)
  becomes two columns, ``hour_of_day`` and ``weekday`` (0: Monday); ``id`` is left out. The
  competition's test file has no ``click``: it can be predicted, not trained on.
* ``rechub``: a header ``label,feat_1,..,feat_22`` and ids numbered over all columns (torch-rechub).
* ``flen``: 24 whole numbers without a header, numbered column by column, the label last
  (PaddleRec, models/rank/flen). ``hour`` is the number of an hour; ``id`` is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data.checks import Problem
from rmixer.data.fixed import FixedText
from rmixer.data.schema import DataSpec, Schema
from rmixer.data.table import NotRightError, Table
from rmixer.data.text import first_line
from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    import polars as pl

    from rmixer.data.detect import Sample
    from rmixer.data.format import Chunk

_PLAIN = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
COLUMNS = ("id", "click", "hour", *_PLAIN)
_HOUR = "%y%m%d%H"

FORMS = ("kaggle", "rechub", "flen")
RECHUB_COLUMNS = ("label", *(f"feat_{i}" for i in range(1, 23)))
RECHUB = Schema(label="label", sparse=RECHUB_COLUMNS[1:])
#: In the order that PaddleRec's preprocess_data.py writes: ad, device, app, site, time, label.
FLEN_COLUMNS = (
    "id", "C1", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21", "device_id", "device_ip",
    "device_model", "device_type", "app_id", "app_domain", "app_category", "banner_pos", "site_id",
    "site_domain", "site_category", "device_conn_type", "hour", "click",
)  # fmt: skip
FLEN = Schema(label="click", columns=FLEN_COLUMNS, delimiter=",", sparse=FLEN_COLUMNS[1:-1])


class AvazuTable(Table):
    """Takes the hour apart."""

    def chunk(self, frame: pl.DataFrame) -> Chunk:
        """See `Table.chunk`."""
        import polars as pl  # noqa: PLC0415

        text = pl.col("hour").cast(pl.String)
        time = text.add("00").str.strptime(pl.Datetime, _HOUR + "%M", strict=False)
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
            datetime.strptime(value, _HOUR)  # noqa: DTZ007 - the logs do not say where
        except ValueError:
            return "is no hour; it must be YYMMDDHH, for example 14102100"
        return None


class Avazu(FixedText):
    """The format ``avazu``."""

    options: tuple[str, ...] = ("path", "form")
    table_class: type[Table] = AvazuTable
    SCHEMA = Schema(label="click", sparse=("hour_of_day", "weekday", *_PLAIN))

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        self.form: str = spec.options.get("form", FORMS[0])
        if self.form != FORMS[0]:
            self.schema = RECHUB if self.form == "rechub" else FLEN
            self.table_class = Table

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        words = tuple(sample.lines[0].split(",")) if sample.lines else ()
        form = form_of(words)
        if form == "kaggle" and "C21" not in words:
            return None
        if form == "flen" and any(row[-1] not in ("0", "1") for row in sample.fields(",")):
            return None
        return None if form is None else {"form": form}

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = FixedText.check(data)
        form = data.get("form", FORMS[0])
        if form not in FORMS:
            problems.append(("form", unknown_name("form", str(form), FORMS)))
        return problems

    def _needed(self) -> tuple[str, ...]:
        return ("click", "hour", *_PLAIN) if self.form == FORMS[0] else self.schema.used

    def _table(self, path: Path, *, label_needed: bool) -> Table:
        columns = tuple(name.strip().strip('"') for name in first_line(path).split(","))
        found = form_of(columns)
        if found not in (self.form, None):
            raise DataError(f"its form is another one; write form: {found}", path=path, line=1)
        if self.form == "flen":
            return super()._table(path, label_needed=label_needed)
        if found is None:
            header = COLUMNS if self.form == FORMS[0] else RECHUB_COLUMNS
            message = f"has no header; it must be {','.join(header[:4])},..,{header[-1]}"
            raise DataError(message, path=path, line=1)
        self._check_columns(columns, path, label_needed=label_needed)
        return self.table_class(
            schema=self.schema,
            columns=columns,
            delimiter=",",
            skip_lines=1,
            labelled=self.schema.label in columns,
        )


def form_of(words: tuple[str, ...]) -> str | None:
    """The form of a file by the words of its first line; None: none of them."""
    if "hour" in words:
        return "kaggle"
    if RECHUB_COLUMNS[1] in words:
        return "rechub"
    numbers = len(words) == len(FLEN_COLUMNS) and all(word.isdigit() for word in words)
    return "flen" if numbers else None
