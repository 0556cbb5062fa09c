"""What the driver tells of a run's GPUs, against what the run has placed there.

Whose a process is, is known by its process tree. What belongs to no job of the device counts as
foreign: it is named and booked out, and never signalled. A container may be told the pids of its
host, which say nothing here; of such processes only what exceeds the bookings counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rmixer.model import CPU, Device, Placement
from rmixer.monitor import GpuMeter, GpuReading, process_name
from rmixer.resources import MIB, format_bytes

#: A change of what others hold is told from this much on, or this share of the GPU.
TOLD_BYTES, TOLD_SHARE = 64 * MIB, 0.02
#: A GPU is unreadable after so many looks in a row that fail: one may be a hiccup.
LOOKS = 2


@dataclass(frozen=True, slots=True)
class DeviceNews:
    """What has changed about a GPU; the fields of `rmixer.events.DeviceSeen`."""

    device: str
    problem: str = ""
    capacity: int = 0
    foreign: int = 0
    processes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stray:
    """An attempt that holds memory of a GPU that it was not placed on."""

    token: str
    device: str
    memory: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """A running attempt: where it was placed, what is booked for it, its processes."""

    token: str
    placement: Placement
    pids: frozenset[int]


@dataclass(slots=True)
class DeviceWatch:
    """Follows the GPUs of a run; tells each change once."""

    meter: GpuMeter = field(default_factory=GpuMeter)
    proc: str = "/proc"
    _told: dict[str, DeviceNews] = field(default_factory=dict)
    _failed: dict[str, int] = field(default_factory=dict)
    _strangers: dict[str, frozenset[int]] = field(default_factory=dict)
    _strayed: set[tuple[str, str]] = field(default_factory=set)

    def read(self, devices: Iterable[Device]) -> dict[str, GpuReading]:
        """All GPUs now. Before the processes of the jobs are looked for, so that none is missed."""
        return {device.id: self.meter.read(device.id) for device in devices if device.id != CPU}

    def compare(
        self,
        devices: Iterable[Device],
        readings: Mapping[str, GpuReading],
        tenants: Iterable[Tenant],
    ) -> tuple[list[DeviceNews], list[Stray]]:
        """What is new, and which attempts were found where they were not placed."""
        everybody = list(tenants)
        news = [
            changed
            for device in devices
            if device.id in readings
            and (changed := self._look(device, readings[device.id], everybody)) is not None
        ]
        return news, self._strays(readings, everybody)

    def close(self) -> None:
        """Let go of the driver's library."""
        self.meter.close()

    # --- one GPU ----------------------------------------------------------------------------

    def _look(
        self, device: Device, reading: GpuReading, tenants: list[Tenant]
    ) -> DeviceNews | None:
        if reading.problem:
            self._failed[device.id] = self._failed.get(device.id, 0) + 1
            if self._failed[device.id] < LOOKS:
                return None
            return self._tell(device, DeviceNews(device.id, problem=reading.problem))
        self._failed.pop(device.id, None)
        return self._tell(device, self._held_by_others(device, reading, tenants))

    def _held_by_others(
        self, device: Device, reading: GpuReading, tenants: list[Tenant]
    ) -> DeviceNews:
        """Who holds memory there that is none of the jobs there.

        Only who was there at the look before, too: a process of a job may just have ended.
        """
        held = reading.processes or {}
        here = [tenant for tenant in tenants if tenant.placement.device == device.id]
        ours = frozenset[int]().union(*(tenant.pids for tenant in here))
        strangers = frozenset(held) - ours
        lasting = strangers & self._strangers.get(device.id, strangers)
        self._strangers[device.id] = strangers
        named = {pid: name for pid in lasting if (name := process_name(pid, self.proc))}
        booked = sum(t.placement.device_memory for t in here if not t.pids & held.keys())
        nameless = sum(held[pid] for pid in lasting - named.keys())
        foreign = sum(held[pid] for pid in named) + max(0, nameless - booked)
        words = [f"{name} (pid {pid}, {format_bytes(held[pid])})" for pid, name in named.items()]
        return DeviceNews(
            device.id, capacity=reading.capacity, foreign=foreign, processes=tuple(sorted(words))
        )

    def _tell(self, device: Device, now: DeviceNews) -> DeviceNews | None:
        """The news, if they are that."""
        told = self._told.get(device.id)
        if told is None:  # nothing yet, but for what the run was told of the machine
            foreign = -1 if device.closed or now.processes else device.foreign
            told = DeviceNews(device.id, foreign=foreign)
        least = max(TOLD_BYTES, int(device.capacity * TOLD_SHARE)) if told.foreign >= 0 else 0
        if now.problem == told.problem and abs(now.foreign - told.foreign) < max(1, least):
            return None
        self._told[device.id] = now
        return now

    # --- attempts that are elsewhere --------------------------------------------------------

    def _strays(self, readings: Mapping[str, GpuReading], tenants: list[Tenant]) -> list[Stray]:
        found = []
        for tenant in tenants:
            for device, reading in readings.items():
                held = reading.processes or {}
                memory = sum(held.get(pid, 0) for pid in tenant.pids)
                key = tenant.token, device
                if memory and device != tenant.placement.device and key not in self._strayed:
                    self._strayed.add(key)
                    found.append(Stray(tenant.token, device, memory))
        return found
