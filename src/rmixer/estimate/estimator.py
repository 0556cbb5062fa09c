"""The estimate of each job of a batch: what was measured, else traced, probed, said, or assumed."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rmixer import paths
from rmixer.errors import RmixerError
from rmixer.estimate import host, program, programs
from rmixer.estimate.child import trace_models
from rmixer.estimate.contexts import STATED, Context, cublas_workspace
from rmixer.estimate.estimates import JobEstimate, figures, refusal
from rmixer.estimate.quantiles import reserve
from rmixer.estimate.timeline import CATEGORIES
from rmixer.execute.environment import allocator_settings, inherited_environment, thread_settings
from rmixer.model import CPU, JobSpec
from rmixer.resources import GIB, format_bytes
from rmixer.state import MEMORY_MARGIN
from rmixer.store import Store

logger = logging.getLogger(__name__)

#: Reserved for a job of which nothing is known: imports of a training framework and a small model.
DEFAULT_MEMORY = GIB
#: The sources of figures on a GPU, whose errors are kept apart from those on the host.
TRACE_GPU, HISTORY_GPU = "trace-gpu", "history-gpu"
#: So many repeated runs are needed before their spread says more than the margin.
ENOUGH_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What estimates are for.

    Attributes:
        device: ``cpu``, ``cuda``, or a kind of GPU, for example ``NVIDIA H200``.
        device_memory: bytes of the GPU; None: not known, nothing is refused.
        host_memory: bytes that jobs may use on the host.
        context: of a GPU process.
    """

    device: str = CPU
    device_memory: int | None = None
    host_memory: int | None = None
    context: Context = STATED

    @property
    def is_gpu(self) -> bool:
        return self.device != CPU


class Estimator:
    """Estimates jobs, one batch at a time.

    Args:
        store: measured peaks, baselines and errors.
        cache_dir: where parsed data are.
    """

    def __init__(self, store: Store, cache_dir: Path | None = None) -> None:
        self.store = store
        self.cache_dir = cache_dir or paths.cache_dir()

    def estimate(
        self,
        jobs: Sequence[JobSpec],
        target: Target,
        *,
        parse: bool = False,
        measure: bool = False,
        commands: bool = False,
        known: bool = False,
        at_once: int = 1,
        limit_seconds: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda _: None,
    ) -> list[JobEstimate]:
        """One estimate per job, in order.

        Args:
            jobs: validated.
            target: the device and what it has.
            parse: parse data that are not parsed yet, to know the sizes of the tables.
            measure: measure this machine's baseline if it is not known.
            commands: run commands on fake tensors, or for a short probe.
            known: also those whose peak was measured before.
            at_once: so many commands side by side.
            limit_seconds: for all trainings of ours together, and for each command.
            should_stop: asked several times a second; what is traced by then counts.
            say: gets a line for people when something begins that may take long.
        """
        environment = job_like_environment()
        models = {job.id: job.payload for job in jobs if job.kind == "model"}
        if models:
            say(f"tracing {len(models)} trainings")
        answers = trace_models(
            models,
            device="cuda" if target.is_gpu else CPU,
            cache_dir=self.cache_dir,
            environment=environment,
            parse=parse,
            workspace=cublas_workspace(target.device) if target.is_gpu else 0,
            limit_bytes=self._room(target),
            limit_seconds=limit_seconds,
            should_stop=should_stop,
        )
        if commands:
            unknown = [
                job
                for job in jobs
                if job.kind == "command" and (known or self._is_unknown(job, target))
            ]
            answers |= programs.estimate_commands(
                unknown,
                self._conditions(target, environment, limit_seconds),
                at_once=at_once,
                should_stop=should_stop,
                say=say,
            )
        errors = cache(self.store.estimate_errors)  # asked for every job, and the same for all
        baseline = cache(partial(self._baseline, environment))
        found = []
        for job in jobs:
            answer = answers.get(job.id)
            peaks = self._peaks(job, target)
            warm = baseline(job.threads, measure and job.kind == "model")
            estimate = _described(job, target, answer or {}, warm)
            found.append(_with_reservation(job, target, estimate, answer or {}, peaks, errors))
        return found

    def _peaks(self, job: JobSpec, target: Target) -> tuple[int | None, int | None]:
        """What was measured of the job: on the host, and on a GPU if it is for one; bytes."""
        device = self.store.device_peak(job.signature, job.family) if target.is_gpu else None
        return self.store.memory_peak(job.signature, job.family), device

    def _is_unknown(self, job: JobSpec, target: Target) -> bool:
        host, device = self._peaks(job, target)
        return device is None if target.is_gpu else host is None

    def _room(self, target: Target) -> int | None:
        if target.device_memory is None:
            return None
        return max(0, target.device_memory - target.context.bytes)

    def _conditions(
        self, target: Target, environment: Mapping[str, str], limit_seconds: float | None
    ) -> programs.Conditions:
        return programs.Conditions(
            gpu=target.is_gpu,
            environment=environment,
            limit_seconds=limit_seconds or program.LIMIT_SECONDS,
            limit_bytes=target.host_memory,
            workspace=cublas_workspace(target.device) if target.is_gpu else 0,
            device_room=self._room(target),
        )

    def _baseline(
        self, environment: Mapping[str, str], threads: int | None, measure: bool
    ) -> host.Baseline:
        key = host.baseline_key(threads)
        known = self.store.baseline(key)
        if known is not None:
            return host.Baseline(anonymous=known[0], file=known[1])
        if not measure:
            return host.STATED
        settled = {**environment, **thread_settings(threads, environment)}
        tiny = host.tiny_job()
        answer = trace_models(
            {"baseline": tiny}, device=CPU, cache_dir=self.cache_dir, environment=environment,
            parse=True,
        )["baseline"]  # fmt: skip
        if "error" in answer:
            return host.STATED
        try:
            measured = host.measure_baseline(settled, threads, answer["host"]["reserved"])
        except RmixerError as error:
            logger.warning("%s; a stated value stands in", error)
            return host.STATED
        self.store.keep_baseline(key, (measured.anonymous, measured.file), time.time())
        return measured


