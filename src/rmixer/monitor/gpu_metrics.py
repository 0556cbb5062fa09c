"""How busy NVIDIA GPUs are, and with whom, by the driver's library (NVML).

What a GPU, its driver or a container does not tell is None, never 0: each figure is asked for by
itself, and one that is not supported is not asked for again. ``utilisation`` is the share of time
in which some kernel ran, however small; what part of the GPU worked is told by the performance
monitor (GPM) of Hopper and later alone.

Source: the NVML API reference; the numbers of GPM's metrics are those of ``nvml.h``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rmixer.monitor.driver import Driver
from rmixer.resources import MIB

logger = logging.getLogger(__name__)

#: GPM refreshes its counters every 0.1 s: two looks must be further apart.
GPM_SECONDS = 0.15
#: Bytes per second and lane, by generation of PCIe, after line coding.
_PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
#: Metrics of GPM: name of ours, number in ``nvml.h``, factor to our unit.
_GPM = (
    ("sm_active", 2, 0.01),
    ("tensor_active", 5, 0.01),
    ("dram_active", 10, 0.01),
    ("pcie_sent_bytes_per_second", 20, float(MIB)),
    ("pcie_received_bytes_per_second", 21, float(MIB)),
)
_TX, _RX = 0, 1
_KB = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """What one process uses of a GPU; None: not told.

    Attributes:
        memory_bytes: held.
        sm: share of the last second or so in which its kernels ran.
        memory: share of that time in which its kernels read or wrote memory.
    """

    memory_bytes: int | None = None
    sm: float | None = None
    memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One look at a GPU. Shares are in [0, 1]; None: not told.

    Attributes:
        memory_total_bytes, memory_used_bytes: of the GPU.
        utilisation: share of time in which a kernel ran.
        memory_utilisation: share of time in which memory was read or written.
        pcie_sent_bytes_per_second, pcie_received_bytes_per_second: from and to the GPU.
        pcie_capacity_bytes_per_second: of its link, each way.
        sm_active: share of the multiprocessors that worked (GPM).
        tensor_active: share of time in which tensor cores worked (GPM).
        dram_active: share of the memory's bandwidth that was used (GPM).
        processes: by pid; None: not told at all.
    """

    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    pcie_sent_bytes_per_second: float | None = None
    pcie_received_bytes_per_second: float | None = None
    pcie_capacity_bytes_per_second: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    processes: Mapping[int, GpuProcess] | None = None


@dataclass(slots=True)
class _Gpm:
    """The two buffers of GPM of one GPU, in turn."""

    buffers: list[Any] = field(default_factory=list)
    at: float | None = None


