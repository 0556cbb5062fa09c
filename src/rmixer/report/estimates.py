"""The table of ``rmixer estimate``."""

from __future__ import annotations

from collections.abc import Sequence

from rmixer.estimate.estimates import JobEstimate
from rmixer.model import CPU
from rmixer.report.text import clip, columns, one_line
from rmixer.resources import format_bytes

_PARTS = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries")
_HEADS = ("params", "grads", "state", "activ.", "inputs", "temp.")
_NAME_WIDTH = 40


def render_estimates(estimates: Sequence[JobEstimate]) -> str:
    """A row per job, then where each peak is and what the reader should know."""
    heads = ["job", "source", *_HEADS, "reserved", "context", "total", "host", "to book"]
    rows = [heads, *(_row(one) for one in estimates)]
    lines = columns(rows, "<<" + ">" * (len(heads) - 2))
    for one in estimates:
        name = clip(one_line(one.name), _NAME_WIDTH)
        if one.largest:
            top = [f"{one_line(t['name'])} {format_bytes(t['bytes'])}" for t in one.largest]
            lines += ["", f"{name}: peak at {one.operator} ({one.phase}); largest tensors there:"]
            lines += [f"  {text}" for text in top]
        lines += [f"{name}: note: {one_line(note)}" for note in one.notes]
    return "\n".join(lines)


def _row(one: JobEstimate) -> list[str]:
    parts = [_size(one.bytes.get(part)) for part in _PARTS]
    sums = [_size(one.bytes.get(key)) for key in ("reserved_peak", "context", "total")]
    book = one.reserve_host_bytes if one.device == CPU else one.reserve_device_bytes
    name = clip(one_line(one.name), _NAME_WIDTH)
    return [name, one.source, *parts, *sums, _size(one.host_bytes), _size(book)]


def _size(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)
