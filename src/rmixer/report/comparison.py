"""``rmixer simulate`` for the terminal: the policies side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmixer.report.text import columns, one_line
from rmixer.resources import format_seconds

_TITLES = (
    "policy", "makespan", "x sequential", "x bound", "x attainable", "mean JCT", "p99 JCT",
    "mean wait", "rates", "OOMs", "failed",
)  # fmt: skip


def render_comparison(document: Mapping[str, Any]) -> str:
    """The table of a comparison, and the limits above it."""
    machine = document["machine"]
    head = (
        f"{document['jobs']} jobs on {one_line(machine['name'])}, world {document['world']}: "
        f"{format_seconds(document['sequential_seconds'])} one at a time{_limits(document)}"
    )
    rows = [_TITLES, *(_row(one) for one in document["policies"])]
    return "\n".join([head, "", *columns(rows, "<" + ">" * (len(_TITLES) - 1))])


def _limits(document: Mapping[str, Any]) -> str:
    parts = []
    if document["bound_seconds"] is not None:
        cause = f" ({document['bottleneck']})" if document["bottleneck"] else ""
        parts.append(f"nothing beats {format_seconds(document['bound_seconds'])}{cause}")
    if document["attainable_seconds"] is not None:
        parts.append(f"{format_seconds(document['attainable_seconds'])} is attainable")
    return "".join(f"; {part}" for part in parts)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one_line(one["policy"]),
        format_seconds(one["makespan_seconds"]),
        _ratio(one["speedup_over_sequential"]),
        _ratio(one["over_bound"]),
        _ratio(one["over_attainable"]),
        _seconds(one["mean_jct_seconds"]),
        _seconds(one["p99_jct_seconds"]),
        _seconds(one["mean_queueing_seconds"]),
        _ratio(one["normalized_throughput"]),
        str(one["oom_count"]),
        str(one["failed"]),
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
