"""The document of a run: what ``run --json`` prints and ``report.json`` holds.

Bytes and seconds are numbers, times are RFC 3339 in UTC, ``cores`` is always a list of core ids.
What is not known is null. ``seconds``, ``samples``, ``samples_per_second``, ``slowdown`` and
``metrics`` of a job are those of its newest attempt; ``attempts`` has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rmixer.events import Event
from rmixer.model import CPU, Device, StateName
from rmixer.paths import RunPaths
from rmixer.report import telemetry
from rmixer.report.history import Booking, History, fold
from rmixer.report.jobs import job_documents
from rmixer.report.text import finite, json_safe, rfc3339

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What the model of the machine says of a run; None is not known.

    Attributes:
        bound_seconds: the makespan that nothing can beat.
        bottleneck: the station that sets this bound.
        sequential_seconds: all jobs one at a time.
        sequential_source: whether these were measured or predicted.
        sequential_threads: with each job's best number of threads, or with the same as in this run.
        solo_seconds: per job id its time alone on the node.
    """

    bound_seconds: float | None = None
    bottleneck: str | None = None
    sequential_seconds: float | None = None
    sequential_source: Literal["measured", "predicted"] = "predicted"
    sequential_threads: Literal["best", "same"] = "same"
    solo_seconds: Mapping[str, float | None] = field(default_factory=dict)


