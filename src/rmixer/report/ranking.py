"""The jobs as comma-separated values, ranked: what a sweep was run for."""

from __future__ import annotations

import csv
import io
from typing import Any

from rmixer.errors import UnknownNameError
from rmixer.report.text import one_line

_COLUMNS = ("id", "name", "state", "tries", "seconds", "samples", "samples_per_second")
_TEXT = frozenset({"id", "name", "state"})
_LESS_IS_BETTER = ("loss", "seconds", "error", "rmse", "mae", "mse", "tries")


def metric_names(document: dict[str, Any]) -> list[str]:
    """The metrics that any job has: ``auc`` and ``logloss`` first, then in order of appearance."""
    names = dict.fromkeys(name for job in document["jobs"] for name in job["metrics"])
    first = [name for name in ("auc", "logloss") if name in names]
    return [*first, *(name for name in names if name not in first)]


def to_csv(document: dict[str, Any], sort: str | None = None) -> str:
    """One line per job: id, name, state, tries, seconds, samples, samples_per_second, metrics.

    Args:
        document: of a run.
        sort: a column to rank by, the best first: ascending for losses, errors, seconds and text,
            descending for all others. Jobs without a value come last. None keeps the order of
            submission.

    Raises:
        UnknownNameError: no such column.
    """
    metrics = metric_names(document)
    columns = list(dict.fromkeys([*_COLUMNS, *metrics]))
    rows = [_row(job) for job in document["jobs"]]
    if sort is not None:
        if sort not in columns:
            raise UnknownNameError("column", sort, columns)
        rows = rank(rows, sort)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(one_line, columns))
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def rank(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """The rows by that column, the best first; rows without a number (or text) there come last."""
    kind = str if column in _TEXT else int | float
    valued = [row for row in rows if isinstance(row.get(column), kind)]
    others = [row for row in rows if not isinstance(row.get(column), kind)]
    descending = column not in _TEXT and not column.endswith(_LESS_IS_BETTER)
    return sorted(valued, key=lambda row: row[column], reverse=descending) + others


def _row(job: dict[str, Any]) -> dict[str, Any]:
    return {**job["metrics"], **{column: job[column] for column in _COLUMNS}}


def _cell(value: Any) -> Any:
    return one_line(value) if isinstance(value, str) else value
