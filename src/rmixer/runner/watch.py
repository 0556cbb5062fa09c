"""Telemetry of running jobs, and what follows from it: profiles, progress, memory that grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rmixer.estimate.contexts import STATED_CONTEXT
from rmixer.execute.progresslines import ProgressLog
from rmixer.launch.page import PHASES, SPENT
from rmixer.launch.pages import JobPages
from rmixer.model import CPU, Device, Placement, Profile, Progress
from rmixer.monitor import (
    GpuMetrics,
    GpuSample,
    PressureMeter,
    ProcessFinder,
    TreeMeter,
    TreeSample,
    memory_available,
    proportional_bytes,
)
from rmixer.paths import AttemptPaths
from rmixer.profile.live import LiveProfiler, Sighting
from rmixer.runner.devices import DeviceNews, DeviceWatch, Stray, Tenant
from rmixer.runner.rates import CompanyPace, RateMeter, Seen

#: A job is told to have outgrown its reservation at this share of it.
MEMORY_ALARM = 0.95
#: And again each time it has grown by this share since.
MEMORY_STEP = 1.05
#: A process that has grown by this share after the last look at it has more than was seen; what is
#: less is the difference between the kernel's two ways of counting.
UNSEEN_GROWTH = 0.05
#: A rate that a log tells holds for so long.
STALE_SECONDS = 60.0
#: Progress goes to the event log at most this often per job.
PROGRESS_SECONDS = 10.0
#: The memory that is left on the machine is asked for this often; the limits of all our groups are
#: looked up for it.
AVAILABLE_SECONDS = 5.0
#: Proportional memory costs the kernel milliseconds: once in so long per job, one job per look.
PSS_SECONDS = 180.0
#: Weight of the newest measurement in the moving average of samples per second.
_NEWEST = 0.4


@dataclass(slots=True)
class DevicePeak:
    """The highest memory of one attempt on its device.

    The driver tells all that its processes hold, but only at the moments that they are looked at;
    the program's allocator knows its own peak, but not what lies outside of it (the context).

    Attributes:
        driver: the highest that the driver told, bytes.
        allocator: the highest that the allocator reserved, bytes.
        outside: what the driver told beyond the allocator, bytes; None before both were seen.
    """

    driver: int = 0
    allocator: int = 0
    outside: int | None = None

    def see(self, held: int | None, page: Mapping[str, Any] | None) -> None:
        """Take in what the driver told, None if nothing, and the progress page."""
        self.driver = max(self.driver, held or 0)
        if page is None or not page["device_reserved_peak_bytes"]:
            return
        self.allocator = max(self.allocator, page["device_reserved_peak_bytes"])
        if held:
            self.outside = max(self.outside or 0, held - page["device_reserved_bytes"])

    @property
    def bytes(self) -> int:
        """The peak; 0 where nothing was seen. A context that was never seen is the stated one."""
        if not self.allocator:
            return self.driver
        outside = STATED_CONTEXT if self.outside is None else self.outside
        return max(self.driver, self.allocator + outside)


@dataclass(slots=True)
class Watched:
    """One running attempt under observation."""

    job: str
    token: str
    paths: AttemptPaths
    placement: Placement
    started_at: float
    profiler: LiveProfiler
    pages: JobPages
    log: ProgressLog
    meter: TreeMeter = field(default_factory=TreeMeter)
    device: DevicePeak = field(default_factory=DevicePeak)
    process_peak: int = 0
    alarm_at: float = 0.0
    device_alarm_at: float = 0.0
    progress_at: float = 0.0
    last: tuple[float, TreeSample, dict[str, Any] | None] | None = None
    samples_per_second: float | None = None
    stands: bool = False
    pss: int | None = None
    pss_at: float | None = None


@dataclass(slots=True)
class Look:
    """What one look at all running jobs showed.

    Attributes:
        sample: a line for ``samples.jsonl``.
        profiles: (token, profile) of jobs whose use has become known or has changed.
        grown: (token, bytes) of jobs that outgrew their reservation.
        progress: (token, progress), now and then.
        paces: of companies that were watched long enough.
        grown_on_device: (token, bytes) of jobs that outgrew their reservation on their GPU.
        devices: GPUs of which something has changed.
        strays: attempts that were found on a GPU that they were not placed on.
    """

    sample: dict[str, Any]
    profiles: list[tuple[str, Profile]]
    grown: list[tuple[str, int]]
    progress: list[tuple[str, Progress]]
    paces: list[CompanyPace] = field(default_factory=list)
    grown_on_device: list[tuple[str, int]] = field(default_factory=list)
    devices: list[DeviceNews] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)


class Watcher:
    """Looks at all running attempts at once.

    Args:
        memory_bandwidth: the machine's, bytes per second; 0 where not measured.
    """

    def __init__(self, memory_bandwidth: float = 0.0) -> None:
        self._bandwidth = memory_bandwidth
        self._finder = ProcessFinder()
        self._devices = DeviceWatch()
        self._rates = RateMeter()
        self._metrics = GpuMetrics()
        self._pressure = PressureMeter()
        self._available: tuple[float, int] | None = None
        self._watched: dict[str, Watched] = {}

    def attach(
        self, job: str, token: str, paths: AttemptPaths, placement: Placement, at: float
    ) -> None:
        """Begin to watch an attempt."""
        profiler = LiveProfiler(at, self._bandwidth)
        pages, log = JobPages(str(paths.progress)), ProgressLog(paths.log)
        self._watched[token] = Watched(job, token, paths, placement, at, profiler, pages, log)

    def rebook(self, token: str, placement: Placement) -> None:
        """The attempt's reservation has changed."""
        if watched := self._watched.get(token):
            watched.placement = placement
            watched.alarm_at = 0.0

    def stand(self, token: str, *, still: bool) -> None:
        """The attempt stands still from now on, or goes on; its use is not looked at meanwhile."""
        if watched := self._watched.get(token):
            watched.stands = still
            watched.profiler.begin_anew()

    def detach(self, token: str, kernel_peak: int = 0) -> tuple[int, int]:
        """Stop watching an attempt; the highest memory that was seen, on host and device, bytes.

        Args:
            token: the attempt's.
            kernel_peak: the kernel's mark for its largest process, mapped files included. What that
                process has grown by since it was last looked at is added to what was seen.
        """
        watched = self._watched.pop(token, None)
        if watched is None:
            return 0, 0
        watched.meter.close()
        if watched.placement.device != CPU:  # its last words, which may be later than the last look
            watched.device.see(None, watched.pages.read())
        seen, unseen = watched.meter.rss_peak_bytes, kernel_peak - watched.process_peak
        host = seen + unseen if seen and unseen > seen * UNSEEN_GROWTH else seen
        return host, watched.device.bytes

    def close(self) -> None:
        """Let go of the driver's library and the files of processes."""
        for watched in self._watched.values():
            watched.meter.close()
        self._devices.close()
        self._metrics.close()

    def look(self, at: float, roots: Mapping[str, int], devices: Sequence[Device] = ()) -> Look:
        """Look at every attempt now, and at the GPUs of the run.

        Args:
            at: seconds since the run began.
            roots: the process to walk down from, per token.
            devices: of the run's node, as they were last seen.
        """
        readings = self._devices.read(devices)
        trees = self._finder.trees(roots.values())
        look = Look({"at": round(at, 3), "jobs": {}, "node": {}}, [], [], [])
        held = {device: reading.processes for device, reading in readings.items()}
        tenants = [
            Tenant(token, watched.placement, frozenset(trees.get(roots.get(token, -1), [])))
            for token, watched in self._watched.items()
        ]
        look.devices, look.strays = self._devices.compare(devices, readings, tenants)
        cpu, rss = 0.0, 0
        seen: dict[str, Seen] = {}
        looked_closely = False
        for token, watched in self._watched.items():
            pids = trees.get(roots.get(token, -1), [])
            if not looked_closely and pids and _is_due(watched, at):
                looked_closely, watched.pss_at = True, at
                watched.pss = proportional_bytes(pids)
            sample = watched.meter.sample(pids)
            page = watched.pages.read()
            line = _line(watched, at, sample, page)
            if watched.placement.device in held:
                line["device_bytes"] = on_device = _on_device(watched, held, pids, page)
                if _has_outgrown(watched, on_device or 0):
                    look.grown_on_device.append((token, on_device or 0))
            look.sample["jobs"][watched.job] = line
            cpu += line["cpu"] or 0.0
            rss += sample.rss_bytes
            watched.process_peak = max(watched.process_peak, sample.process_peak_bytes)
            _follow(watched, at, sample, page, look)
            watched.last = (at, sample, page)
            if not watched.stands:
                seen[token] = _seen(watched, at, page)
        look.paces.extend(self._rates.see(at, seen))
        look.sample["node"] = {
            "cpu": round(cpu, 3),
            "rss_bytes": rss,
            "memory_available_bytes": self._memory_available(at),
            "pressure": self._pressure.sample(at),
        }
        used = {watched.placement.device for watched in self._watched.values()} - {CPU}
        if used:
            look.sample["gpus"] = {
                device: _gpu_line(self._metrics.sample(device, pcie=False))
                for device in sorted(used)
            }
        return look

    def _memory_available(self, at: float) -> int:
        """Of the machine, as it was at most `AVAILABLE_SECONDS` ago; bytes."""
        if self._available is None or at - self._available[0] >= AVAILABLE_SECONDS:
            self._available = at, memory_available()
        return self._available[1]


