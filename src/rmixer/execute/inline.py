"""Attempts without processes: scripted ends and Python callables, on any clock. For tests.

The same contract as `rmixer.execute.process.ProcessExecutor`, so that a runner, or a test of one,
cannot tell the difference. With a `FakeClock` nothing waits and every order of ends can be made.
"""

from __future__ import annotations

import itertools
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rmixer.errors import RmixerError
from rmixer.execute.base import NEVER_STARTED, End, LostEnd
from rmixer.model import JobSpec, Outcome, Placement, StateName

SUCCEEDED = Outcome(state=StateName.SUCCEEDED, exit_code=0)
FIRST_PID = 1_000_000


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The present time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What an attempt does.

    Attributes:
        seconds: how long it runs.
        outcome: how it ends by itself.
        result: what it writes about itself.
        call: run at its end; what it returns is the result, what it raises is the outcome.
        stop_seconds: how long after being told to stop it ends; with force it ends at once.
        lost: it vanishes with this message instead of ending.
        refuse: raised by `InlineExecutor.start` in place of starting.
    """

    seconds: float = 1.0
    outcome: Outcome = SUCCEEDED
    result: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[[], Mapping[str, Any] | None] | None = None
    stop_seconds: float = 0.0
    lost: str | None = None
    refuse: RmixerError | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A call of `InlineExecutor.start`, for tests to look at."""

    job: str
    attempt: int
    token: str
    placement: Placement


@dataclass(slots=True)
class _Running:
    pid: int
    script: Script
    ends_at: float
    stopping: Outcome | None = None
    left_seconds: float | None = None  # of one that stands still


class InlineExecutor:
    """Runs scripts in place of processes.

    Args:
        script: what an attempt does, by its job and number.
        clock: the present time in seconds.

    Attributes:
        started: all attempts, in order.
        placements: the newest placement of each token.
    """

    def __init__(
        self,
        script: Callable[[JobSpec, int], Script] = lambda spec, number: Script(),  # noqa: ARG005
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._script, self._clock = script, clock
        self._pids = itertools.count(FIRST_PID)
        self._running: dict[str, _Running] = {}
        self._ended: list[End | LostEnd] = []
        self.started: list[Started] = []
        self.placements: dict[str, Placement] = {}

    def start(self, spec: JobSpec, attempt_number: int, token: str, placement: Placement) -> int:
        """Begin a script; returns a number that stands for a pid."""
        script = self._script(spec, attempt_number)
        if script.refuse is not None:
            raise script.refuse
        running = _Running(next(self._pids), script, self._clock() + script.seconds)
        self._running[token] = running
        self.started.append(Started(spec.id, attempt_number, token, placement))
        self.placements[token] = placement
        return running.pid

    def stop(self, token: str, *, force: bool, outcome: Outcome | None = None) -> None:
        """Let it end after its ``stop_seconds``, with ``force`` now."""
        self.go_on(token)
        running = self._running[token]
        if running.ends_at > self._clock():  # else it has ended by itself
            running.stopping = outcome or Outcome(state=StateName.CANCELLED, reason="stopped")
            delay = 0.0 if force else running.script.stop_seconds
            running.ends_at = min(running.ends_at, self._clock() + delay)

    def rebook(self, token: str, placement: Placement) -> None:
        """Note the new placement."""
        self._running[token]  # a token that is not running is a KeyError
        self.placements[token] = placement

    def suspend(self, token: str) -> None:
        """Let its time stand still."""
        running = self._running[token]
        if running.left_seconds is None and running.ends_at > self._clock():
            running.left_seconds, running.ends_at = running.ends_at - self._clock(), math.inf

    def go_on(self, token: str) -> None:
        """Let its time go on."""
        running = self._running[token]
        if running.left_seconds is not None:
            running.ends_at, running.left_seconds = self._clock() + running.left_seconds, None

    def adopt(
        self, spec: JobSpec, attempt_number: int, token: str, outcome: Outcome | None = None
    ) -> int | None:
        """Go on with an attempt of this same object; any other is lost."""
        del spec, attempt_number
        running = self._running.get(token)
        if running is None:
            self._ended.append(LostEnd(token, NEVER_STARTED))
            return None
        running.stopping = outcome
        return running.pid

    def poll(self) -> list[End | LostEnd]:
        """What has ended by now, in the order of the ends."""
        now = self._clock()
        due = sorted(
            (running.ends_at, running.pid, token)
            for token, running in self._running.items()
            if running.ends_at <= now
        )
        self._ended += [_end(token, self._running.pop(token)) for _, _, token in due]
        ended, self._ended = self._ended, []
        return ended

    def filenos(self) -> Sequence[int]:
        """None: ask `next_end` for the time instead."""
        return []

    def next_end(self) -> float | None:
        """When the next attempt ends, on the clock; None if nothing runs."""
        return min((running.ends_at for running in self._running.values()), default=None)

    def pids(self, token: str) -> list[int]:
        """The number that `start` returned."""
        return [self._running[token].pid]

    def roots(self) -> dict[str, int]:
        """None: there is no process to look at."""
        return {}

    def close(self) -> None:
        """Nothing is held."""


def _end(token: str, running: _Running) -> End | LostEnd:
    script = running.script
    if script.lost is not None:
        return LostEnd(token, script.lost)
    if running.stopping is not None:
        return End(token, running.stopping)
    if script.call is None:
        return End(token, script.outcome, script.result)
    try:
        result = script.call()
    except MemoryError:
        outcome = replace(_raised(), state=StateName.OUT_OF_MEMORY, reason="host")
        return End(token, outcome)
    except Exception:  # noqa: BLE001 - whatever a job raises is how it ended
        return End(token, _raised())
    return End(token, script.outcome, {**script.result, **(result or {})})


def _raised() -> Outcome:
    return Outcome(
        state=StateName.FAILED, reason="exit 1", message=traceback.format_exc(), exit_code=1
    )
