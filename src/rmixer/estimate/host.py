"""What a training process holds besides its tensors: interpreter, libraries, a first warm step.

It is measured on this machine by a real, tiny training, once per set of versions, and kept in the
store: 321 MiB where the import of torch alone gives 220 (2-core x86 VM, torch 2.13).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmixer.errors import RmixerError
from rmixer.execute.logtail import last_line
from rmixer.resources import MIB
from rmixer.spec.identity import version

WORKER = "rmixer.train.worker"
LIMIT_SECONDS = 120.0
_JOB: Mapping[str, Any] = {
    "name": "baseline",
    "model": "dlrm",
    "optimizer": {"name": "adam"},
    "data": {"format": "generated", "like": "criteo", "rows": 4096, "max_table_rows": 100},
    "batch_size": 1024,
    "steps": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Memory of a warm process without the tensors of its job, bytes.

    Attributes:
        anonymous: its own; what a reservation is for.
        file: pages of mapped libraries, shared with other processes.
        source: ``measured``, or ``stated`` where it has not been measured on this machine.
    """

    anonymous: int
    file: int
    source: str = "measured"


#: Until it is measured: a 2-core x86 VM, Python 3.11, torch 2.13.0 (CPU build).
STATED = Baseline(anonymous=190 * MIB, file=180 * MIB, source="stated")


def baseline_key(threads: int | None) -> str:
    """What a measured baseline is kept under: machine, versions, threads."""
    cores = len(os.sched_getaffinity(0))
    torch = version("torch") or "none"
    parts = (platform.node(), platform.python_version(), torch, threads or f"all {cores}")
    return "/".join(map(str, parts))


def measure_baseline(environment: Mapping[str, str], threads: int | None, tensors: int) -> Baseline:
    """Train the tiny job twice (the first time its data are made), and look at the second.

    Args:
        environment: of the process, as jobs have it.
        threads: of the job; None for the libraries' default.
        tensors: bytes that the tiny job's own tensors take, which are left out.

    Raises:
        RmixerError: it did not run.
    """
    with tempfile.TemporaryDirectory(prefix="rmixer-baseline-") as name:
        folder, cache = Path(name), Path(name) / "cache"
        job = {**_JOB, "threads": threads}
        train_once(job, folder, cache, environment)
        memory = train_once(job, folder, cache, environment)
        own = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    peak, file = memory["peak_bytes"], memory["file_bytes"]
    return Baseline(anonymous=peak - file - tensors, file=max(0, file - own))


def tiny_job() -> dict[str, Any]:
    """The job that the baseline is measured with, as a request for a trace has it."""
    return {**_JOB, "id": "baseline", "params": {}}


def train_once(
    job: Mapping[str, Any],
    folder: Path,
    cache: Path,
    environment: Mapping[str, str],
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[str, int]:
    """Really train a job of ours in a process of its own, and read what that says of its memory.

    Args:
        job: as `rmixer.train.config.JobConfig` has it, without paths.
        folder: where its files go.
        cache: where parsed data are.
        environment: of the process, as jobs have it.
        limit_seconds: how long it may take.

    Returns:
        `rmixer.monitor.own_memory` of the process when it was done, bytes.

    Raises:
        RmixerError: it did not run.
    """
    result = folder / "result.json"
    config = {
        **job,
        "cache_dir": str(cache),
        "progress_path": str(folder / "progress"),
        "result_path": str(result),
        "model_dir": str(folder / "model"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    try:
        subprocess.run(
            [sys.executable, "-m", WORKER, str(folder / "config.json")],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_seconds,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise RmixerError(f"{job['name']} took over {limit_seconds:.0f} s") from error
    except subprocess.CalledProcessError as error:
        why = f"{job['name']} cannot be measured: {last_line(error.stderr)}"
        raise RmixerError(why) from error
    memory: dict[str, int] = json.loads(result.read_text())["memory"]
    return memory
