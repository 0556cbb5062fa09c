"""How fast the jobs on each device go while nothing changes there.

A company is measured over a window in which all of its jobs train, nobody comes or goes, and no
step times break (`rmixer.interference.regime`). Any change begins a new window: what a job did
while its neighbour evaluated, or before another one left, is not mixed with what it does now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmixer.interference import Follower, Sight
from rmixer.launch.page import LOADING, STARTING, TRAINING

#: The first window of a company, seconds; each further one is twice as long, up to the last.
FIRST_SECONDS, LAST_SECONDS = 3.0, 60.0
#: A rate is told of a job that has made so many steps; the window waits for it for some time.
MIN_STEPS = 5
#: A job that has not begun to train after so long is one whose steps will not be seen.
SILENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One job at one look.

    Attributes:
        device: where it runs.
        phase: of its progress page; None where it has none.
        steps: finished steps.
        total_steps: of the whole job, 0 where not known.
        seconds: since it was started.
    """

    device: str
    phase: int | None
    steps: int
    total_steps: int
    seconds: float

    @property
    def is_opaque(self) -> bool:
        """Whether its steps are not to be seen."""
        late = self.phase in (STARTING, LOADING) and self.seconds > SILENT_SECONDS
        return self.phase is None or late


@dataclass(frozen=True, slots=True)
class CompanyPace:
    """What the jobs of one device did in one window.

    Attributes:
        device: where.
        seconds: how long the window was.
        paces: per token steps per second, None where they are not seen, and all steps of the job.
    """

    device: str
    seconds: float
    paces: dict[str, tuple[float | None, int]]


@dataclass(slots=True)
class _Window:
    since: float
    wanted: float
    steps: dict[str, int]


@dataclass(slots=True)
class RateMeter:
    """Watches all companies. Takes one look after the other."""

    _followers: dict[str, Follower] = field(default_factory=dict)
    _windows: dict[str, _Window] = field(default_factory=dict)

    def see(self, at: float, jobs: Mapping[str, Seen]) -> list[CompanyPace]:
        """The companies whose window is full.

        Args:
            at: seconds, any clock that only grows.
            jobs: by token, all that run; not those that are suspended.
        """
        self._followers = {t: f for t, f in self._followers.items() if t in jobs}
        companies: dict[str, dict[str, Seen]] = {}
        for token, seen in jobs.items():
            companies.setdefault(seen.device, {})[token] = seen
        self._windows = {d: w for d, w in self._windows.items() if d in companies}
        found = [self._see_company(at, device, there) for device, there in companies.items()]
        return [one for one in found if one is not None]

    def _see_company(self, at: float, device: str, jobs: Mapping[str, Seen]) -> CompanyPace | None:
        stepping = {token: seen for token, seen in jobs.items() if not seen.is_opaque}
        if not self._is_steady(at, stepping, frozenset(jobs)) or not stepping:
            self._windows.pop(device, None)
            return None
        window = self._windows.get(device)
        if window is None:
            self._windows[device] = _Window(at, FIRST_SECONDS, _steps(stepping))
            return None
        return self._told(at, device, jobs, window)

    def _is_steady(self, at: float, stepping: Mapping[str, Seen], company: frozenset[str]) -> bool:
        """Whether all of them train, have settled, and have not changed since the last look."""
        steady = True
        for token, seen in stepping.items():
            follower, change = self._followers.get(token, Follower()).see(
                Sight(at, seen.steps, seen.phase, neighbours=company - {token})
            )
            self._followers[token] = follower
            steady &= change is None and follower.stretch is not None and seen.phase == TRAINING
        return steady

    def _told(
        self, at: float, device: str, jobs: Mapping[str, Seen], window: _Window
    ) -> CompanyPace | None:
        seconds = at - window.since
        stepping = {token: seen for token, seen in jobs.items() if token in window.steps}
        made = {token: seen.steps - window.steps[token] for token, seen in stepping.items()}
        late = seconds >= max(2 * window.wanted, LAST_SECONDS)
        if seconds < window.wanted or (min(made.values()) < MIN_STEPS and not late):
            return None
        wanted = min(2 * window.wanted, LAST_SECONDS)
        self._windows[device] = _Window(at, wanted, _steps(stepping))
        paces = {
            token: (
                made[token] / seconds if made.get(token, 0) >= MIN_STEPS else None,
                seen.total_steps,
            )
            for token, seen in jobs.items()
        }
        return CompanyPace(device, seconds, paces)


def _steps(jobs: Mapping[str, Seen]) -> dict[str, int]:
    return {token: seen.steps for token, seen in jobs.items()}
