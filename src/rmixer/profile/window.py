"""What is seen of a job that runs alone: only its training counts, from the first step on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rmixer.launch.page import STARTING, TRAINING
from rmixer.launch.pages import JobPages
from rmixer.model import CPU, Device, Profile
from rmixer.monitor import Counters, GpuMetrics, TreeMeter
from rmixer.paths import AttemptPaths
from rmixer.profile.live import STARTUP_SECONDS, Sighting, judge
from rmixer.profile.on_gpu import GpuUse

#: A job has been seen for long enough after so many seconds and steps of training.
ENOUGH_SECONDS, ENOUGH_STEPS = 4.0, 20
#: Where no step is seen yet: a slow start would otherwise be taken for the work.
STEPLESS_SECONDS = 8.0
#: Of very long steps this many are enough.
FEW_STEPS, FEW_SECONDS = 3, 15.0
#: Less than this says nothing; with fewer steps no speed is told.
LEAST_SECONDS, LEAST_STEPS = 0.3, 2


@dataclass(slots=True)
class _Sum:
    """What was done between the sightings that count."""

    seconds: float = 0.0
    counters: Counters = field(default_factory=Counters)
    steps: int = 0
    step_seconds: float = 0.0  # between the newest steps of two pages
    moved: int = 0


class Window:
    """The sightings of one attempt.

    Args:
        began: when the attempt began.
        threads: that it has.
        device: on which it runs.
        paths: of the attempt.
    """

    def __init__(self, began: float, threads: int, device: Device, paths: AttemptPaths) -> None:
        self._began, self._threads, self._device = began, threads, device
        self._pages = JobPages(str(paths.progress))
        self._meter = TreeMeter()
        self._gpus = GpuMetrics() if device.kind != CPU else None
        self._last: Sighting | None = None
        self._sum = _Sum()
        self._startup: float | None = None
        self._total_steps = 0
        self.gpu = GpuUse()

    def look(self, at: float, pids: Sequence[int]) -> None:
        """Take a sighting of the processes that there are now."""
        counters = self._meter.sample(pids).counters
        page = self._pages.read()
        now = Sighting(at, counters, self._threads, page, self._meter.rss_peak_bytes)
        if not self._counts(now):
            self._last = None
            return
        if _shows_steps(page) and self._last is not None and not _shows_steps(self._last.page):
            self._sum, self._startup, self._last = _Sum(), None, None  # so far it has only started
        if self._startup is None:
            self._startup = at - self._began
        if self._last is not None:
            self._add(self._last, now)
        self._last = now
        if page is not None:
            self._total_steps = page["total_steps"]
        if self._gpus is not None and self.gpu.is_due(at):
            self.gpu.see(self._gpus.sample(self._device.id), pids, at)

    def close(self) -> None:
        """Let go of files and driver."""
        self._meter.close()
        if self._gpus is not None:
            self._gpus.close()

    @property
    def is_enough(self) -> bool:
        """Whether more would say little more."""
        done = self._sum
        if done.seconds < ENOUGH_SECONDS:
            return False
        if self._last is None or not _shows_steps(self._last.page):
            return done.seconds >= STEPLESS_SECONDS
        if done.steps >= ENOUGH_STEPS:
            return True
        return done.steps >= FEW_STEPS and done.seconds >= FEW_SECONDS

    @property
    def may_end(self) -> bool:
        """Whether to look no longer; what shows no step yet may still be starting."""
        return self.is_enough and self._last is not None and _shows_steps(self._last.page)

    def profile(self, memory_bandwidth: float) -> Profile | None:
        """What the job uses alone; None where too little was seen.

        Args:
            memory_bandwidth: of one core, bytes per second; 0 where not measured.
        """
        done = self._sum
        if done.seconds < LEAST_SECONDS:
            return None
        shown = done.steps >= LEAST_STEPS and done.step_seconds > 0
        page = {
            "phase": TRAINING, "step": done.steps, "total_steps": self._total_steps,
            "moved_bytes": done.moved,
        } if done.steps else None  # fmt: skip
        before = Sighting(0.0, Counters(), self._threads, page and dict.fromkeys(page, 0))
        now = Sighting(done.seconds, done.counters, self._threads, page, self._meter.rss_peak_bytes)
        found = judge(before, now, memory_bandwidth, self._startup or 0.0)
        return replace(
            found,
            device_kind=self._device.kind,
            step_seconds=done.step_seconds / done.steps if shown else None,
            demand={**found.demand, **self.gpu.demand()},
            source="probe",
        )

    def _counts(self, now: Sighting) -> bool:
        """Whether the job trains, and has made its first step; or, with none, has started up."""
        if not _shows_steps(now.page):
            return now.at - self._began >= STARTUP_SECONDS
        assert now.page is not None
        return bool(now.page["phase"] == TRAINING and now.page["step"] >= 1)

    def _add(self, before: Sighting, now: Sighting) -> None:
        done = self._sum
        done.seconds += now.at - before.at
        done.counters += now.counters - before.counters
        if _shows_steps(before.page) and _shows_steps(now.page):
            assert before.page is not None
            assert now.page is not None
            done.steps += now.page["step"] - before.page["step"]
            done.step_seconds += now.page["updated_at"] - before.page["updated_at"]
            done.moved += now.page["moved_bytes"] - before.page["moved_bytes"]


def _shows_steps(page: dict[str, Any] | None) -> bool:
    return page is not None and page["phase"] != STARTING
