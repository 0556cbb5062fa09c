"""A run's past: every job, every attempt, every booking, with their times.

The states are those of `rmixer.state`. It holds the present; a report also needs what was booked
when, the wall times and what each attempt wrote of itself, so this fold keeps them beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmixer import events as ev
from rmixer.errors import StorageError
from rmixer.health import Remarkable, remark
from rmixer.model import (
    Attempt,
    Estimate,
    Job,
    JobSpec,
    Node,
    Outcome,
    Placement,
    Profile,
    Progress,
    StateName,
)
from rmixer.report.view import reason_of
from rmixer.state import RunState


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: seconds since the run began, and unix time."""

    at: float
    wall: float


@dataclass(frozen=True, slots=True)
class Booking:
    """What an attempt books from `start` to `end`, seconds since the run began.

    One that ``stands`` still books no cores.
    """

    start: float
    end: float
    placement: Placement
    stands: bool = False


@dataclass(slots=True)
class AttemptRecord:
    """One start of a job; `placements` hold from their times on, the newest is the present one.

    ``stood`` has the times in which it stood still; one that has not ended is open.
    """

    number: int
    token: str
    began: Moment
    placements: list[tuple[float, Placement]]
    ended: Moment | None = None
    outcome: Outcome | None = None
    counted: bool = True
    result: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    peak_bytes: int = 0
    stood: list[tuple[float, float]] = field(default_factory=list)

    @property
    def placement(self) -> Placement:
        """The newest placement."""
        return self.placements[-1][1]

    def bookings(self, now: float) -> list[Booking]:
        """The attempt's bookings in order; an attempt that still runs books until `now`."""
        end = max(self.ended.at if self.ended else now, self.began.at)
        starts = [min(at, end) for at, _ in self.placements]
        return [
            Booking(start, stop, placement, stands=self._stands(start))
            for start, stop, (_, placement) in zip(
                starts, [*starts[1:], end], self.placements, strict=True
            )
        ]

    def suspended_seconds(self, now: float) -> float:
        """How long it has stood still until now."""
        end = max(self.ended.at if self.ended else now, self.began.at)
        return sum(max(0.0, min(stop, end) - start) for start, stop in self.stood)

    def _stands(self, at: float) -> bool:
        return any(start <= at < stop for start, stop in self.stood)

    def stand(self, at: float) -> None:
        """It stands still from now on, and books no cores."""
        self.stood.append((at, math.inf))
        self.placements.append((at, replace(self.placement, cpu=0.0)))

    def go_on(self, at: float, placement: Placement) -> None:
        """It goes on there."""
        self.stood[-1] = (self.stood[-1][0], at)
        self.placements.append((at, placement))

    def close(self, when: Moment, outcome: Outcome) -> None:
        """Note an end. The first one seen sets the time, the newest one what it counts as."""
        self.ended = self.ended or when
        self.outcome = outcome
        self.peak_bytes = max(self.peak_bytes, outcome.memory_peak_bytes)


@dataclass(slots=True)
class JobRecord:
    """One job: what it is now, what was believed at first, and its attempts, oldest first."""

    job: Job
    estimate: Estimate
    queued: Moment
    attempts: list[AttemptRecord] = field(default_factory=list)
    ended: Moment | None = None

    @property
    def spec(self) -> JobSpec:
        """The job as asked for."""
        return self.job.spec

    @property
    def state(self) -> StateName:
        """What the job is doing now."""
        return self.job.state.name

    @property
    def reason(self) -> str:
        """Why it is in this state; empty where there is nothing to say."""
        return reason_of(self.job)


