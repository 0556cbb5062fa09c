"""What the driver's library (NVML) tells of NVIDIA GPUs: whether they answer, and who holds what.

"Not known" is a value: a GPU that does not answer says why, and a process whose memory the driver
does not tell (on Windows' driver model, in some containers) is None or absent, never 0.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

#: The library is loaded anew at most this often.
RETRY_SECONDS = 2.0
#: The driver answers, but not this question: not supported, no permission.
_UNTOLD = frozenset({3, 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What one GPU said.

    Attributes:
        problem: why it cannot be read; empty where it can.
        used: memory in use by anybody, the driver's own included, bytes.
        free: the rest of it, bytes.
        processes: bytes by the pid of each process that computes on it; None where the driver does
            not tell. A process whose memory is not told has 0.
    """

    problem: str = ""
    used: int = 0
    free: int = 0
    processes: Mapping[int, int] | None = None

    @property
    def capacity(self) -> int:
        """Memory that is free or held by a process, bytes: all but the driver's own."""
        return self.free + sum((self.processes or {}).values())


@dataclass(slots=True)
class GpuMeter:
    """Asks NVML; the library is loaded at the first question.

    A GPU that fails does not keep the others from being read, and is asked again each time. Where
    all of them fail the library may have lost the driver (in a container whose devices were taken
    away for a moment it stays so), and is loaded anew.

    Args:
        clock: seconds, for the time between two loadings.
    """

    clock: Callable[[], float] = time.monotonic
    _library: Any = None
    _handles: dict[str, Any] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _failing: set[str] = field(default_factory=set)
    _problem: str = ""
    _retry_at: float = 0.0

    def read(self, uuid: str) -> GpuReading:
        """The GPU of that UUID now."""
        if self._failing and self._failing == self._asked and self.clock() >= self._retry_at:
            self._let_go()
        self._asked.add(uuid)
        if not self._load():
            self._failing.add(uuid)
            return GpuReading(problem=self._problem)
        nvml = self._library
        try:
            if uuid not in self._handles:
                self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            reading = read_handle(nvml, self._handles[uuid])
        except nvml.NVMLError as error:
            self._handles.pop(uuid, None)
            self._failing.add(uuid)
            return GpuReading(problem=str(error))
        self._failing.discard(uuid)
        return reading

    def close(self) -> None:
        """Let go of the library; the next question loads it again."""
        self._let_go()

    def _load(self) -> bool:
        if self._library is not None:
            return True
        if self.clock() < self._retry_at:
            return False
        nvml = importlib.import_module("pynvml")
        self._retry_at = self.clock() + RETRY_SECONDS
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self._problem = str(error)
            return False
        self._library = nvml
        return True

    def _let_go(self) -> None:
        library, self._library = self._library, None
        self._handles.clear()
        self._failing.clear()
        if library is not None:
            try:
                library.nvmlShutdown()
            except library.NVMLError as error:
                logger.debug("the driver's library was lost already: %s", error)


def read_handle(nvml: Any, handle: Any) -> GpuReading:
    """What a GPU says, by a handle of the library.

    Raises:
        pynvml.NVMLError: it does not answer.
    """
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuReading(
        used=int(memory.used), free=int(memory.free), processes=_processes(nvml, handle)
    )


def _processes(nvml: Any, handle: Any) -> dict[int, int] | None:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        if error.value in _UNTOLD:
            return None
        raise
    sizes: dict[int, int] = {}
    for process in found:
        sizes[process.pid] = sizes.get(process.pid, 0) + int(process.usedGpuMemory or 0)
    return sizes
