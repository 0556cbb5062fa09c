"""Estimates of our trainings, traced in a process of their own: it never disturbs a run.

The child imports torch, this process does not. What it has answered counts if it fails or is
stopped for time; the rest is an error per job, to be answered with a fallback.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmixer.execute.logtail import last_line

WORKER = "rmixer.trace.worker"
#: To start Python and import torch, and for every job.
START_SECONDS, JOB_SECONDS = 60.0, 20.0
PARSE_SECONDS = 600.0
_LOOK_SECONDS = 0.2
#: What of a payload an estimate depends on.
_RELEVANT = ("model", "params", "optimizer", "batch_size", "data")


def trace_models(
    payloads: Mapping[str, Mapping[str, Any]],
    *,
    device: str,
    cache_dir: Path,
    environment: Mapping[str, str],
    parse: bool = False,
    workspace: int = 0,
    limit_bytes: int | None = None,
    limit_seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, dict[str, Any]]:
    """Trace trainings of ours. Never raises for what a job or the child does.

    Args:
        payloads: by job id; alike ones are traced once.
        device: ``cpu`` or ``cuda``.
        cache_dir: where parsed data are.
        environment: of the process, as jobs have it.
        parse: whether data that are not there yet are parsed.
        workspace: bytes of cuBLAS's workspace.
        limit_bytes: memory of the device, for whether it can fit.
        limit_seconds: for all of it; None: by the number of jobs.
        should_stop: asked several times a second.

    Returns:
        By job id the worker's answer, or ``{"error": ...}``.
    """
    groups: dict[str, list[str]] = {}
    for id, payload in payloads.items():  # noqa: A001
        groups.setdefault(_key(payload), []).append(id)
    answers: dict[str, dict[str, Any]] = {}
    for place, members in _by_place(groups, payloads).items():
        python, workdir, own = place
        settled = {**environment, **dict(own)}
        request = {
            "device": device,
            "cache_dir": str(cache_dir.absolute()),
            "parse": parse,
            "environment": settled,
            "workspace": workspace,
            "limit_bytes": limit_bytes,
            "jobs": [{**_without_process(payloads[ids[0]]), "id": ids[0]} for ids in members],
        }
        seconds = limit_seconds or (
            START_SECONDS + JOB_SECONDS * len(members) + PARSE_SECONDS * parse
        )
        found, why = _ask(request, python, workdir, settled, seconds, should_stop)
        for ids in members:
            answer = found.get(ids[0], {"error": why})
            answers |= dict.fromkeys(ids, answer)
    return answers


def _key(payload: Mapping[str, Any]) -> str:
    """Payloads with the same key need the same memory."""
    relevant = {name: payload.get(name) for name in _RELEVANT}
    optimizer = dict(relevant["optimizer"] or {})
    optimizer.pop("lr", None)
    relevant["optimizer"] = optimizer
    place = [payload.get("python"), payload.get("workdir"), payload.get("env")]
    return json.dumps([relevant, place], sort_keys=True, default=str)


Place = tuple[str, str, tuple[tuple[str, str], ...]]


def _by_place(
    groups: Mapping[str, list[str]], payloads: Mapping[str, Mapping[str, Any]]
) -> dict[Place, list[list[str]]]:
    """Jobs by the interpreter, directory and environment that they need, in their order."""
    found: dict[Place, list[list[str]]] = {}
    for ids in groups.values():
        payload = payloads[ids[0]]
        python = str(payload.get("python") or sys.executable)
        own = tuple(sorted((key, str(value)) for key, value in (payload.get("env") or {}).items()))
        place = (python, str(payload.get("workdir") or Path.cwd()), own)
        found.setdefault(place, []).append(ids)
    return found


def _without_process(payload: Mapping[str, Any]) -> dict[str, Any]:
    kept = (*_RELEVANT, "seed")
    return {name: payload[name] for name in kept if name in payload}


def _ask(
    request: Mapping[str, Any],
    python: str,
    workdir: str,
    environment: Mapping[str, str],
    seconds: float,
    should_stop: Callable[[], bool],
) -> tuple[dict[str, dict[str, Any]], str]:
    """The answers by job id, and why the others are missing."""
    try:
        child = subprocess.Popen(
            [python, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workdir,
            env={**environment, "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
    except OSError as error:
        return {}, f"no process for the estimate: {error.strerror}"
    deadline = time.monotonic() + seconds
    text: bytes | None = json.dumps(request).encode()
    try:
        while True:
            try:
                out, err = child.communicate(text, timeout=_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                text = None
                if should_stop() or time.monotonic() > deadline:
                    break
            else:
                why = last_line(err) or f"the estimate ended with code {child.returncode}"
                return dict(_answers(out)), why
    except BaseException:
        _end(child)
        raise
    why = f"no estimate within {seconds:.0f} s; say `memory:` in the job"
    return dict(_answers(_end(child))), why


def _end(child: subprocess.Popen[bytes]) -> bytes:
    """Kill the child and all of its own; what it had written by then."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.communicate()[0]


def _answers(out: bytes) -> Sequence[tuple[str, dict[str, Any]]]:
    found = []
    for line in out.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # cut off
            answer = json.loads(line)
            found.append((answer["id"], answer))
    return found
