"""What this machine has for jobs: cores, memory, GPUs, memory bandwidth."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rmixer.errors import UsageError
from rmixer.model import Device, Node
from rmixer.monitor.cgroups import cpu_quota, memory_left
from rmixer.monitor.gpus import GpuReading, read_handle
from rmixer.resources import KIB, MIB

logger = logging.getLogger(__name__)

#: Left to everything that is not a job: the runner, its shims, other people's processes.
MEMORY_MARGIN = 0.05
SMALLEST_MEMORY_MARGIN = 256 * MIB

#: The best of several products of 512 x 512: others only make them slower.
_MULTIPLY = """
import time, numpy
a = numpy.ones((512, 512), numpy.float32)
best, end = float("inf"), time.perf_counter() + 0.2
while time.perf_counter() < end:
    began = time.perf_counter()
    a @ a
    best = min(best, time.perf_counter() - began)
print(2 * 512**3 / best)
"""
_COPY_BYTES = 64 * MIB
_COPY_SECONDS = 0.05


def discover_node(
    *,
    cores: int | None = None,
    gpus: Collection[int] | None = None,
    held_memory: int = 0,
    proc: str = "/proc",
    sys: str = "/sys",
    affinity: Collection[int] | None = None,
) -> Node:
    """This machine, as far as this process may use it.

    Args:
        cores: use so many cores only.
        gpus: use the GPUs of these indices only.
        held_memory: bytes that jobs of ours hold already; they count as free for jobs.
        proc: where ``/proc`` is.
        sys: where ``/sys`` is.
        affinity: the cores that this process may run on; None asks the system.

    Raises:
        UsageError: more cores, or other GPUs, than there are.
    """
    allowed = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    quota = cpu_quota(Path(proc), Path(sys))
    if quota is not None:
        allowed = allowed[: max(1, int(quota))]
    if cores is not None:
        if not 1 <= cores <= len(allowed):
            raise UsageError(f"{cores} cores asked for; this machine has 1 to {len(allowed)}")
        allowed = allowed[:cores]
    return Node(
        name=socket.gethostname(),
        cores=tuple(allowed),
        memory=usable_memory(held_memory=held_memory, proc=proc, sys=sys),
        devices=(Device(), *_select(discover_gpus(), gpus)),
    )


def usable_memory(*, held_memory: int = 0, proc: str = "/proc", sys: str = "/sys") -> int:
    """Host memory that jobs may use, bytes: available, within all limits, less a margin."""
    available = memory_available(proc=proc, sys=sys) + held_memory
    return max(0, available - max(int(available * MEMORY_MARGIN), SMALLEST_MEMORY_MARGIN))


def memory_available(*, proc: str = "/proc", sys: str = "/sys") -> int:
    """Host memory that can be had without swapping, within the limits of our control group."""
    available = 0
    for line in Path(proc, "meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * KIB
    left = memory_left(Path(proc), Path(sys))
    return available if left is None else max(0, min(available, left))


def discover_gpus() -> tuple[Device, ...]:
    """The NVIDIA GPUs of this machine by the driver's library; none where there is no driver.

    One that does not say which it is, is left out with a warning. One that does, but whose memory
    cannot be read, is there and closed: it may answer again.
    """
    import pynvml  # noqa: PLC0415 - only where a machine is looked at

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(device for device in found if device is not None)
    except pynvml.NVMLError:  # a driver that answers no more: no GPU can be used either
        return ()
    finally:
        pynvml.nvmlShutdown()


def measure_memory_bandwidth() -> float:
    """Bytes per second that one core moves when it copies; reads and writes both count.

    Takes about a tenth of a second. The best of several copies: others only make it slower.
    """
    import numpy as np  # noqa: PLC0415 - slow to import, and not always wanted

    source = np.ones(_COPY_BYTES // 8)
    target = np.zeros_like(source)
    best, end = float("inf"), time.perf_counter() + _COPY_SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return 2 * _COPY_BYTES / best


def measure_core_flops() -> float:
    """FLOPs per second of one core in a large single-precision matrix product; takes a second.

    In a process of its own, since the libraries' number of threads is settled when they are loaded.
    0 where it cannot be measured.
    """
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", _MULTIPLY],
        env={**os.environ, **one_thread},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return float(done.stdout)
    except ValueError:
        return 0.0


def _gpu(library: Any, index: int) -> Device | None:
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        id = _decode(library.nvmlDeviceGetUUID(handle))  # noqa: A001
        kind = _decode(library.nvmlDeviceGetName(handle))
    except library.NVMLError as error:
        logger.warning("GPU %d is left out, it does not answer: %s", index, error)
        return None
    try:
        reading = read_handle(library, handle)
    except library.NVMLError as error:
        reading = GpuReading(problem=str(error))
    return Device(
        id=id,
        kind=kind,
        index=index,
        memory=reading.free,
        foreign=reading.capacity - reading.free,
        closed=f"GPU {index} cannot be read: {reading.problem}" if reading.problem else "",
    )


def _decode(text: str | bytes) -> str:
    """Older versions of the library return bytes."""
    return text.decode() if isinstance(text, bytes) else text


def _select(found: Sequence[Device], wanted: Collection[int] | None) -> Sequence[Device]:
    if wanted is None:
        return found
    missing = sorted(set(wanted) - {device.index for device in found})
    if missing:
        raise UsageError(
            f"GPU {', '.join(map(str, missing))} asked for; this machine has {len(found)}"
        )
    return [device for device in found if device.index in wanted]
