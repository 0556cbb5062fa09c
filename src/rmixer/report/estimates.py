"""The table of ``rmixer estimate``."""

from __future__ import annotations

from collections.abc import Sequence

from rmixer.estimate.estimates import JobEstimate
from rmixer.estimate.timeline import CATEGORIES
from rmixer.model import CPU
from rmixer.report.text import clip, columns, one_line
from rmixer.resources import format_bytes

#: Of `rmixer.estimate.timeline.CATEGORIES`, in their order.
_HEADS = ("params", "grads", "state", "activ.", "inputs", "temp.")
_NAME_WIDTH = 40
_NAMES = 4


#: What the last columns are, for those who have not read the page on memory.
_LEGEND = (
    "reserved: what the allocator holds at the peak",
    "context: on a GPU the CUDA context, else interpreter and libraries; total: both",
    "host: resident memory, with mapped data",
    "to book: what is set aside, with room for errors; on the host without shared pages of files",
)


def render_estimates(estimates: Sequence[JobEstimate]) -> str:
    """A row per job, then where each different peak is, and what the reader should know."""
    heads = ["job", "source", *_HEADS, "reserved", "context", "total", "host", "to book"]
    rows = [heads, *(_row(one) for one in estimates)]
    lines = [*columns(rows, "<<" + ">" * (len(heads) - 2)), "", *_LEGEND]
    peaks: dict[tuple[str, ...], list[JobEstimate]] = {}
    for one in estimates:
        if one.largest:
            peaks.setdefault(_peak(one), []).append(one)
    for (operator, phase, *largest), members in peaks.items():
        who = _names(members)
        lines += ["", f"{who}: peak at {operator} ({phase}); largest tensors there:"]
        lines += [f"  {text}" for text in largest]
    notes = {note: None for one in estimates for note in one.notes}
    for note in notes:
        told = [one for one in estimates if note in one.notes]
        who = "all" if len(told) == len(estimates) > 1 else _names(told)
        lines += ["", f"note ({who}): {one_line(note)}"]
    return "\n".join(lines)


def _names(estimates: Sequence[JobEstimate]) -> str:
    names = [clip(one_line(one.name), _NAME_WIDTH) for one in estimates]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _peak(one: JobEstimate) -> tuple[str, ...]:
    top = (f"{one_line(t['name'])} {format_bytes(t['bytes'])}" for t in one.largest)
    return (one.operator, one.phase, *top)


def _row(one: JobEstimate) -> list[str]:
    parts = [_size(one.bytes.get(part)) for part in CATEGORIES]
    sums = [_size(one.bytes.get(key)) for key in ("reserved_peak", "context", "total")]
    book = one.reserve_host_bytes if one.device == CPU else one.reserve_device_bytes
    name = clip(one_line(one.name), _NAME_WIDTH)
    return [name, one.source, *parts, *sums, _size(one.host_bytes), _size(book)]


def _size(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)