def _described(
    job: JobSpec, target: Target, answer: Mapping[str, Any], baseline: host.Baseline
) -> JobEstimate:
    """What is known of a job before its measured peak and the room for errors count."""
    if "host" in answer or "device" in answer:
        return _from_trace(job, target, answer, baseline)
    return _from_words(job, target, answer)


def _with_reservation(
    job: JobSpec,
    target: Target,
    estimate: JobEstimate,
    answer: Mapping[str, Any],
    peaks: tuple[int | None, int | None],
    errors: Callable[[str], Sequence[float]],
) -> JobEstimate:
    """What to book: the measured peaks of this signature, else a quantile above the estimate."""
    notes = list(estimate.notes)
    peak, device_peak = peaks
    if peak is not None:
        host_bytes = max(reserve_measured(peak, errors("history")), job.memory or 0)
        notes.append(f"measured peak of this job or its family: {format_bytes(peak)}")
        if not target.is_gpu:
            estimate = _as_measured(estimate, peak)
    elif estimate.source in ("hint", "default"):
        host_bytes = max(estimate.host_bytes, job.memory or 0)
    else:
        needed = reserve(estimate.own_host_bytes, estimate.source, errors(estimate.source))
        host_bytes = max(needed, job.memory or 0)
    total = estimate.bytes.get("total", 0) if estimate.source == "trace" else 0
    if device_peak is not None:
        device_bytes = reserve_measured(device_peak, errors(HISTORY_GPU), HISTORY_GPU)
        notes.append(f"measured peak on the device: {format_bytes(device_peak)}")
        estimate = replace(
            estimate, source="history", bytes={**estimate.bytes, "total": device_peak}
        )
    else:
        device_bytes = reserve(total, TRACE_GPU, errors(TRACE_GPU)) if total else 0
    device_bytes = max(device_bytes, job.gpu_memory or 0)
    if target.is_gpu and not device_bytes:
        device_bytes = target.device_memory or 0
        notes.append("nothing is known of its memory on the device: it books the whole of it")
    return replace(
        estimate,
        reserve_host_bytes=host_bytes,
        reserve_device_bytes=device_bytes if target.is_gpu else 0,
        notes=tuple(notes),
        refusal=_refusal(job, target, estimate, answer),
    )