def build_document(
    events: Iterable[Event],
    samples: Iterable[Mapping[str, Any]] = (),
    *,
    now: float | None = None,
    predictions: Predictions | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """The document of a running or a finished run.

    Args:
        events: of the run, in order.
        samples: its telemetry, may be empty.
        now: unix time up to which a running run is reported; None takes the newest sign of life.
        predictions: bound, sequential and solo seconds, where known.
        root: the run's folder, put before the paths of logs and models.

    Raises:
        StorageError: there is no event, so no run.
    """
    return document_of(
        fold(events), telemetry.usable(samples), now=now, predictions=predictions, root=root
    )


def document_of(
    history: History,
    samples: Sequence[Mapping[str, Any]],
    *,
    now: float | None = None,
    predictions: Predictions | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """`build_document` of a history and samples in the order of time."""
    known = predictions or Predictions()
    end = end_of(history, samples, now)
    jobs = job_documents(history, samples, end, known.solo_seconds, RunPaths(root or Path()))
    total_samples = [job["samples"] for job in jobs if job["samples"] is not None]
    samples_per_second = sum(total_samples) / end if total_samples and end > 0 else None
    document = {
        "schema_version": SCHEMA_VERSION,
        "rmixer_version": history.began.version or None,
        "run": _run(history, root),
        "state": run_state(history),
        "policy": history.began.policy,
        "seed": history.began.seed,
        "node": {
            "name": history.node.name,
            "cores": list(history.node.cores),
            "memory_bytes": history.node.memory,
        },
        "makespan_seconds": end,
        "aggregate_samples_per_second": samples_per_second,
        "normalized_throughput": _normalized_throughput(history, jobs, end, known),
        "bound": {"makespan_seconds": known.bound_seconds, "bottleneck": known.bottleneck},
        "sequential": _sequential(history, jobs, end, known),
        "sum_of_rates": telemetry.time_average(telemetry.rates_curve(samples), end),
        "rates": _rates(history),
        "devices": _devices(history, samples, end),
        "warnings": history.remarks,
        "jobs": jobs,
    }
    safe: dict[str, Any] = json_safe(document)
    return safe


def run_state(history: History) -> Literal["running", "finished", "interrupted"]:
    """Whether the run goes on, has come to its end, or was stopped before."""
    if history.finished is None:
        return "running"
    return "interrupted" if history.finished.interrupted else "finished"


def end_of(
    history: History, samples: Sequence[Mapping[str, Any]], now: float | None = None
) -> float:
    """Second of the run at which it finished, or up to which it is known."""
    if history.finished is not None:
        return history.finished.at
    if now is not None:
        return max(history.last.at, now - history.wall(0.0))
    return max(history.last.at, float(samples[-1]["at"]) if samples else 0.0)


def all_bookings(history: History, end: float) -> list[Booking]:
    """The bookings of all attempts."""
    return [
        booking
        for job in history.jobs.values()
        for attempt in job.attempts
        for booking in attempt.bookings(end)
    ]


def _run(history: History, root: Path | None) -> dict[str, Any]:
    return {
        "name": history.began.name,
        "id": history.began.run,
        "started_at": rfc3339(history.began.wall),
        "ended_at": rfc3339(history.finished.wall) if history.finished else None,
        "resumed_at": [rfc3339(moment.wall) for moment in history.resumed],
        "directory": str(root) if root is not None else None,
    }


# --- the whole machine ---------------------------------------------------------------------------


def _all_succeeded(history: History) -> bool:
    return history.finished is not None and all(
        job.state is StateName.SUCCEEDED for job in history.jobs.values()
    )


def _sequential(
    history: History, jobs: list[dict[str, Any]], end: float, known: Predictions
) -> dict[str, Any]:
    """All jobs one at a time: as it was, as it was said to be, or the sum of the solo seconds."""
    if history.began.policy == "sequential" and jobs and _all_succeeded(history):
        return {"seconds": end, "source": "measured", "threads": "same"}
    seconds, source = finite(known.sequential_seconds), known.sequential_source
    if seconds is None:
        solo = [finite(known.solo_seconds.get(job["id"])) for job in jobs]
        seconds = sum(s for s in solo if s is not None) if solo and None not in solo else None
        source = "predicted"
    if seconds is None:
        return {"seconds": None, "source": None, "threads": None}
    return {"seconds": seconds, "source": source, "threads": known.sequential_threads}


def _normalized_throughput(
    history: History, jobs: list[dict[str, Any]], end: float, known: Predictions
) -> float | None:
    """The solo seconds of the jobs that succeeded over the makespan."""
    done = [job["id"] for job in jobs if job["state"] == StateName.SUCCEEDED]
    solo = [finite(known.solo_seconds.get(job)) for job in done]
    if history.finished is None or not solo or None in solo or end <= 0:
        return None
    return sum(seconds for seconds in solo if seconds is not None) / end


def _rates(history: History) -> dict[str, Any]:
    """How far the predicted rates were off the measured ones: mean absolute relative errors.

    ``corrected_error`` is that of what was said, with what had been learned, before each
    measurement.
    """
    errors = history.state.correction.errors
    return {
        "measured": errors.count,
        "error": finite(errors.of_prediction),
        "corrected_error": finite(errors.of_correction),
    }


def _devices(
    history: History, samples: Sequence[Mapping[str, Any]], end: float
) -> list[dict[str, Any]]:
    bookings = all_bookings(history, end)
    return [
        _cpu(history, device, bookings, samples, end)
        if device.id == CPU
        else _gpu(
            device,
            [b for b in bookings if b.placement.device == device.id],
            telemetry.device_curve(samples, tokens_on(history, device.id)),
            end,
        )
        for device in history.node.devices
    ]


def _cpu(
    history: History,
    device: Device,
    bookings: list[Booking],
    samples: Sequence[Mapping[str, Any]],
    end: float,
) -> dict[str, Any]:
    cores = max(1, len(history.node.cores))
    booked = telemetry.booked_curve(bookings, "cpu")
    busy = telemetry.time_average(telemetry.node_curve(samples, "cpu"), end)
    return {
        "id": device.id,
        "kind": device.kind,
        "cores": list(history.node.cores),
        "utilisation": {
            "booked": telemetry.integral(booked, end) / (cores * end) if end > 0 else None,
            "busy": busy / cores if busy is not None else None,
        },
        "memory": {
            "capacity_bytes": history.node.memory,
            "reserved_peak_bytes": int(telemetry.peak(_reserved(bookings)) or 0),
            "measured_peak_bytes": telemetry.peak(telemetry.node_curve(samples, "rss_bytes")),
        },
    }


def _reserved(bookings: list[Booking]) -> telemetry.Curve:
    return telemetry.booked_curve(bookings, "memory")


def tokens_on(history: History, device: str) -> set[str]:
    """The attempts that ran on a device, by their tokens."""
    return {
        attempt.token
        for job in history.jobs.values()
        for attempt in job.attempts
        if attempt.placement.device == device
    }


def _gpu(
    device: Device, bookings: list[Booking], held: telemetry.Curve, end: float
) -> dict[str, Any]:
    used, until = 0.0, 0.0
    for booking in sorted(bookings, key=lambda b: b.start):
        used += max(0.0, booking.end - max(booking.start, until))
        until = max(until, booking.end)
    reserved = telemetry.peak(telemetry.booked_curve(bookings, "device_memory"))
    return {
        "id": device.id,
        "kind": device.kind,
        "cores": [],
        "utilisation": {"booked": used / end if end > 0 else None, "busy": None},
        "sharing": device.sharing,
        "closed": device.closed or None,
        "memory": {
            "capacity_bytes": device.memory,
            "foreign_bytes": device.foreign,
            "reserved_peak_bytes": int(reserved or 0),
            "measured_peak_bytes": telemetry.peak(held),
        },
    }
