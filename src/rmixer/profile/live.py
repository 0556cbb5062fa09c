"""A job's profile from watching it run: the counters of its process tree and its progress page.

Watched beside others, a job's numbers are those of the crowd. They are put back to what they would
be alone with the run delay: the time in which a thread was ready but had no core. Time alone is the
time that passed less that delay, per thread that competes. What remains is what it used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rmixer.launch import page as progress_page
from rmixer.model import Profile
from rmixer.monitor import Counters

#: A window is judged when it is this long; starting up (imports) is not part of it.
WINDOW_SECONDS = 2.5
#: A program that shows no step is taken to have started up after so many seconds of its own,
#: those in which it had to wait for a core not counted.
STARTUP_SECONDS = 4.0
#: Steps that a window needs before a time per step is believed; it grows until it has them.
MIN_STEPS = 5
#: A job of very long steps is judged by what it uses in a window of this length.
LONGEST_WINDOW_SECONDS = 20.0
#: A demand that moved by this much is reported again: the job does something else now.
CHANGE = 0.2
#: Bytes per second at which storage is taken to be busy; a plain SATA disk of today.
STORAGE_BYTES_PER_SECOND = 500e6
#: Bytes that a minor fault moves: the page is cleared, then written.
FAULT_BYTES = 2 * 4096


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look at a job.

    Attributes:
        at: seconds, any clock that only grows.
        counters: of the process tree since it began.
        threads: how many threads compete for cores (those that were given to the job).
        page: its progress page, None where it has none.
        rss_peak_bytes: highest memory of the tree so far.
    """

    at: float
    counters: Counters
    threads: int
    page: dict[str, Any] | None = None
    rss_peak_bytes: int = 0


@dataclass(slots=True)
class LiveProfiler:
    """Turns sightings of one attempt into profiles.

    Args:
        started_at: when the attempt began, by the clock of the sightings.
        memory_bandwidth: the machine's, bytes per second; 0 where not measured.
    """

    started_at: float
    memory_bandwidth: float = 0.0
    _base: Sighting | None = None
    _startup: float | None = None
    _last: Profile | None = None

    def see(self, sighting: Sighting) -> Profile | None:
        """Take a sighting in; a profile if there is a first or a clearly different one."""
        if not self._is_warm(sighting):
            return None
        if self._base is None:
            self._base = sighting
            return None
        if sighting.at - self._base.at < WINDOW_SECONDS:
            return None
        if _has_few_steps(self._base, sighting):
            return None
        base, self._base = self._base, sighting
        startup = STARTUP_SECONDS if self._startup is None else self._startup
        profile = judge(base, sighting, self.memory_bandwidth, startup)
        if self._last is not None and not _is_news(self._last, profile):
            return None
        self._last = profile
        return profile

    def begin_anew(self) -> None:
        """What comes next is not measured together with what was before."""
        self._base = None

    def _is_warm(self, sighting: Sighting) -> bool:
        """Whether the job is past its start-up, and in the phase that counts."""
        elapsed = sighting.at - self.started_at
        if sighting.page is None or sighting.page["phase"] == progress_page.STARTING:
            delay = sighting.counters.run_delay_seconds / max(1, sighting.threads)
            return elapsed - delay >= STARTUP_SECONDS
        if sighting.page["phase"] != progress_page.TRAINING or not sighting.page["first_step_at"]:
            self._base = None
            return False
        if self._startup is None:
            self._startup = elapsed
        return True


def judge(
    before: Sighting, now: Sighting, memory_bandwidth: float, startup_seconds: float
) -> Profile:
    """What a job uses alone, from two sightings of it in company or alone.

    Args:
        before: where the window begins.
        now: where it ends.
        memory_bandwidth: the machine's, bytes per second; 0 where not measured.
        startup_seconds: to tell.
    """
    wall = now.at - before.at
    delay = now.counters.run_delay_seconds - before.counters.run_delay_seconds
    threads = max(1, now.threads)
    alone = max(wall - delay / threads, 0.05 * wall)
    cpu = now.counters.cpu_seconds - before.counters.cpu_seconds
    read = now.counters.read_bytes - before.counters.read_bytes
    demand = {
        "cores": min(float(threads), cpu / alone),
        "memory_bandwidth": _bandwidth(before, now, alone, memory_bandwidth),
        "storage": min(1.0, read / alone / STORAGE_BYTES_PER_SECOND),
    }
    steps = _steps(now) - _steps(before)
    return Profile(
        threads=threads,
        step_seconds=alone / steps if steps else None,
        demand={name: round(share, 3) for name, share in demand.items()},
        total_steps=int(now.page["total_steps"]) if now.page is not None else 0,
        startup_seconds=startup_seconds,
        memory=now.rss_peak_bytes,
        source="live",
    )


def _bandwidth(before: Sighting, now: Sighting, alone: float, of_machine: float) -> float:
    if not of_machine:
        return 0.0
    if now.page is not None and before.page is not None and now.page["moved_bytes"]:
        moved = now.page["moved_bytes"] - before.page["moved_bytes"]
    else:
        faults = now.counters.minor_faults - before.counters.minor_faults
        moved = faults * FAULT_BYTES
    return min(1.0, max(0.0, float(moved) / alone / of_machine))


def _steps(sighting: Sighting) -> int:
    return int(sighting.page["step"]) if sighting.page is not None else 0


def _has_few_steps(before: Sighting, now: Sighting) -> bool:
    """Whether to wait for more steps before the window is judged."""
    if now.page is None or now.page["phase"] == progress_page.STARTING:
        return False
    if now.at - before.at >= LONGEST_WINDOW_SECONDS:
        return False
    return _steps(now) - _steps(before) < MIN_STEPS


def _is_news(last: Profile, now: Profile) -> bool:
    return any(
        abs(share - last.demand.get(station, 0.0)) > CHANGE for station, share in now.demand.items()
    )