def _is_due(watched: Watched, at: float) -> bool:
    """Whether to ask for the job's proportional memory again."""
    if watched.pss_at is None:  # a job that has just started has little yet
        return at - watched.started_at >= PSS_SECONDS / 10
    return at - watched.pss_at >= PSS_SECONDS


def _gpu_line(sample: GpuSample) -> dict[str, Any]:
    """A GPU's part of a line of telemetry; null is "not told"."""
    line = asdict(sample)
    line.pop("processes")
    return line


def _seen(watched: Watched, at: float, page: Mapping[str, Any] | None) -> Seen:
    """The attempt as the rates are taken of it."""
    device, seconds = watched.placement.device, at - watched.started_at
    if page is None:
        return Seen(device, None, 0, 0, seconds)
    return Seen(device, page["phase"], page["step"], page["total_steps"], seconds)


def _on_device(
    watched: Watched,
    held: Mapping[str, Mapping[int, int] | None],
    pids: Sequence[int],
    page: Mapping[str, Any] | None,
) -> int | None:
    """What the attempt holds on its device now, bytes; None where the driver does not tell."""
    by_process = held[watched.placement.device]
    now = None if by_process is None else sum(by_process.get(pid, 0) for pid in pids)
    watched.device.see(now, page)
    return now


def _has_outgrown(watched: Watched, held: int) -> bool:
    """Whether an attempt holds nearly all of what is booked for it on its device, or more."""
    booked = watched.placement.device_memory
    if not booked or held <= max(booked * MEMORY_ALARM, watched.device_alarm_at):
        return False
    watched.device_alarm_at = held * MEMORY_STEP
    return True


