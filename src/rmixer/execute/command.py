"""What to execute for a job: the order to its shim, and the configuration of our trainer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmixer import paths as files
from rmixer.execute.attempt import short_name
from rmixer.execute.environment import job_environment
from rmixer.execute.mps import MpsDaemons
from rmixer.launch import mps_client
from rmixer.model import JobSpec, Placement
from rmixer.paths import AttemptPaths, JobPaths, RunPaths

CONFIG_VERSION = 1
WORKER = "rmixer.train.worker"
#: Keys of a payload that are about the process, not about the training.
PROCESS_KEYS = frozenset({"env", "workdir", "python", "argv"})


@dataclass(frozen=True, slots=True)
class Order:
    """What is written before an attempt starts.

    Attributes:
        document: ``order.json``.
        config: ``config.json``, for a training of ours.
        temporary: a short name of the scratch directory that has to be made; mostly None.
    """

    document: Mapping[str, Any]
    config: Mapping[str, Any] | None
    temporary: str | None


def build_order(
    spec: JobSpec,
    attempt_number: int,
    token: str,
    placement: Placement,
    *,
    paths: RunPaths,
    cores: tuple[int, ...],
    grace_seconds: float,
    inherited: Mapping[str, str],
    mps: MpsDaemons | None = None,
) -> Order:
    """The order for an attempt: argv, directory, environment, cores, memory limit.

    A client of an MPS daemon gets its settings, unless the job's own ``env`` names another daemon;
    what the user has set of its limits wins.
    """
    attempt = paths.job(spec.id).attempt(attempt_number)
    temporary = short_name(attempt, token)
    environment = job_environment(
        spec,
        attempt_number,
        token,
        placement,
        run_dir=paths.root.absolute(),
        temporary=temporary or str(attempt.scratch.absolute()),
        progress=str(attempt.progress.absolute()),
        checkpoint=str(paths.job(spec.id).checkpoint.absolute()),
        result=str(attempt.result.absolute()),
        inherited=inherited,
    )
    words = None
    if mps is not None and mps_client.PIPE not in environment:
        settings, words = mps.settings(placement), mps.words(placement.device)
        environment = {
            **{k: v for k, v in settings.items() if k not in inherited or k in mps_client.WHERE},
            **environment,
        }
        words = words if settings else None
    config = None
    if spec.kind == "model":
        job = paths.job(spec.id)
        config = training_config(spec, placement, job, attempt, grace_seconds)
    document = {
        "token": token,
        "argv": command_line(spec, attempt),
        "cwd": str(spec.payload.get("workdir") or Path.cwd()),
        "env": environment,
        "cores": sorted(cores),
        "memory_limit": placement.memory_limit or None,
        "grace_seconds": grace_seconds,
        "temporary": temporary,
        "mps": words,
    }
    return Order(document, config, temporary)


def command_line(spec: JobSpec, attempt: AttemptPaths) -> list[str]:
    """The program and its arguments: a command as it is, a training of ours by its module."""
    if spec.kind == "command":
        return [str(word) for word in spec.payload["argv"]]
    python = str(spec.payload.get("python") or sys.executable)
    return [python, "-m", WORKER, str(attempt.config.absolute())]


def training_config(
    spec: JobSpec,
    placement: Placement,
    job: JobPaths,
    attempt: AttemptPaths,
    grace_seconds: float,
) -> dict[str, Any]:
    """``config.json`` of our trainer: what was asked for, and where this attempt's files go."""
    asked = {key: value for key, value in spec.payload.items() if key not in PROCESS_KEYS}
    return {
        **asked,
        "schema_version": CONFIG_VERSION,
        "name": spec.name,
        "threads": placement.threads,
        "cache_dir": str(files.cache_dir().absolute()),
        "progress_path": str(attempt.progress.absolute()),
        "result_path": str(attempt.result.absolute()),
        "model_dir": str(job.model.absolute()),
        "checkpoint_dir": str(job.checkpoints.absolute()),
        "stop_grace_seconds": grace_seconds,
    }
