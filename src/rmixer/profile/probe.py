"""A profile from running a job alone for a short while, at one thread count after the other.

The job runs as in a run: under a shim, in a memory cage, pinned to as many cores as it has threads,
with the launcher's page where it is a program of somebody else's; but in a folder that is removed,
and it is ended when enough was seen. What it writes elsewhere by then stays. Counting starts after
the first step, however long imports and reading take; a program that shows no step is taken to
have started up after `rmixer.profile.live.STARTUP_SECONDS`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmixer.errors import RmixerError
from rmixer.execute.base import End, LostEnd
from rmixer.execute.logtail import last_line
from rmixer.execute.process import ProcessExecutor
from rmixer.model import (
    Device,
    JobSpec,
    Node,
    Outcome,
    Placement,
    Profile,
    StateName,
    about_fastest,
)
from rmixer.paths import AttemptPaths, RunPaths
from rmixer.profile.on_gpu import GpuUse
from rmixer.profile.window import LEAST_SECONDS, Window

#: The speed may fall by so much before more threads are not tried.
WORTH_TRYING = 0.9
CONFIDENCE, CONFIDENCE_CUT_OFF = 0.9, 0.6
#: A training of ours would end within milliseconds; it is given so many times its length.
_LONGER = 1000
_LOOK_SECONDS = 0.05
_LEAVE_SECONDS = 30.0
_ENDED = Outcome(state=StateName.CANCELLED, reason="probed")


@dataclass(slots=True)
class Seen:
    """What was seen of a job at one thread count.

    Attributes:
        threads: that it had.
        profile: at that count; None where nothing was seen.
        gpu: what it used of the GPU, where it ran on one.
        was_enough: whether the window was as long as it should be.
        failure: why the job cannot run; empty if it can.
        note: what the reader should know.
    """

    threads: int
    profile: Profile | None = None
    gpu: GpuUse = field(default_factory=GpuUse)
    was_enough: bool = False
    failure: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where jobs are probed.

    Attributes:
        node: the machine.
        device: of the node.
        memory_bandwidth: of one core, bytes per second; 0 where not measured.
        seconds: for one job, all of its thread counts together.
        should_stop: asked often; the job is ended and the probe with it.
    """

    node: Node
    device: Device = field(default_factory=Device)
    memory_bandwidth: float = 0.0
    seconds: float = 30.0
    should_stop: Callable[[], bool] = lambda: False


def probe(spec: JobSpec, bench: Bench) -> tuple[Profile | None, list[Seen]]:
    """The profile of a job at its best thread count, with its speeds at the others.

    Args:
        spec: the job.
        bench: where.

    Returns:
        None and what was seen where the job cannot run or showed nothing.
    """
    deadline = time.monotonic() + bench.seconds
    found: list[Seen] = []
    counts = thread_counts(spec, len(bench.node.cores))
    for place, threads in enumerate(counts):
        left = deadline - time.monotonic()
        if found and left < LEAST_SECONDS:
            break
        found.append(_look_at(spec, threads, bench, left / (len(counts) - place)))
        if found[-1].failure or bench.should_stop() or not _is_worth_more(found):
            break
    return _conclude(spec, found), found


def thread_counts(spec: JobSpec, cores: int) -> Sequence[int]:
    """The counts to try: the job's own, else 1, 2, 4 ... and all cores."""
    if spec.threads is not None:
        return (min(spec.threads, cores),)
    powers = [1 << power for power in range(cores.bit_length())]
    return sorted({*(count for count in powers if count <= cores), cores})


def _is_worth_more(found: Sequence[Seen]) -> bool:
    """Whether more threads may help: speeds are seen, and have not fallen clearly."""
    speeds = [_speed(seen.profile) for seen in found]
    return bool(speeds[-1]) and speeds[-1] >= WORTH_TRYING * max(speeds)


def _speed(profile: Profile | None) -> float:
    return 1 / profile.step_seconds if profile is not None and profile.step_seconds else 0.0


