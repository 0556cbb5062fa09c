"""The peak memory of a program of somebody else's, which is run unchanged.

First for a few steps on fake tensors, under the launcher (`rmixer.launch.rmixer_launcher`): the
program really starts, imports, reads its data, builds its model and makes three steps, but its
parameters and what is computed from them take no memory. Where that does not work (it makes no
optimizer step, looks at values, is not Python), it is run for real for a few steps or seconds, in a
memory cage, and its process tree is watched. Either way it is ended before it is done, and never
runs longer than its time limit. What it writes by then (files, logs) stays.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rmixer.estimate.heap import HeapSettings
from rmixer.estimate.timeline import gpu_peak, host_peak, sum_costs, why_not
from rmixer.execute.environment import launched, thread_settings
from rmixer.execute.logtail import last_line
from rmixer.launch import cage, shim
from rmixer.launch.pages import JobPages
from rmixer.model import JobSpec
from rmixer.monitor import descendants, sample_tree, usable_memory
from rmixer.resources import format_bytes

LIMIT_SECONDS = 120.0
#: A probe ends after so many steps; one that shows no steps, after so many seconds.
PROBE_STEPS = 5
PROBE_SECONDS = 20.0
_LOOK_SECONDS = 0.05


def estimate_command(
    job: JobSpec,
    gpu: bool,
    environment: Mapping[str, str],
    limit_seconds: float,
    limit_bytes: int | None = None,
    *,
    workspace: int = 0,
    device_room: int | None = None,
) -> dict[str, Any]:
    """An answer like that of `rmixer.trace.worker`, or with ``probe``: bytes, or ``error``.

    Args:
        job: a command.
        gpu: whether it is to be estimated as on a GPU.
        environment: that jobs start from.
        limit_seconds: for the traced run and for the probe, each.
        limit_bytes: host memory that it may take; None: what jobs may use here now.
        workspace: of cuBLAS on the GPU, bytes.
        device_room: what the GPU has beside the context, bytes; None: not known.
    """
    settled = _environment(job, environment)
    with tempfile.TemporaryDirectory(prefix="rmixer-estimate-") as name:
        folder = Path(name)
        room = usable_memory() if limit_bytes is None else limit_bytes
        answer = _traced(job, gpu, settled, folder, limit_seconds, room)
        if "trace" in answer:
            return _played(answer, gpu, settled, workspace, device_room)
        if gpu:  # a probe of a GPU program needs the GPU
            return answer
        probed = _probed(job, settled, folder, limit_seconds, room)
        if "probe" in probed:
            probed["notes"] = [f"not traced: {answer['error']}", *probed["notes"]]
            return probed
        if "failure" in probed:
            return probed
        return {"error": f"{answer['error']}; {probed['error']}"}


def _environment(job: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    own = {key: str(value) for key, value in dict(job.payload.get("env") or {}).items()}
    settled = {**environment, **own}
    settled |= thread_settings(job.threads, settled)
    settled["PYTHONPATH"] = launched(settled.get("PYTHONPATH"))
    return settled


def _traced(
    job: JobSpec,
    gpu: bool,
    environment: Mapping[str, str],
    folder: Path,
    limit_seconds: float,
    room: int,
) -> dict[str, Any]:
    began = time.perf_counter()
    file = folder / "trace.json.gz"
    more = {"RMIXER_TRACE": str(file), "RMIXER_TRACE_DEVICE": "cuda" if gpu else "cpu"}
    if not gpu:
        more["CUDA_VISIBLE_DEVICES"] = ""
    ended = _run(job, {**environment, **more}, folder, limit_seconds, file.exists, room)
    if not file.exists():
        return {"error": _why_no_trace(folder, ended, limit_seconds)}
    with gzip.open(file, "rt") as stream:
        trace = json.load(stream)
    held = trace["host"]
    others = sum(peak for pid, peak in ended.peaks.items() if pid != held["pid"])
    # What the recorder holds is about what a first real step adds (buffers of the libraries for
    # matrix products): three plain scripts came out within 2 % without either.
    resident = held["peak_bytes"] - held["overhead_bytes"] + others
    return {
        "seconds": time.perf_counter() - began,
        "process": {"resident": resident, "file": held["file_bytes"]},
        "notes": ["run on fake tensors for 3 steps; what it does later is not seen"],
        "trace": trace,
    }


def _played(
    answer: dict[str, Any],
    gpu: bool,
    environment: Mapping[str, str],
    workspace: int,
    device_room: int | None,
) -> dict[str, Any]:
    """The answer with its peaks in place of the trace."""
    trace = answer.pop("trace")
    answer["costs"] = sum_costs(trace["costs"])
    answer["calls"] = trace["calls"]
    answer["host"] = asdict(host_peak(trace, HeapSettings.from_environment(environment)))
    if gpu:
        answer["device"] = asdict(gpu_peak(trace, workspace=workspace))
        answer["refusal"] = why_not(trace, workspace, device_room)
    return answer


def _probed(
    job: JobSpec, environment: Mapping[str, str], folder: Path, limit_seconds: float, room: int
) -> dict[str, Any]:
    page = folder / "progress"
    pages = JobPages(str(page))
    began = time.monotonic()

    def enough() -> bool:
        seen = pages.read()
        if seen is None:  # nothing that steps: no torch, as yet
            return time.monotonic() - began > PROBE_SECONDS
        return bool(seen["step"] >= PROBE_STEPS)

    more = {"RMIXER_PROGRESS": str(page), "CUDA_VISIBLE_DEVICES": ""}
    ended = _run(job, {**environment, **more}, folder, limit_seconds, enough, room)
    if ended.oom_kills:
        return {"error": f"its probe took more than the {format_bytes(room)} that there are"}
    if ended.code:
        failure = f"it ended with code {ended.code}: {_last_line(folder)}"
        return {"error": failure, "failure": failure}
    if not ended.peak_bytes:
        return {"error": "its probe ended before it could be looked at"}
    seen = pages.read()
    seconds = f"{time.monotonic() - began:.0f} s"
    how = f"{seconds}, {seen['step']} steps" if seen else f"{seconds}, no step of torch seen"
    return {"probe": ended.peak_bytes, "notes": [f"probed for {how}; it may need more later"]}


class _Ended:
    """What was seen of a program until it was ended."""

    def __init__(self) -> None:
        self.code: int | None = None  # None: we ended it
        self.peak_bytes = 0  # of the whole tree
        self.peaks: dict[int, int] = {}  # of each process
        self.oom_kills = 0  # in its cage


def _run(
    job: JobSpec,
    environment: Mapping[str, str],
    folder: Path,
    limit_seconds: float,
    enough: Callable[[], bool],
    room: int,
) -> _Ended:
    """Run the program until all of it has ended, there is enough, or its time is over.

    It and all that it starts are in a memory cage of ``room`` bytes, and nothing of it is left
    behind: what it orphans comes to this process, which ends it.
    """
    ended = _Ended()
    deadline = time.monotonic() + limit_seconds
    ours = set(descendants(os.getpid()))
    shim.become_subreaper()
    with _caged(room, folder.name, ended) as enter, (folder / "log.txt").open("wb") as log:
        try:
            process = subprocess.Popen(
                [str(word) for word in job.payload["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=str(job.payload.get("workdir") or Path.cwd()),
                env=dict(environment),
                start_new_session=True,
                preexec_fn=enter,  # noqa: PLW1509 - what it calls is safe, and there are no threads
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.write(str(error).encode())
            ended.code = 127
            return ended
        try:
            while _look(process, ours, ended) and not enough() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        finally:
            ended.code = process.poll()
            _end(process, ours)
    return ended


def _look(process: subprocess.Popen[bytes], ours: set[int], ended: _Ended) -> bool:
    """Note what the program's processes hold; whether any of them still runs."""
    total = 0
    alive = [pid for pid in descendants(os.getpid()) if pid not in ours]
    for pid in alive:
        size = sample_tree([pid]).rss_bytes
        ended.peaks[pid] = max(ended.peaks.get(pid, 0), size)
        total += size
    ended.peak_bytes = max(ended.peak_bytes, total)
    return process.poll() is None or bool(alive)


