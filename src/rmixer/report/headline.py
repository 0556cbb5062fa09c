"""What a run comes to, in one line and in a few figures, from its document."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rmixer.model import StateName
from rmixer.report.text import UNKNOWN, format_number
from rmixer.resources import format_bytes, format_seconds

_AS_FAST = 0.005  # a difference below half a per cent is none


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its name and what it means."""

    label: str
    value: str
    note: str = ""


def headline(document: dict[str, Any]) -> str:
    """How long it took, how much faster than one at a time, how near to the limit, what limits."""
    took = format_seconds(document["makespan_seconds"])
    total, done = len(document["jobs"]), count_states(document)[StateName.SUCCEEDED]
    if not total:
        return f"no jobs in {took}"
    if document["state"] == "running":
        active = sum(is_active(job) for job in document["jobs"])
        return f"{done} of {_jobs(total)} done after {took}, {active} running"
    if done < total:
        stopped = ", interrupted" if document["state"] == "interrupted" else ""
        return (
            f"{done} of {_jobs(total)} succeeded in {took}{stopped} ({_not_succeeded(document)}); "
            f"{_at_least(document)}"
        )
    return f"{_jobs(total)} in {took}, {_speedup_text(document)}, {_limit_text(document)}"


def figures(document: dict[str, Any]) -> list[Figure]:
    """The key figures, unknown ones included and said to be unknown."""
    sequential, bound = document["sequential"], document["bound"]
    running = document["state"] == "running"
    jobs, counts = document["jobs"], count_states(document)
    return [
        Figure(
            "elapsed" if running else "makespan",
            format_seconds(document["makespan_seconds"]),
            f"{counts[StateName.SUCCEEDED]} of {_jobs(len(jobs))} succeeded",
        ),
        Figure("one at a time", _seconds(sequential["seconds"]), _source(sequential)),
        Figure("speed-up", _ratio(speedup(document)), _if_all(document, "over one at a time")),
        _figure("limit", _seconds(bound["makespan_seconds"]), "predicted, at these thread counts"),
        Figure(
            "of the limit",
            _percent(limit_share(document)),
            _if_all(document, "limit over makespan"),
        ),
        _figure("bottleneck", _words(bound["bottleneck"]), "what sets the limit"),
        Figure(
            "samples/s", _number(document["aggregate_samples_per_second"]), "all jobs, measured"
        ),
        _figure("sum of rates", _number(document["sum_of_rates"]), "predicted; 1 is one job alone"),
        *_rates(document["rates"]),
        Figure("cores busy", _percent(_cpu(document)["utilisation"]["busy"]), _booked(document)),
        Figure("memory peak", *_memory(document)),
    ]


def _rates(rates: dict[str, Any]) -> list[Figure]:
    """How far the rates were off that were predicted, where some were measured."""
    if not rates["measured"]:
        return []
    note = f"{_percent(rates['corrected_error'])} once corrected; {rates['measured']} measured"
    return [Figure("rates were off by", _percent(rates["error"]), note)]


def count_states(document: dict[str, Any]) -> Counter[str]:
    """How many jobs are in each state."""
    return Counter(job["state"] for job in document["jobs"])


def is_active(job: dict[str, Any]) -> bool:
    """Whether the job has a process."""
    return job["state"] in {
        StateName.RUNNING, StateName.PROFILING, StateName.COMPLETING, StateName.SUSPENDED
    }  # fmt: skip


def speedup(document: dict[str, Any]) -> float | None:
    """One at a time over the makespan, if every job succeeded and both are known."""
    seconds, end = document["sequential"]["seconds"], document["makespan_seconds"]
    return seconds / end if seconds is not None and _comparable(document) else None


def limit_share(document: dict[str, Any]) -> float | None:
    """The bound over the makespan, if every job succeeded and the bound is known."""
    bound, end = document["bound"]["makespan_seconds"], document["makespan_seconds"]
    return bound / end if bound is not None and _comparable(document) else None


def _comparable(document: dict[str, Any]) -> bool:
    all_done = all(job["state"] == StateName.SUCCEEDED for job in document["jobs"])
    return bool(document["state"] == "finished" and document["makespan_seconds"] > 0 and all_done)


