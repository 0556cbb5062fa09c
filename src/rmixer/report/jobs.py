"""The jobs' part of the document of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rmixer.model import CPU, Final, StateName
from rmixer.paths import RunPaths
from rmixer.report import telemetry
from rmixer.report.history import AttemptRecord, History, JobRecord
from rmixer.report.text import finite, last_lines, rfc3339


def job_documents(
    history: History,
    samples: Sequence[Mapping[str, Any]],
    end: float,
    solo_seconds: Mapping[str, float | None],
    paths: RunPaths,
) -> list[dict[str, Any]]:
    """One document per job, in the order of submission; `end` is the newest second known."""
    peaks: dict[str, float] = {}
    for job, rss in telemetry.job_values(samples, "rss_bytes"):
        peaks[job] = max(peaks.get(job, 0.0), rss)
    on_device: dict[str, float] = {}
    for job, held in telemetry.job_values(samples, "device_bytes"):
        on_device[job] = max(on_device.get(job, 0.0), held)
    seen = dict(telemetry.job_values(samples, "samples", by="token"))
    spent, logs = telemetry.phase_seconds(samples), telemetry.told_by_logs(samples)
    return [
        _job(job, end, finite(solo_seconds.get(id_)), paths, peaks.get(id_, 0.0), seen)
        | {"device_memory": _device_memory(job, on_device.get(id_, 0.0))}
        | {"phase_seconds": spent.get(job.attempts[-1].token) if job.attempts else None}
        | {"log_progress": logs.get(job.attempts[-1].token) if job.attempts else None}
        for id_, job in history.jobs.items()
    ]


def _job(
    job: JobRecord,
    end: float,
    solo: float | None,
    paths: RunPaths,
    sampled_peak: float,
    seen: Mapping[str, float],
) -> dict[str, Any]:
    newest = job.attempts[-1] if job.attempts else None
    files = paths.job(job.spec.id)
    succeeded = job.state is StateName.SUCCEEDED
    return {
        "id": job.spec.id,
        "name": job.spec.name,
        "kind": job.spec.kind,
        "program": _program(job),
        "state": job.state,
        "reason": job.reason,
        "device": newest.placement.device if newest else None,
        "cores": list(newest.placement.cores) if newest else [],
        "threads": newest.placement.threads if newest else None,
        "attempts": [_attempt(attempt, end) for attempt in job.attempts],
        "tries": sum(attempt.counted for attempt in job.attempts),
        "max_tries": job.spec.retries + 1,
        "queued_at": rfc3339(job.queued.wall),
        "started_at": rfc3339(job.attempts[0].began.wall) if newest else None,
        "ended_at": rfc3339(job.ended.wall) if job.ended else None,
        **_work(newest, end, solo if succeeded else None, seen),
        "memory": {
            "estimated_bytes": job.estimate.memory or None,
            "reserved_bytes": newest.placement.memory if newest else None,
            "measured_peak_bytes": _measured_peak(job, sampled_peak),
        },
        "metrics": _metrics(newest),
        "model": str(files.model) if succeeded and job.spec.kind == "model" else None,
        "log": str(files.attempt(newest.number).log) if newest else None,
        "error": _error(job),
    }


def _work(
    newest: AttemptRecord | None, end: float, solo: float | None, seen: Mapping[str, float]
) -> dict[str, Any]:
    seconds = _seconds(newest, end) if newest else None
    samples = _samples(newest, seen) if newest else None
    earlier = finite(newest.result.get("resumed_samples")) if newest else None
    done = None if samples is None else max(0.0, samples - (earlier or 0))
    return {
        "seconds": seconds,
        "suspended_seconds": newest.suspended_seconds(end) if newest else None,
        "samples": samples,
        "samples_per_second": done / seconds if done is not None and seconds else None,
        "slowdown": seconds / solo if seconds is not None and solo else None,
    }


def _attempt(attempt: AttemptRecord, end: float) -> dict[str, Any]:
    outcome = attempt.outcome
    return {
        "number": attempt.number,
        "state": outcome.state if outcome else StateName.RUNNING,
        "reason": outcome.reason if outcome else "",
        "started_at": rfc3339(attempt.began.wall),
        "ended_at": rfc3339(attempt.ended.wall) if attempt.ended else None,
        "seconds": _seconds(attempt, end),
        "suspended_seconds": attempt.suspended_seconds(end),
        "device": attempt.placement.device,
        "cores": list(attempt.placement.cores),
        "threads": attempt.placement.threads,
        "cpu_booked": attempt.placement.cpu,
        "memory_reserved_bytes": attempt.placement.memory,
        "counted": attempt.counted,
        "exit_code": outcome.exit_code if outcome else None,
        "signal": outcome.signal if outcome else None,
        "message": last_lines(outcome.message) if outcome and outcome.message else None,
    }


def _seconds(attempt: AttemptRecord, end: float) -> float:
    return max(0.0, (attempt.ended.at if attempt.ended else end) - attempt.began.at)


def _samples(attempt: AttemptRecord, seen: Mapping[str, float]) -> int | None:
    """What the job wrote of itself, else how far it was last seen; None where it tells nothing."""
    written = finite(attempt.result.get("samples"))
    if written is not None:
        return int(written)
    progress = attempt.progress.samples if attempt.progress else 0
    return max(progress, int(seen.get(attempt.token, 0))) or None


def _measured_peak(job: JobRecord, sampled: float) -> int | None:
    return int(max([sampled, *(attempt.peak_bytes for attempt in job.attempts)])) or None


def _device_memory(job: JobRecord, sampled: float) -> dict[str, Any] | None:
    """Memory on the GPU that the job is on; None for a job on the CPU, or one that never began."""
    newest = job.attempts[-1] if job.attempts else None
    if newest is None or newest.placement.device == CPU:
        return None
    ends = [attempt.outcome.device_peak_bytes for attempt in job.attempts if attempt.outcome]
    return {
        "estimated_bytes": job.estimate.device_expected or job.estimate.device_memory or None,
        "reserved_bytes": newest.placement.device_memory,
        "measured_peak_bytes": int(max([sampled, *ends])) or None,
    }


def _metrics(newest: AttemptRecord | None) -> dict[str, Any]:
    metrics = newest.result.get("metrics") if newest else None
    return dict(metrics) if isinstance(metrics, Mapping) else {}


def _program(job: JobRecord) -> str | None:
    """The model's name or the command's words."""
    argv = job.spec.payload.get("argv")
    if isinstance(argv, list | tuple):
        return shlex.join(str(word) for word in argv)
    program = job.spec.payload.get("model") or job.spec.payload.get("command")
    return str(program) if program is not None else None


def _error(job: JobRecord) -> str | None:
    """The last lines of the newest failure that the job has not got over."""
    if job.state is StateName.SUCCEEDED:
        return None
    state = job.job.state
    ends = [state.outcome] if isinstance(state, Final) else []
    ends += [attempt.outcome for attempt in reversed(job.attempts) if attempt.outcome]
    message = next((end.message for end in ends if end.message.strip()), None)
    return last_lines(message) if message is not None else None