@contextlib.contextmanager
def _caged(room: int, name: str, ended: _Ended) -> Iterator[Callable[[], None]]:
    """What a process calls to enter a cage of so many bytes; the cage is gone afterwards."""
    made = cage.make(room, name, lambda _: None)
    try:
        yield made.enter
    finally:
        ended.oom_kills = made.oom_kills() or 0
        made.clear()


def _end(process: subprocess.Popen[bytes], ours: set[int]) -> None:
    """Kill a program and everything that comes from it, until nothing is left."""
    while left := [pid for pid in descendants(os.getpid()) if pid not in ours]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                if pid != process.pid:
                    os.waitpid(pid, os.WNOHANG)
        time.sleep(_LOOK_SECONDS / 10)
    process.wait()


def _why_no_trace(folder: Path, ended: _Ended, limit_seconds: float) -> str:
    note = folder / "trace.json.gz.ended"
    if ended.code is None:
        return f"no optimizer step within {limit_seconds:.0f} s on fake tensors"
    if note.exists() and ended.code == 0:
        told = json.loads(note.read_text())
        what = "made no step of a torch optimizer" if told["torch"] else "did not import torch"
        return f"the program ended and {what}"
    if ended.code == 0:
        return "it is no Python program, or one that cannot be instrumented"
    return f"on fake tensors it ended with code {ended.code}: {_last_line(folder)}"


def _last_line(folder: Path) -> str:
    return last_line((folder / "log.txt").read_bytes())[:200] or "it said nothing"
