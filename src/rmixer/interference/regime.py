"""How fast a job goes, regime by regime: what it did between two changes, and what changed.

A rate means something only within one regime: the same phase, the same epoch, the same neighbours,
and no break in the step times. `Follower` is shown a job now and then. It closes a stretch when one
of these changes and says which; the first seconds after a change belong to nobody.

A break that nothing announces (colder data, another program on the machine, a neighbour that does
something else now) is found by a two-sided cumulative sum of the standardised logarithms of the
step times (Page, Continuous inspection schemes, 1954). Slack and threshold were chosen by
simulation, since the deviation is itself learned from few windows: where windows differ by 3 %,
there is one false alarm in about 1,200 of them and a job that is 15 % slower is noticed after two
or three; where they differ by 10 %, one in 140, and after ten. A false alarm only ends a stretch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["phase", "epoch", "neighbours", "pace"]

#: After a change: caches, threads and the neighbour's start-up settle.
SETTLE_SECONDS = 1.0
#: A window of step times is closed after so many steps and seconds, whichever comes later.
WINDOW_STEPS, WINDOW_SECONDS = 5, 1.0
#: Windows that tell how fast the job goes now, before a break in that can be seen.
LEARN_WINDOWS = 8
#: In standard deviations of a window: what is not counted, and where the sum is an alarm.
SLACK, ALARM = 0.5, 8.0
#: Step times are not taken to be steadier than this, relative.
LEAST_DEVIATION = 0.03
#: A window that is so many times overdue counts as one that is as slow as it already is.
OVERDUE = 3.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a job at one moment.

    Attributes:
        at: seconds, any clock that only grows.
        steps: finished steps.
        phase: what it does: training, evaluating, or any other word.
        epoch: pass over the data; 0 where not known.
        neighbours: who else runs there, by any names.
    """

    at: float
    steps: int
    phase: Hashable = "training"
    epoch: int = 0
    neighbours: frozenset[Hashable] = frozenset()


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a job did in one regime, its settling left out.

    Attributes:
        first, last: the sights between which it was measured.
    """

    first: Sight
    last: Sight

    @property
    def steps(self) -> int:
        return self.last.steps - self.first.steps

    @property
    def seconds(self) -> float:
        return self.last.at - self.first.at

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else math.nan

    def rate(self, solo_step_seconds: float) -> float:
        """Progress relative to the job alone."""
        return self.steps_per_second * solo_step_seconds


@dataclass(frozen=True, slots=True)
class Change:
    """One regime ended and another began.

    Attributes:
        kind: what gave it away: ``pace`` is a break in the step times that nothing announced.
        at: when it was noticed.
        ended: the stretch before it; None where that was too short to settle.
    """

    kind: Kind
    at: float
    ended: Stretch | None


@dataclass(frozen=True, slots=True)
class _Pace:
    """The step times of a regime so far, as logarithms, and the two sums."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    slower: float = 0.0
    faster: float = 0.0

    def seen(self, value: float) -> _Pace:
        if self.count < LEARN_WINDOWS:
            return self._learnt(value)
        deviation = math.sqrt(self.squares / (self.count - 1))
        off = (value - self.mean) / max(deviation, LEAST_DEVIATION)
        slower = max(0.0, self.slower + off - SLACK)
        faster = max(0.0, self.faster - off - SLACK)
        learnt = self._learnt(value) if max(slower, faster) == 0 else self
        return replace(learnt, slower=slower, faster=faster)

    def _learnt(self, value: float) -> _Pace:
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        squares = self.squares + (value - self.mean) * (value - mean)
        return replace(self, count=count, mean=mean, squares=squares)

    @property
    def is_broken(self) -> bool:
        return max(self.slower, self.faster) > ALARM


@dataclass(frozen=True, slots=True)
class Follower:
    """Follows one job. A value: what is seen next makes another one."""

    _regime: Sight | None = None
    _settled: Sight | None = None
    _window: Sight | None = None
    _last: Sight | None = None
    _pace: _Pace = field(default_factory=_Pace)

    def see(self, sight: Sight) -> tuple[Follower, Change | None]:
        """The job as it is now; a change if there was one since the last sight."""
        if self._regime is None:
            return Follower(_regime=sight), None
        kind = _difference(self._regime, sight)
        if kind is not None:
            return Follower(_regime=sight), Change(kind, sight.at, self.stretch)
        if self._settled is None or self._window is None:
            if sight.at - self._regime.at < SETTLE_SECONDS:
                return self, None
            return replace(self, _settled=sight, _window=sight, _last=sight), None
        return self._go_on(sight, self._window)

    @property
    def stretch(self) -> Stretch | None:
        """What was measured of the present regime; None before there are steps."""
        if self._settled is None or self._last is None or self._last.steps <= self._settled.steps:
            return None
        return Stretch(self._settled, self._last)

    def _go_on(self, sight: Sight, window: Sight) -> tuple[Follower, Change | None]:
        moved = replace(self, _last=sight if sight.steps > window.steps else self._last)
        value = self._step_time(sight, window)
        if value is None:
            return moved, None
        pace = self._pace.seen(math.log(value))
        if pace.is_broken:  # what was seen since the window began may be of either side
            ended = replace(self, _last=window).stretch
            return Follower(_regime=sight), Change("pace", sight.at, ended)
        return replace(moved, _window=sight, _pace=pace), None

    def _step_time(self, sight: Sight, window: Sight) -> float | None:
        """Seconds per step of a window that is full, or of one that is long overdue."""
        steps, seconds = sight.steps - window.steps, sight.at - window.at
        if seconds < WINDOW_SECONDS:
            return None
        if steps >= WINDOW_STEPS:
            return seconds / steps
        if self._pace.count < LEARN_WINDOWS:
            return None
        expected = max(WINDOW_SECONDS, WINDOW_STEPS * math.exp(self._pace.mean))
        return seconds / (steps + 1) if seconds > OVERDUE * expected else None


def _difference(before: Sight, now: Sight) -> Kind | None:
    if now.phase != before.phase:
        return "phase"
    if now.epoch != before.epoch:
        return "epoch"
    if now.neighbours != before.neighbours:
        return "neighbours"
    return None
