"""The environment of a job: what of ours it gets, and what the user's own values win over."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from rmixer import launch
from rmixer.model import CPU, JobSpec, Placement
from rmixer.resources import MIB

#: Marks every process of an attempt; `rmixer.execute.tagged` finds them by it.
TOKEN = "RMIXER_TOKEN"  # noqa: S105 - a name, not a secret

#: Where a program keeps its checkpoint, and what it says of itself at its end: `rmixer.job`.
CHECKPOINT, RESULT = "RMIXER_CHECKPOINT", "RMIXER_RESULT"
#: Names the page in which an instrumented program shows its progress; see `rmixer.launch`.
PROGRESS = "RMIXER_PROGRESS"
_LAUNCH_DIR = str(Path(launch.__file__).parent)

#: The thread settings that numerical libraries read. The first is the one most of the others
#: fall back to, so a user's own value of it is meant for all of them.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)

#: How much an allocator of PyTorch may take of each GPU; read by `rmixer.launch.limit`.
DEVICE_MEMORY = "RMIXER_DEVICE_MEMORY"
#: Left for the context of CUDA, which no allocator knows of.
CONTEXT_BYTES = 512 * MIB
#: (variable, value, other variables by which a user decides the same) of TensorFlow, JAX, Paddle.
GROWTH = (
    ("TF_FORCE_GPU_ALLOW_GROWTH", "true", ()),
    (
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "false",
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
    ),
    (
        "FLAGS_allocator_strategy",
        "auto_growth",
        ("FLAGS_fraction_of_gpu_memory_to_use", "FLAGS_initial_gpu_memory_in_mb"),
    ),
)

#: From this version of glibc on, any mmap threshold is taken (seen in 2.36). Older ones ignore one
#: above 32 MiB, half of their ``HEAP_MAX_SIZE``, and would then map every block of 128 KiB.
_ANY_THRESHOLD = (2, 36)
#: Blocks below it are not mapped one by one and unmapped again: the gradients of an embedding.
_MMAP_THRESHOLD, _OLD_MMAP_THRESHOLD = 256 * MIB, 32 * MIB
#: The heap gives back only what is free at its top beyond this: the gradients of one step.
_TRIM_THRESHOLD = 512 * MIB


def allocator_settings() -> dict[str, str]:
    """Settings of glibc's allocator that keep memory between steps, and whole.

    The thresholds: 1.24x for dense Adam on a 2-core x86 VM, 57k page faults a second become 3k.

    No caches of small chunks: torch asks for aligned memory, and the slivers that glibc cuts off
    for that stay in these caches or under small objects, so that a freed tensor's chunk is too
    small for the next tensor of its size. A DLRM step at batch 8192 held 588 MiB with them and
    484 MiB without, at the same speed (same VM, glibc 2.36).
    """
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
        version = tuple(int(part) for part in name.split()[1].split("."))
    except (IndexError, OSError, ValueError):  # another C library
        return {}
    mapped = _MMAP_THRESHOLD if version >= _ANY_THRESHOLD else _OLD_MMAP_THRESHOLD
    return {
        "MALLOC_MMAP_THRESHOLD_": str(mapped),
        "MALLOC_TRIM_THRESHOLD_": str(_TRIM_THRESHOLD),
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
    }


def job_environment(
    spec: JobSpec,
    attempt_number: int,
    token: str,
    placement: Placement,
    *,
    run_dir: Path,
    temporary: str,
    progress: str,
    checkpoint: str,
    result: str,
    inherited: Mapping[str, str],
) -> dict[str, str | None]:
    """What to change in ``inherited`` for a job; None removes a name.

    The job's own ``env`` wins over all of it. Thread and allocator settings give way also to what
    the user has exported, since those are about the program. A free ``MASTER_PORT`` and the visible
    GPUs do not: one exported value cannot be right for several jobs.

    A program of somebody else's is instrumented (`rmixer.launch`): the launcher comes first on its
    ``PYTHONPATH``, before what is there. ``RMIXER_PROGRESS: ""`` in the job's ``env`` forbids it.
    """
    own = {name: str(value) for name, value in dict(spec.payload.get("env") or {}).items()}
    changes: dict[str, str | None] = {
        "PYTHONUNBUFFERED": "1",
        **allocator_settings(),
        **thread_settings(placement.threads, {**inherited, **own}),
        **growth_settings(placement.device, {**inherited, **own}),
    }
    changes = {name: value for name, value in changes.items() if name not in inherited}
    changes["TMPDIR"] = temporary
    changes["CUDA_VISIBLE_DEVICES"] = "" if placement.device == CPU else placement.device
    if "MASTER_PORT" not in own:
        changes["MASTER_PORT"] = str(free_port())
    changes |= own
    if spec.kind == "command":
        changes |= {CHECKPOINT: checkpoint, RESULT: result}
    if spec.kind == "command" and own.get(PROGRESS) != "":
        path = own.get("PYTHONPATH", inherited.get("PYTHONPATH"))
        changes |= {PROGRESS: progress, "PYTHONPATH": launched(path)}
        changes |= device_limit(placement)
    return changes | {
        TOKEN: token,
        "RMIXER_JOB_ID": spec.id,
        "RMIXER_ATTEMPT": str(attempt_number),
        "RMIXER_RUN_DIR": str(run_dir),
    }


def growth_settings(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """On a GPU: let frameworks take its memory as they need it, not most of it at once.

    Where the user has set one of a framework's own variables, that framework is left alone.
    """
    if device == CPU:
        return {}
    return {
        name: value
        for name, value, others in GROWTH
        if not any(other in environment for other in (name, *others))
    }


def device_limit(placement: Placement) -> dict[str, str]:
    """What the launcher holds PyTorch's allocator to: the booking less the context."""
    booked = placement.device_memory
    if placement.device == CPU or not booked:
        return {}
    return {DEVICE_MEMORY: str(max(booked // 2, booked - CONTEXT_BYTES))}


def launched(path: str | None) -> str:
    """A ``PYTHONPATH`` with the launcher first."""
    return f"{_LAUNCH_DIR}{os.pathsep}{path}" if path else _LAUNCH_DIR


def thread_settings(threads: int | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The thread variables that ``environment`` does not have, set to its own value or ours."""
    count = declared_threads(environment) or threads
    if count is None:
        return {}
    return {name: str(count) for name in THREAD_VARIABLES if name not in environment}


def declared_threads(environment: Mapping[str, str]) -> int | None:
    """The number of threads that the user has set for a program, or None.

    ``OMP_NUM_THREADS`` may be a list, one number per nesting level; the first one counts.
    """
    match = re.match(r"\s*([0-9]+)", environment.get(THREAD_VARIABLES[0], ""))
    return int(match.group(1)) or None if match else None


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def inherited_environment() -> dict[str, str]:
    """Our own environment."""
    return dict(os.environ)
