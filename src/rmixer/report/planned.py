"""``rmixer plan`` for the terminal: what starts where, what waits and why, and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmixer.report.text import columns, one_line
from rmixer.resources import format_bytes, format_seconds

_TITLES = ("job", "now", "threads", "memory", "on device", "rate", "starts", "ends", "why it waits")
#: So many names are listed.
_NAMES = 5


def render_plan(document: Mapping[str, Any]) -> str:
    """The table of a plan, the limits above it, and a job's explanation below."""
    rows = [_TITLES, *(_row(job) for job in document["jobs"])]
    parts = [_head(document), "", *columns(rows, "<<>>>>>><")]
    if "explained" in document:
        parts += ["", *_explanation(document["explained"])]
    return "\n".join(parts)


def _head(document: Mapping[str, Any]) -> str:
    counts = f"{document['starts_now']} start now, {document['waiting']} wait"
    where = f"{one_line(document['policy'])} on {one_line(document['machine'])}"
    lines = [f"{where}: {counts}; nothing was started"]
    if document["makespan_seconds"] is not None:
        lines.append(f"expected {format_seconds(document['makespan_seconds'])}{_limits(document)}")
    unknown = document["length_unknown"]
    if unknown:
        more = f" and {len(unknown) - _NAMES} more" if len(unknown) > _NAMES else ""
        names = ", ".join(one_line(name) for name in unknown[:_NAMES])
        lines.append(f"no times are predicted: the length of {names}{more} is not known")
    return "\n".join(lines)


def _limits(document: Mapping[str, Any]) -> str:
    text, bound = "", document["bound"]
    if bound["makespan_seconds"] is not None:
        cause = f" ({bound['bottleneck']})" if bound["bottleneck"] else ""
        text += f"; nothing beats {format_seconds(bound['makespan_seconds'])}{cause}"
    if document["attainable_seconds"] is not None:
        text += f"; {format_seconds(document['attainable_seconds'])} is attainable"
    return text


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    device_bytes = job["reserved_device_bytes"]
    return (
        one_line(job["name"]),
        one_line(job["device"] or "-"),
        "-" if job["threads"] is None else str(job["threads"]),
        format_bytes(job["reserved_bytes"]),
        format_bytes(device_bytes) if device_bytes else "-",
        _rate(job["predicted_rate"]),
        _seconds(job["expected_start_seconds"]),
        _seconds(job["expected_end_seconds"]),
        one_line(job["reason"] or ""),
    )


def _explanation(job: Mapping[str, Any]) -> list[str]:
    memory = f"{format_bytes(job['reserved_bytes'])} ({job['memory_source']})"
    lines = [f"{one_line(job['name'])}: memory {memory}"]
    if job["reserved_device_bytes"]:
        booked = format_bytes(job["reserved_device_bytes"])
        lines.append(f"  on a GPU {booked} ({job['device_memory_source']})")
    for one in job["profiles"]:
        uses = ", ".join(f"{name} {share:.2f}" for name, share in sorted(one["demand"].items()))
        lines.append(
            f"  alone on {one_line(one['device_kind'])}: {_seconds(one['solo_seconds'])}, "
            f"uses {uses or 'nothing that is known'} ({one['source']})"
        )
    if not job["profiles"]:
        lines.append("  nothing is known of what it uses")
    lines += [f"  {_offer(one)}" for one in job["devices"]]
    if job["reason"]:
        lines.append(f"  waits: {one_line(job['reason'])}")
    if job["expected_start_seconds"] is not None:
        begin, end = (_seconds(job[f"expected_{which}_seconds"]) for which in ("start", "end"))
        lines.append(
            f"  expected on {one_line(job['expected_device'])} from {begin} to {end}, "
            f"at a mean rate of {_rate(job['expected_mean_rate'])}"
        )
    return lines


def _offer(one: Mapping[str, Any]) -> str:
    others = ", ".join(
        f"{one_line(other['name'])} {_rate(other['predicted_rate'])}" for other in one["co_runners"]
    )
    beside = f", beside {others}" if others else ""
    if one["lacks"]:
        return f"{one['device']}: does not fit, {one_line(one['lacks'])}{beside}"
    verb = "starts there" if one["chosen"] else "would fit"
    return f"{one['device']}: {verb}, rate {_rate(one['predicted_rate'])}{beside}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