class GpuMetrics:
    """Looks at GPUs again and again.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = Driver("use of GPUs")
        self._clock = clock
        self._missing: set[tuple[str, str]] = set()
        self._told: set[str] = set()
        self._gpm: dict[str, _Gpm] = {}
        self._seen_until: dict[str, int] = {}

    def sample(self, uuid: str, *, pcie: bool = True) -> GpuSample:
        """What can be known of a GPU now; GPM's figures are over the time since the last look.

        Args:
            uuid: of the GPU.
            pcie: ask for PCIe's counters where GPM does not tell; that takes 40 ms.
        """
        nvml = self._driver.load()
        if nvml is None:
            return GpuSample()
        memory = self._ask(uuid, "memory", nvml.nvmlDeviceGetMemoryInfo)
        busy = self._ask(uuid, "utilisation", nvml.nvmlDeviceGetUtilizationRates)
        shares = self._ask(uuid, "gpm", lambda h: self._performance(uuid, h)) or {}
        if pcie and "pcie_sent_bytes_per_second" not in shares:
            shares |= self._transfers(uuid)
        return GpuSample(
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            utilisation=None if busy is None else busy.gpu / 100,
            memory_utilisation=None if busy is None else busy.memory / 100,
            pcie_capacity_bytes_per_second=self._ask(uuid, "link", self._link),
            processes=self._processes(uuid),
            **shares,
        )

    def close(self) -> None:
        """Let go of buffers and library."""
        for buffer in [buffer for gpm in self._gpm.values() for buffer in gpm.buffers]:
            nvml = self._driver.load()
            with suppress(nvml.NVMLError):  # the driver may be lost
                nvml.nvmlGpmSampleFree(buffer)
        self._gpm.clear()
        self._driver.close()

    def _ask(self, uuid: str, what: str, question: Callable[[Any], Any]) -> Any:
        """The answer about a GPU, None where there is none."""
        if (uuid, what) in self._missing:
            return None
        nvml = self._driver.load()
        try:
            return question(self._driver.handle(uuid))
        except (AttributeError, nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            self._missing.add((uuid, what))
        except nvml.NVMLError as error:
            if uuid not in self._told:
                self._told.add(uuid)
                logger.warning("%s: %s of this GPU is not known: %s", uuid, what, error)
        return None

    def _link(self, handle: Any) -> float | None:
        nvml = self._driver.load()
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        return _PCIE_LANE[generation] * width if generation in _PCIE_LANE else None

    def _transfers(self, uuid: str) -> dict[str, float]:
        nvml = self._driver.load()
        found = {}
        for name, counter in (("sent", _TX), ("received", _RX)):
            ask = partial(_swapped, nvml.nvmlDeviceGetPcieThroughput, counter)
            rate = self._ask(uuid, f"pcie {name}", ask)
            if rate is not None:
                found[f"pcie_{name}_bytes_per_second"] = float(rate) * _KB
        return found

    def _performance(self, uuid: str, handle: Any) -> dict[str, float] | None:
        """GPM's figures since the last look; None at the first, and where it is too soon."""
        nvml = self._driver.load()
        gpm = self._gpm.get(uuid)
        if gpm is None:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._missing.add((uuid, "gpm"))
                return None
            gpm = self._gpm[uuid] = _Gpm([nvml.nvmlGpmSampleAlloc() for _ in range(2)])
        now = self._clock()
        if gpm.at is not None and now - gpm.at < GPM_SECONDS:
            return None
        gpm.buffers.reverse()  # the older one is written anew
        nvml.nvmlGpmSampleGet(handle, gpm.buffers[1])
        is_first, gpm.at = gpm.at is None, now
        return None if is_first else _gpm_figures(nvml, gpm.buffers)

    def _processes(self, uuid: str) -> dict[int, GpuProcess] | None:
        """Who computes on a GPU; None where not even that is told."""
        nvml = self._driver.load()
        found = self._ask(uuid, "processes", nvml.nvmlDeviceGetComputeRunningProcesses)
        if found is None:
            return None
        sizes: dict[int, int | None] = {}
        for one in found:
            held, new = sizes.get(one.pid), one.usedGpuMemory
            sizes[one.pid] = held if new is None else (held or 0) + int(new)
        busy = self._ask(uuid, "process utilisation", lambda h: self._busy(uuid, h)) or {}
        return {
            pid: GpuProcess(memory_bytes=size, **busy.get(pid, {})) for pid, size in sizes.items()
        }

    def _busy(self, uuid: str, handle: Any) -> dict[int, dict[str, float]]:
        """The newest shares of each process; those without a new one are left out."""
        nvml = self._driver.load()
        try:
            found = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_until.get(uuid, 0))
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):  # nothing new
                return {}
            raise
        newest: dict[int, dict[str, float]] = {}
        for one in sorted(found, key=lambda sample: int(sample.timeStamp)):
            newest[one.pid] = {"sm": one.smUtil / 100, "memory": one.memUtil / 100}
            self._seen_until[uuid] = int(one.timeStamp)
        return newest


def _swapped(question: Callable[[Any, int], Any], argument: int, handle: Any) -> Any:
    return question(handle, argument)


def _gpm_figures(nvml: Any, buffers: list[Any]) -> dict[str, float]:
    """The metrics between two buffers, each only if the driver says that it is valid."""
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
    asked.sample1, asked.sample2 = buffers
    for place, (_, number, _) in enumerate(_GPM):
        asked.metrics[place].metricId = number
    nvml.nvmlGpmMetricsGet(asked)
    return {
        name: asked.metrics[place].value * factor
        for place, (name, _, factor) in enumerate(_GPM)
        if asked.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
    }
