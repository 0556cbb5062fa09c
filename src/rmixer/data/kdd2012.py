"""KDD Cup 2012, track 2: ads of Tencent's search, where they stood, whether they were clicked.

Two forms, chosen by ``form``:

* ``dpin``: ``hist_items;hist_cates;hist_positions;item;cate;position;label``, ids in a list between
  spaces: the form of the sample of PaddleRec (models/rank/dpin). A row is one ad (item) of an
  advertiser (cate), with the ads that the user clicked before and where they stood.
* ``raw``: the published ``training.txt``, twelve columns between tabs: clicks, impressions, ids.
  A line of n impressions and c clicks becomes n rows, c of them with label 1: the likelihood and
  the AUC are those of the impressions. The published test file, which begins with the third
  column, can be predicted; each of its lines is a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.checks import Problem
from rmixer.data.fixed import FixedText
from rmixer.data.schema import DataSpec, Schema, SequenceColumn
from rmixer.data.table import NotRightError, Table
from rmixer.data.text import first_line
from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    import polars as pl

    from rmixer.data.detect import Sample
    from rmixer.data.format import Chunk

FORMS = ("dpin", "raw")
RAW_IDS = (
    "display_url",
    "ad",
    "advertiser",
    "depth",
    "position",
    "query",
    "keyword",
    "title",
    "description",
    "user",
)
RAW_COLUMNS = ("click", "impression", *RAW_IDS)
RAW_SCHEMA = Schema(label="click", columns=RAW_COLUMNS, delimiter="\t", sparse=RAW_IDS)
#: More impressions than this among some thousand lines are no impressions.
_MOST = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpressionTable(Table):
    """Each line as many rows as it has impressions."""

    def chunk(self, frame: pl.DataFrame) -> Chunk:
        """See `Table.chunk`."""
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        if "impression" not in frame.columns:
            return Table.chunk(self, frame)
        clicks, shown = (self._dense(frame[name]) for name in RAW_COLUMNS[:2])
        right = (clicks >= 0) & (clicks <= shown) & (shown >= 1)
        if not (right & (clicks == np.floor(clicks)) & (shown == np.floor(shown))).all():
            raise NotRightError("clicks or impressions")
        if shown.sum() > _MOST:
            raise NotRightError(f"more than {_MOST} impressions in {len(shown)} lines")
        times = shown.astype(np.int64)
        number = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        label = number < np.repeat(clicks, times)
        rows = frame[np.repeat(np.arange(len(times)), times)]
        return Table.chunk(self, rows.with_columns(click=pl.Series(label.astype(np.uint8))))

    def _diagnose_row(self, row: list[str], path: Path, line: int) -> None:
        super(ImpressionTable, self)._diagnose_row(row, path, line)
        if "impression" not in self.columns:
            return
        for name, value in zip(RAW_COLUMNS, row[:2], strict=False):
            if not value.isdigit():
                message = f"{value!r} is no whole number of at least 0"
                raise DataError(message, path=path, line=line, column=name)
        if not int(row[0]) <= int(row[1]) >= 1:
            message = f"{row[0]} clicks of {row[1]} impressions; at least 1 is needed, and as many"
            raise DataError(f"{message} as clicks", path=path, line=line, column="impression")

    def fault(self, name: str, value: str) -> str | None:
        """See `Table.fault`; the label is a number of clicks here."""
        return None if name == "click" else Table.fault(self, name, value)


class KDD2012(FixedText):
    """The format ``kdd2012``."""

    options: tuple[str, ...] = ("path", "form")
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

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec)
        if spec.options.get("form") == "raw":
            self.schema, self.table_class = RAW_SCHEMA, ImpressionTable

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        if not sample.lines:
            return None
        width = len(KDD2012.SCHEMA.used)
        if all(len(row) == width and row[-1] in ("0", "1") for row in sample.fields(";")):
            return {}
        raw = all(
            len(row) == len(RAW_COLUMNS)
            and all(word.isdigit() for word in row[:2])
            and int(row[0]) <= int(row[1]) >= 1
            for row in sample.fields("\t")
        )
        return {"form": "raw"} if raw else None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = FixedText.check(data)
        form = data.get("form", FORMS[0])
        if form not in FORMS:
            problems.append(("form", unknown_name("form", str(form), FORMS)))
        return problems

    def _table(self, path: Path, *, label_needed: bool) -> Table:
        """The table, after a look whether the file is of this form."""
        raw = self.schema is RAW_SCHEMA
        line = first_line(path)
        tabs, semicolons = line.count("\t"), line.count(";")
        if (tabs == 0 < semicolons) if raw else (semicolons == 0 < tabs):
            message = f"fields are between {'semicolons' if raw else 'tabs'}; write form: "
            raise DataError(message + FORMS[not raw], path=path, line=1)
        if raw and not label_needed and tabs == len(RAW_IDS) - 1:
            return self.table_class(
                schema=self.schema, columns=RAW_IDS, delimiter="\t", labelled=False
            )
        return super()._table(path, label_needed=label_needed)