@dataclass(slots=True)
class History:
    """A run so far. ``state.finished`` is None while it runs, also after it was taken up again."""

    began: ev.Began
    state: RunState
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    resumed: list[Moment] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    last: Moment = Moment(0.0, 0.0)

    @property
    def node(self) -> Node:
        """The machine as it was last seen."""
        return self.state.node

    @property
    def finished(self) -> ev.Finished | None:
        """The run's end, if it has come to one."""
        return self.state.finished

    def wall(self, at: float) -> float:
        """Unix time of that second of the run, by the clock of its beginning."""
        return self.began.wall + at - self.began.at

    def apply(self, event: ev.Event) -> None:
        """Take in the next event."""
        self.state.apply(event)
        when = Moment(event.at, event.wall)
        self.last = Moment(max(self.last.at, event.at), max(self.last.wall, event.wall))
        match event:
            case ev.Submitted(spec=spec, estimate=estimate):
                self.jobs[spec.id] = JobRecord(self.state.jobs[spec.id], estimate, when)
            case ev.Resumed():
                self.resumed.append(when)
            case ev.Placed(job=job, attempt=number, token=token, placement=placement):
                record = AttemptRecord(number, token, when, [(event.at, placement)])
                self.jobs[job].attempts.append(record)
            case ev.Ended(job=job):
                self.jobs[job].ended = when
            case ev.DeviceSeen() | ev.Strayed() | ev.DeviceDrained():
                self._remark(event)
            case _:
                self._apply_to_attempt(event, when)

    def _remark(self, event: Remarkable) -> None:
        """Keep what people should know of the run's devices, each thing once."""
        attempt = self._attempt(event)
        job = self.jobs[event.job].spec.name if isinstance(event, ev.Strayed) else ""
        text = remark(event, self.node, job, attempt.placement.device if attempt else "")
        if text and text not in self.remarks:
            self.remarks.append(text)

    def _apply_to_attempt(self, event: ev.Event, when: Moment) -> None:
        attempt = self._attempt(event)
        match event:
            case _ if attempt is None:
                return
            case ev.Rebooked(placement=placement):
                attempt.placements.append((event.at, placement))
            case ev.Suspended():
                attempt.stand(event.at)
            case ev.Continued(placement=placement) if attempt.stood:
                attempt.go_on(event.at, placement)
            case ev.Progressed(progress=progress):
                attempt.progress = progress
            case ev.MemoryGrew(memory=memory) | ev.Profiled(profile=Profile(memory=memory)):
                attempt.peak_bytes = max(attempt.peak_bytes, memory)
            case ev.Exited(outcome=outcome, result=result):
                attempt.close(when, outcome)
                attempt.result = result
            case ev.Lost(message=message):
                lost = Outcome(state=StateName.NODE_FAIL, reason="lost", message=message)
                attempt.close(when, lost)

    def _attempt(self, event: ev.Event) -> AttemptRecord | None:
        job = self.jobs.get(getattr(event, "job", ""))
        token = getattr(event, "token", None)
        attempts = reversed(job.attempts) if job else ()
        return next((attempt for attempt in attempts if attempt.token == token), None)

    def settle(self) -> None:
        """Bring every record to what the state says of it."""
        for id_, record in self.jobs.items():
            record.job = self.state.jobs[id_]
            if not record.job.is_final:
                record.ended = None
            decided = {attempt.token: attempt for attempt in record.job.attempts}
            for attempt in record.attempts:
                if attempt.token in decided:
                    self._decide(attempt, decided[attempt.token])

    def _decide(self, record: AttemptRecord, attempt: Attempt) -> None:
        record.counted = attempt.counted
        if attempt.outcome is not None and attempt.ended_at is not None:
            record.close(Moment(attempt.ended_at, self.wall(attempt.ended_at)), attempt.outcome)


def fold(events: Iterable[ev.Event]) -> History:
    """The history of a run.

    Raises:
        StorageError: the log has no beginning, so there is no run to report.
    """
    history: History | None = None
    for event in events:
        if isinstance(event, ev.Began):
            history = History(event, RunState(), last=Moment(event.at, event.wall))
        if history is not None:
            history.apply(event)
    if history is None:
        raise StorageError("the run's events log is empty: nothing of the run was recorded")
    history.settle()
    return history