def _from_trace(
    job: JobSpec, target: Target, answer: Mapping[str, Any], baseline: host.Baseline
) -> JobEstimate:
    peak = answer["device"] if target.is_gpu else answer["host"]
    mapped = int(answer.get("mapped_bytes", 0))
    own = answer.get("process")  # of a command: what it held for real
    warm = own["resident"] if own else baseline.anonymous + baseline.file
    libraries = own["file"] if own else baseline.file
    extra = int(answer.get("order_bytes", 0))
    context = target.context.bytes if target.is_gpu else warm
    host_bytes = warm + mapped + extra
    notes = [*answer.get("notes", ())]
    if target.is_gpu:
        host_bytes += answer.get("host", {}).get("reserved", 0)
        if target.context.source == "stated":
            notes.append("the CUDA context is a stated value; `rmixer doctor --measure-context`")
    else:
        host_bytes += peak["reserved"]
    if not own and baseline.source == "stated":
        notes.append(
            "the memory of a warm process is a stated value; `rmixer estimate` measures it"
        )
    return JobEstimate(
        id=job.id,
        name=job.name,
        device=target.device,
        source="trace",
        bytes=figures(peak, context),
        host_bytes=host_bytes,
        shared_bytes=libraries + mapped,
        seconds=answer.get("seconds", 0.0),
        operator=peak["operator"],
        phase=peak["phase"],
        largest=tuple(peak["largest"]),
        costs=answer.get("costs") or {},
        calls=answer.get("calls") or (),
        notes=tuple(notes),
    )


def _as_measured(estimate: JobEstimate, peak: int) -> JobEstimate:
    """The figures of a job on the host whose peak is known; what it consists of is the trace's."""
    total = peak + estimate.shared_bytes
    sizes = {**estimate.bytes, "total": total}
    return replace(estimate, source="history", host_bytes=total, bytes=sizes)


def _from_words(job: JobSpec, target: Target, answer: Mapping[str, Any]) -> JobEstimate:
    """No trace: a probe's peak, the user's hint, or what is assumed of a job."""
    source, host_bytes = "default", DEFAULT_MEMORY
    if job.memory or (target.is_gpu and job.gpu_memory):
        source, host_bytes = "hint", job.memory or DEFAULT_MEMORY
    if "probe" in answer:
        source, host_bytes = "probe", int(answer["probe"])
    notes = [*answer.get("notes", ())]
    if answer.get("error"):
        notes.append(f"not traced: {answer['error']}")
    total = job.gpu_memory or 0 if target.is_gpu else host_bytes
    return JobEstimate(
        id=job.id,
        name=job.name,
        device=target.device,
        source=source,
        failure=str(answer.get("failure", "")),
        bytes={"total": total} if total else {},
        host_bytes=host_bytes,
        seconds=answer.get("seconds", 0.0),
        notes=tuple(notes),
    )


def _refusal(job: JobSpec, target: Target, estimate: JobEstimate, answer: Mapping[str, Any]) -> str:
    parts = {key: estimate.bytes[key] for key in CATEGORIES if estimate.bytes.get(key)}
    if target.is_gpu and target.device_memory is not None:
        total = max(estimate.bytes.get("total", 0), job.gpu_memory or 0)
        if answer.get("refusal") or (job.gpu_memory or 0) > target.device_memory:
            parts["context"] = estimate.bytes.get("context", 0)
            return refusal(job.name, target.device, total, target.device_memory, parts)
    need = max(estimate.own_host_bytes, job.memory or 0)
    if target.host_memory is not None and need > target.host_memory:
        return refusal(job.name, CPU, need, target.host_memory, parts)
    return ""


def reserve_measured(peak: int, errors: Sequence[float], source: str = "history") -> int:
    """What to book for a job whose peak was measured before, bytes.

    Args:
        peak: bytes.
        errors: how later runs compared with earlier ones here. Their quantile counts once there are
            enough; until then the margin that the dispatcher leaves above what it sees.
        source: whose errors they are.
    """
    if len(errors) < ENOUGH_ERRORS:
        return int(peak * MEMORY_MARGIN)
    return reserve(peak, source, errors)


def job_like_environment() -> dict[str, str]:
    """The environment that jobs start from: ours, and the allocator settings that they get."""
    inherited = inherited_environment()
    temporary = tempfile.gettempdir()
    return {**allocator_settings(), **inherited, "PYTHONUNBUFFERED": "1", "TMPDIR": temporary}
