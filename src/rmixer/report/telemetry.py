"""The telemetry of a run, taken with care, and curves over its time.

Telemetry is not synced: it may be absent, cut off or damaged. What is not a number where a number
belongs is left out; a report never fails because of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from rmixer.report.history import Booking
from rmixer.report.text import finite

#: Points of a curve: (seconds since the run began, value).
Curve = list[tuple[float, float]]


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """The whole samples of the file in order; none if there is no file."""
    try:
        with path.open("rb") as file:
            for line in file:
                sample = _parse(line)
                if sample is not None:
                    yield sample
    except OSError:
        return


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return sample if isinstance(sample, dict) else None


def usable(samples: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The samples that have a time, in the order of time."""
    timed = [sample for sample in samples if finite(sample.get("at")) is not None]
    return sorted(timed, key=lambda sample: float(sample["at"]))


def job_values(
    samples: Iterable[Mapping[str, Any]], key: str, *, by: str = "job"
) -> Iterator[tuple[str, float]]:
    """(job id, value) of every sample in which the job has a number under that key.

    With ``by="token"`` the attempt's token takes the place of the id.
    """
    for sample in samples:
        jobs = sample.get("jobs")
        for job, values in jobs.items() if isinstance(jobs, Mapping) else ():
            value = finite(values.get(key)) if isinstance(values, Mapping) else None
            if value is not None:
                yield (job if by == "job" else str(values.get("token"))), value


def phase_seconds(samples: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Where the time of each attempt's training went, by token: seconds by phase, the newest.

    Attempts that showed none (no time of any phase) are left out.
    """
    newest: dict[str, dict[str, float]] = {}
    for token, spent in _mappings(samples, "phase_seconds"):
        known = {name: finite(seconds) or 0.0 for name, seconds in spent.items()}
        if any(known.values()):
            newest[token] = known
    return newest


def told_by_logs(samples: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the newest progress line said in the log of each attempt that had one, by token."""
    return {token: dict(told) for token, told in _mappings(samples, "log")}


def _mappings(
    samples: Iterable[Mapping[str, Any]], key: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(token, value) of every sample in which an attempt has a mapping under that key."""
    for sample in samples:
        jobs = sample.get("jobs")
        for values in jobs.values() if isinstance(jobs, Mapping) else ():
            value = values.get(key) if isinstance(values, Mapping) else None
            if isinstance(value, Mapping):
                yield str(values.get("token")), value


def node_curve(samples: Iterable[Mapping[str, Any]], key: str) -> Curve:
    """A number of the node over time, for example its busy cores."""
    curve: Curve = []
    for sample in samples:
        node = sample.get("node")
        value = finite(node.get(key)) if isinstance(node, Mapping) else None
        if value is not None:
            curve.append((float(sample["at"]), value))
    return curve


def device_curve(samples: Iterable[Mapping[str, Any]], tokens: Collection[str]) -> Curve:
    """What some attempts together held of the memory of their device over time, bytes."""
    curve: Curve = []
    for sample in samples:
        held = [v for t, v in job_values([sample], "device_bytes", by="token") if t in tokens]
        if held:
            curve.append((float(sample["at"]), sum(held)))
    return curve


def rates_curve(samples: Iterable[Mapping[str, Any]]) -> Curve:
    """The sum of the jobs' predicted rates over time, where there are rates."""
    curve: Curve = []
    for sample in samples:
        rates = [rate for _, rate in job_values([sample], "rate")]
        if rates:
            curve.append((float(sample["at"]), sum(rates)))
    return curve


def booked_curve(bookings: Iterable[Booking], resource: str) -> Curve:
    """The sum of what is booked over time, as steps: each value holds until the next point.

    Args:
        bookings: of all attempts.
        resource: ``cpu`` or ``memory`` of the placement.
    """
    changes: dict[float, float] = {}
    for booking in bookings:
        amount = float(getattr(booking.placement, resource))
        changes[booking.start] = changes.get(booking.start, 0.0) + amount
        changes[booking.end] = changes.get(booking.end, 0.0) - amount
    curve: Curve = []
    total = 0.0
    for at in sorted(changes):
        total += changes[at]
        curve.append((at, max(0.0, round(total, 6))))
    return curve


def integral(curve: Curve, end: float) -> float:
    """The area under a curve of steps up to `end`."""
    closed = [*curve, (end, 0.0)]
    return sum(value * max(0.0, min(stop, end) - at) for (at, value), (stop, _) in pairwise(closed))


def time_average(curve: Curve, end: float) -> float | None:
    """The mean of a curve of steps from its first point to `end`; None where there is no time."""
    if not curve or end <= curve[0][0]:
        return None
    return integral(curve, end) / (end - curve[0][0])


def peak(curve: Curve) -> float | None:
    """The highest value of a curve; None if it has no point."""
    return max((value for _, value in curve), default=None)
