"""The table of ``rmixer profile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmixer.report.text import clip, columns, format_number, one_line
from rmixer.resources import format_bytes

NOT_AVAILABLE = "n/a"
_NAME_WIDTH = 40
_HEADS = {
    "compute": "GPU compute", "bandwidth": "GPU bandwidth", "transfer": "PCIe", "cores": "cores",
    "memory_bandwidth": "host memory", "storage": "storage",
}  # fmt: skip
_LEGEND = (
    "shares of the time of a step, alone; cores: cores' worth; n/a: not told or not measured",
)
#: Of a GPU now: key, name, whether it is a share or bytes.
_METRICS = (
    ("utilisation", "busy", "share"),
    ("memory_utilisation", "memory busy", "share"),
    ("sm_active", "multiprocessors", "share"),
    ("tensor_active", "tensor cores", "share"),
    ("dram_active", "memory bandwidth", "share"),
    ("pcie_sent_bytes_per_second", "PCIe sent", "rate"),
    ("pcie_received_bytes_per_second", "PCIe received", "rate"),
)


def render_profiles(document: Mapping[str, Any]) -> str:
    """A row per job, the GPUs, then what the reader should know.

    Args:
        document: what ``--json`` prints.
    """
    jobs: Sequence[Mapping[str, Any]] = document["jobs"]
    stations = [name for name in _HEADS if any(name in job["demand"] for job in jobs)]
    heads = ["job", "device", "source", "type", "step", "threads", "sure",
             *(_HEADS[name] for name in stations), "memory", "on GPU",
             "steps/s by threads"]  # fmt: skip
    rows = [heads, *(_row(job, stations) for job in jobs)]
    lines = [*columns(rows, "<<<<" + ">" * (len(heads) - 5) + "<"), "", *_LEGEND]
    for gpu in document["gpus"]:
        lines += ["", *_gpu(gpu)]
    notes = {note: None for job in jobs for note in job["notes"]}
    for note in notes:
        told = [clip(one_line(job["name"]), _NAME_WIDTH) for job in jobs if note in job["notes"]]
        who = "all" if len(told) == len(jobs) > 1 else ", ".join(told)
        lines += ["", f"note ({who}): {one_line(note)}"]
    return "\n".join(lines)


def _row(job: Mapping[str, Any], stations: Sequence[str]) -> list[str]:
    step = job["step_seconds"]
    speeds = job["steps_per_second_by_threads"]
    curve = "  ".join(f"{n}: {format_number(speed)}" for n, speed in speeds.items())
    return [
        clip(one_line(job["name"]), _NAME_WIDTH),
        one_line(job["device"]),
        "+".join(job["sources"]) or NOT_AVAILABLE,
        job["label"] or NOT_AVAILABLE,
        NOT_AVAILABLE if step is None else f"{1000 * step:.3g} ms",
        _or_not(job["threads"]),
        _share(job["confidence"]),
        *(_station(job["demand"].get(name), name) for name in stations),
        _size(job["memory_bytes"]),
        _size(job["device_memory_bytes"]),
        curve or NOT_AVAILABLE,
    ]


def _gpu(gpu: Mapping[str, Any]) -> list[str]:
    """One GPU of this machine as it is now."""
    used, total = _size(gpu["memory_used_bytes"]), _size(gpu["memory_total_bytes"])
    told = [
        f"{name} {_share(gpu[key]) if how == 'share' else _size(gpu[key], '/s')}"
        for key, name, how in _METRICS
    ]
    holders = gpu["processes"]
    who = NOT_AVAILABLE if holders is None else str(len(holders))
    name = f"GPU {gpu['index']} {one_line(gpu['kind'])}"
    return [
        f"{name} now: memory {used} of {total}, processes {who}",
        "  " + ", ".join(told),
        *(
            f"  process {pid}: memory {_size(one['memory_bytes'])}, "
            f"multiprocessors {_share(one['sm'])}, memory busy {_share(one['memory'])}"
            for pid, one in (holders or {}).items()
        ),
    ]


def _station(share: float | None, name: str) -> str:
    if share is None:
        return NOT_AVAILABLE
    return f"{share:.2f}" if name == "cores" else _share(share)


def _share(share: float | None) -> str:
    return NOT_AVAILABLE if share is None else f"{100 * share:.0f} %"


def _size(size: float | None, unit: str = "") -> str:
    return NOT_AVAILABLE if size is None else format_bytes(int(size)) + unit


def _or_not(value: Any) -> str:
    return NOT_AVAILABLE if value is None else str(value)