def _if_all(document: dict[str, Any], note: str) -> str:
    if document["state"] == "running":
        return "known when the run has ended"
    return note if _comparable(document) else "needs all jobs to succeed"


def _figure(label: str, value: str, note: str) -> Figure:
    """A figure whose note says nothing where the value is unknown."""
    return Figure(label, value, note if value != UNKNOWN else "")


def _source(sequential: dict[str, Any]) -> str:
    source: str = sequential["source"] or ""
    return source + _with_threads(sequential)


def _with_threads(sequential: dict[str, Any]) -> str:
    """Of a prediction: whether jobs alone would have their best number of threads."""
    if sequential["source"] != "predicted":
        return ""
    return f", {sequential.get('threads') or 'same'} threads"


def _speedup_text(document: dict[str, Any]) -> str:
    ratio, sequential = speedup(document), document["sequential"]
    if ratio is None:
        return "time one at a time unknown"
    if document["policy"] == "sequential":
        return "one at a time (measured)"
    how = _with_threads(sequential)
    base = f"({sequential['source']} {format_seconds(sequential['seconds'])}{how})"
    if ratio > 1 + _AS_FAST:
        return f"{ratio:.2f}x faster than one at a time {base}"
    if ratio >= 1 - _AS_FAST:
        return f"as fast as one at a time {base}"
    return f"slower than one at a time: {ratio:.2f}x its speed {base}"


def _limit_text(document: dict[str, Any]) -> str:
    share, bound = limit_share(document), document["bound"]
    if share is None:
        return "limit of the machine unknown"
    cause = f"bottleneck: {_words(bound['bottleneck'])}"
    return (
        f"{share:.0%} of the machine's limit ({format_seconds(bound['makespan_seconds'])}, {cause})"
    ).replace("%", " %")


def _at_least(document: dict[str, Any]) -> str:
    """The gain counted over the jobs that succeeded; the work of the others is left out."""
    throughput = document["normalized_throughput"]
    if throughput is None:
        return "gain over one at a time unknown"
    return f"{throughput:.2f}x as fast as one at a time, failed work not counted (predicted)"


def _not_succeeded(document: dict[str, Any]) -> str:
    counts = count_states(document)
    return ", ".join(
        f"{count} {state.lower().replace('_', ' ')}"
        for state, count in counts.most_common()
        if state != StateName.SUCCEEDED
    )


def _cpu(document: dict[str, Any]) -> dict[str, Any]:
    unknown: dict[str, Any] = {
        "utilisation": {"booked": None, "busy": None},
        "memory": {
            "capacity_bytes": 0, "reserved_peak_bytes": None, "measured_peak_bytes": None
        },
    }  # fmt: skip
    cpus = (device for device in document["devices"] if device["kind"] == "cpu")
    return next(cpus, unknown)


def _booked(document: dict[str, Any]) -> str:
    booked = _cpu(document)["utilisation"]["booked"]
    cores = len(document["node"]["cores"])
    return f"measured, of {cores} cores; {_percent(booked)} booked"


def _memory(document: dict[str, Any]) -> tuple[str, str]:
    memory = _cpu(document)["memory"]
    measured, reserved = memory["measured_peak_bytes"], memory["reserved_peak_bytes"]
    value = format_bytes(measured) if measured is not None else UNKNOWN
    booked = format_bytes(reserved) if reserved is not None else UNKNOWN
    return value, f"measured; {booked} reserved of {format_bytes(memory['capacity_bytes'])}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _seconds(value: float | None) -> str:
    return format_seconds(value) if value is not None else UNKNOWN


def _ratio(value: float | None) -> str:
    return f"{value:.2f}x" if value is not None else UNKNOWN


def _percent(value: float | None) -> str:
    return f"{100 * value:.0f} %" if value is not None else UNKNOWN


def _number(value: float | None) -> str:
    return format_number(value) if value is not None else UNKNOWN


def _words(value: str | None) -> str:
    return value.replace("_", " ") if value else UNKNOWN