def _line(
    watched: Watched, at: float, sample: TreeSample, page: dict[str, Any] | None
) -> dict[str, Any]:
    """The job's part of a line of telemetry."""
    cpu = None
    if watched.last is not None and at > watched.last[0]:
        before = watched.last[1].counters.cpu_seconds
        cpu = round((sample.counters.cpu_seconds - before) / (at - watched.last[0]), 3)
    line: dict[str, Any] = {
        "token": watched.token,
        "cpu": cpu,
        "rss_bytes": sample.rss_bytes,
        "processes": sample.processes,
    }
    if watched.pss is not None:
        line["pss_bytes"] = watched.pss
    if page is not None:
        rate = _samples_per_second(watched, at, page)
        line |= {
            "phase": PHASES[page["phase"]],
            "step": page["step"],
            "total_steps": page["total_steps"],
            "samples": page["samples"],
            "loss": page["loss"] if math.isfinite(page["loss"]) else None,
            "samples_per_second": rate,
            "eta_seconds": _eta(page, rate),
            "phase_seconds": {name: round(page[f"{name}_seconds"], 3) for name in SPENT},
        }
    if page is None or page["phase"] == PHASES.index("starting"):
        line |= _told(watched, at)
    return line


def _told(watched: Watched, at: float) -> dict[str, Any]:
    """What the log of a program says whose steps nobody counts; a rate that is old is none."""
    newest = watched.log.look(at)
    if newest is None:
        return {}
    told, seen_at = newest
    rate = told.samples_per_second if at - seen_at < STALE_SECONDS else None
    return {"log": told.document(), "share": told.share, "samples_per_second": rate}


def _samples_per_second(watched: Watched, at: float, page: dict[str, Any]) -> float | None:
    if watched.last is None or watched.last[2] is None or at <= watched.last[0]:
        return watched.samples_per_second
    done = page["samples"] - watched.last[2]["samples"]
    if done <= 0:
        return watched.samples_per_second if page["phase"] == PHASES.index("training") else None
    newest = done / (at - watched.last[0])
    before = watched.samples_per_second
    rate = newest if before is None else _NEWEST * newest + (1 - _NEWEST) * before
    watched.samples_per_second = round(rate, 1)
    return watched.samples_per_second


def _eta(page: dict[str, Any], rate: float | None) -> float | None:
    if not rate or not page["total_steps"] or not page["step"]:
        return None
    samples_left = page["samples"] / page["step"] * (page["total_steps"] - page["step"])
    return float(round(max(0.0, samples_left / rate), 1))


def _follow(
    watched: Watched, at: float, sample: TreeSample, page: dict[str, Any] | None, look: Look
) -> None:
    """What the dispatcher should hear of this."""
    threads = watched.placement.threads or max(1, round(watched.placement.cpu))
    sighting = Sighting(at, sample.counters, threads, page, watched.meter.rss_peak_bytes)
    profile = None if watched.stands else watched.profiler.see(sighting)
    if profile is not None:
        look.profiles.append((watched.token, profile))
    booked = watched.placement.memory
    if sample.rss_bytes > max(booked * MEMORY_ALARM, watched.alarm_at):
        watched.alarm_at = sample.rss_bytes * MEMORY_STEP
        look.grown.append((watched.token, sample.rss_bytes))
    if page is not None and at - watched.progress_at >= PROGRESS_SECONDS:
        watched.progress_at = at
        step, total, samples = page["step"], page["total_steps"], page["samples"]
        progress = Progress(at=at, step=step, total_steps=total, samples=samples)
        look.progress.append((watched.token, progress))