def _conclude(spec: JobSpec, found: Sequence[Seen]) -> Profile | None:
    shown = [seen for seen in found if seen.profile is not None]
    if not shown:
        return None
    threads = about_fastest({seen.threads: _speed(seen.profile) for seen in shown})
    best = next(seen for seen in shown if seen.threads == threads)
    assert best.profile is not None
    total = spec.total_steps or best.profile.total_steps // _times(spec)
    return replace(
        best.profile,
        speeds={seen.threads: round(s, 4) for seen in shown if (s := _speed(seen.profile))},
        memory=max(seen.profile.memory for seen in shown if seen.profile is not None),
        total_steps=total,
        source="probe",
        confidence=CONFIDENCE if best.was_enough else CONFIDENCE_CUT_OFF,
    )


def _look_at(spec: JobSpec, threads: int, bench: Bench, seconds: float) -> Seen:
    """Run the job with so many threads until enough was seen or the time is over."""
    seen = Seen(threads)
    with _running(spec, threads, bench) as (executor, token, paths):
        window = Window(time.monotonic(), threads, bench.device, paths)
        deadline = time.monotonic() + seconds
        try:
            while not window.may_end and time.monotonic() < deadline and not bench.should_stop():
                ends = executor.poll()
                if ends:
                    seen.failure, seen.note = _of_end(ends[0], paths)
                    break
                window.look(time.monotonic(), executor.pids(token))
                time.sleep(_LOOK_SECONDS)
        finally:
            window.close()
    seen.was_enough, seen.gpu = window.is_enough, window.gpu
    if not seen.failure:
        seen.profile = window.profile(bench.memory_bandwidth)
    if seen.profile is None and not seen.failure and not seen.note:
        seen.note = f"nothing was seen of it within {seconds:.0f} s; give more --seconds"
    return seen


@contextmanager
def _running(
    spec: JobSpec, threads: int, bench: Bench
) -> Iterator[tuple[ProcessExecutor, str, AttemptPaths]]:
    """The job as a process; nothing of it is left afterwards.

    Raises:
        RmixerError: it cannot be started.
    """
    node = bench.node
    placement = Placement(
        device=bench.device.id,
        threads=threads,
        cpu=float(threads),
        cores=node.cores[:threads],
        memory=node.memory,
        memory_limit=node.memory,
    )
    with tempfile.TemporaryDirectory(prefix="rmixer-profile-") as name:
        paths = RunPaths(Path(name))
        executor = ProcessExecutor(paths, node, grace_seconds=1.0)
        token = f"{paths.root.name}.{threads}"
        try:
            executor.start(_longer(spec), 1, token, placement)
            try:
                yield executor, token, paths.job(spec.id).attempt(1)
            finally:
                _end(executor, token)
        finally:
            executor.close()


def _end(executor: ProcessExecutor, token: str) -> None:
    """End the job with all that it has started."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while token in executor.roots():
        executor.stop(token, force=True, outcome=_ENDED)
        if executor.poll():
            return
        if time.monotonic() > deadline:
            raise RmixerError(f"a process of the probe does not end: {executor.roots()[token]}")
        time.sleep(_LOOK_SECONDS)


def _longer(spec: JobSpec) -> JobSpec:
    """A training of ours that goes on for as long as it is looked at."""
    if spec.kind != "model":
        return spec
    more = {
        name: spec.payload[name] * _LONGER
        for name in ("epochs", "steps")
        if isinstance(spec.payload.get(name), int)
    }
    return replace(spec, payload={**spec.payload, **more})


def _times(spec: JobSpec) -> int:
    """What the steps that its page names are to be divided by."""
    return _LONGER if spec.kind == "model" else 1


def _of_end(end: End | LostEnd, paths: AttemptPaths) -> tuple[str, str]:
    """A failure and a note: how a job ended before enough was seen."""
    if isinstance(end, LostEnd):
        return end.message, ""
    outcome = end.outcome
    if outcome.state == StateName.SUCCEEDED:
        return "", "it ended while it was looked at"
    last = last_line(paths.log.read_bytes()) if paths.log.exists() else ""
    return outcome.message or outcome.reason or last or str(outcome.state), ""
