"""What processes hold of the memory of NVIDIA GPUs, by the driver's library (NVML).

"Not known" is a value: a GPU that does not answer, or a process whose memory the driver does not
tell (on Windows' driver model, in some containers), is None or absent, never 0.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)


class GpuMemoryMeter:
    """Asks NVML who holds what; the library is loaded at the first question.

    A driver that cannot be loaded, or stops to answer, is asked no more, with one warning.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self._usable = True
        self._handles: dict[str, Any] = {}

    def by_process(self, uuid: str) -> Mapping[int, int] | None:
        """Bytes by the pid of each process that computes on a GPU; None where it cannot be known.

        Args:
            uuid: of the GPU.
        """
        if not self._load():
            return None
        nvml = self._library
        try:
            if uuid not in self._handles:
                self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            found = nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
        except nvml.NVMLError as error:
            self._give_up(f"{uuid}: {error}")
            return None
        sizes: dict[int, int] = {}
        for process in found:
            if process.usedGpuMemory is not None:
                sizes[process.pid] = sizes.get(process.pid, 0) + int(process.usedGpuMemory)
        return sizes

    def close(self) -> None:
        """Let go of the library."""
        if self._library is not None:
            self._library.nvmlShutdown()
            self._library, self._usable = None, False

    def _load(self) -> bool:
        if self._library is None and self._usable:
            nvml = importlib.import_module("pynvml")
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                self._give_up(str(error))
            else:
                self._library = nvml
        return self._usable

    def _give_up(self, why: str) -> None:
        self._usable = False
        logger.warning("memory of processes on GPUs is not known: %s", why)
