"""The events folded into what a report shows: every job, every attempt, every booking, with times.

The dispatcher's replay holds the present; a report also needs the past (what was booked when, how
each attempt ended), so this fold keeps all of it and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmixer import events as ev
from rmixer.errors import StorageError
from rmixer.model import (
    FINAL_STATES,
    Estimate,
    JobSpec,
    Node,
    Outcome,
    Placement,
    Progress,
    Reason,
    StateName,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: seconds since the run began, and unix time."""

    at: float
    wall: float


@dataclass(frozen=True, slots=True)
class Booking:
    """What an attempt books from `start` to `end`, seconds since the run began."""

    start: float
    end: float
    placement: Placement


@dataclass(slots=True)
class AttemptRecord:
    """One start of a job; `placements` begin at their times, the newest is the present one."""

    number: int
    token: str
    began: Moment
    placements: list[tuple[float, Placement]]
    ended: Moment | None = None
    outcome: Outcome | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    counted: bool = True
    settled: bool = False

    @property
    def placement(self) -> Placement:
        """The newest placement."""
        return self.placements[-1][1]

    def bookings(self, now: float) -> list[Booking]:
        """The attempt's bookings in order; an attempt that still runs books until `now`."""
        end = max(self.ended.at if self.ended else now, self.began.at)
        starts = [min(at, end) for at, _ in self.placements]
        return [
            Booking(start, stop, placement)
            for start, stop, (_, placement) in zip(
                starts, [*starts[1:], end], self.placements, strict=True
            )
        ]

    def close(self, event: ev.Exited | ev.Lost | ev.Requeued | ev.Ended, outcome: Outcome) -> None:
        """Note the end; what the dispatcher decides later keeps the peak that was measured."""
        peak = max(outcome.memory_peak_bytes, self.outcome.memory_peak_bytes if self.outcome else 0)
        self.outcome = replace(outcome, memory_peak_bytes=peak)
        if self.ended is None:
            self.ended = Moment(event.at, event.wall)


@dataclass(slots=True)
class JobRecord:
    """One job; `reason` says why it is in its state."""

    spec: JobSpec
    estimate: Estimate
    queued: Moment
    state: StateName = StateName.PENDING
    reason: str = "Submitted"
    attempts: list[AttemptRecord] = field(default_factory=list)
    ended: Moment | None = None
    outcome: Outcome | None = None
    grown_bytes: int = 0

    def attempt(self, token: str) -> AttemptRecord | None:
        """The attempt of that token."""
        return next((a for a in reversed(self.attempts) if a.token == token), None)

    def reopen(self) -> None:
        """The job waits again, whatever it was."""
        self.state, self.ended, self.outcome = StateName.PENDING, None, None


@dataclass(slots=True)
class History:
    """A run so far. `finished` is None while it runs, also after it has been taken up again."""

    began: ev.Began
    node: Node
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    resumed: list[Moment] = field(default_factory=list)
    finished: ev.Finished | None = None
    last: Moment = field(default_factory=lambda: Moment(0.0, 0.0))

    def wall(self, at: float) -> float:
        """Unix time of that second of the run, by the clock of its beginning."""
        return self.began.wall + at - self.began.at

    def apply(self, event: ev.Event) -> None:
        """Take in the next event."""
        self.last = Moment(max(self.last.at, event.at), max(self.last.wall, event.wall))
        match event:
            case ev.Submitted(spec=spec, estimate=estimate):
                self.jobs[spec.id] = JobRecord(spec, estimate, Moment(event.at, event.wall))
            case ev.Resumed(node=node, retry_failed=retry_failed):
                self._resume(Moment(event.at, event.wall), node, retry_failed=retry_failed)
            case ev.Finished():
                self.finished = event
            case _ if (job := self.jobs.get(getattr(event, "job", ""))) is not None:
                _apply_to_job(job, event)

    def _resume(self, when: Moment, node: Node, *, retry_failed: bool) -> None:
        self.node, self.finished = node, None
        self.resumed.append(when)
        for job in self.jobs.values():
            if retry_failed and job.state in FINAL_STATES - {StateName.SUCCEEDED}:
                job.reopen()
                job.reason = "Submitted"


def fold(events: Iterable[ev.Event]) -> History:
    """The history of a run.

    Raises:
        StorageError: the log has no beginning, so there is no run to report.
    """
    history: History | None = None
    for event in events:
        if isinstance(event, ev.Began):
            history = History(event, event.node, last=Moment(event.at, event.wall))
        elif history is not None:
            history.apply(event)
    if history is None:
        raise StorageError("the run's events log is empty: nothing of the run was recorded")
    return history


def _apply_to_job(job: JobRecord, event: ev.Event) -> None:
    match event:
        case ev.Waiting(reason=reason):
            job.reopen()
            job.reason = str(reason)
        case ev.Placed(placement=placement, attempt=number, token=token):
            job.reopen()
            began = Moment(event.at, event.wall)
            job.attempts.append(AttemptRecord(number, token, began, [(event.at, placement)]))
            job.state = StateName.PROFILING if event.profiling else StateName.RUNNING
            job.reason = ""
        case ev.Requeued() | ev.Ended():
            _settle(job, event)
        case _:
            attempt = job.attempt(getattr(event, "token", ""))
            if attempt is not None:
                _apply_to_attempt(job, attempt, event)


def _apply_to_attempt(job: JobRecord, attempt: AttemptRecord, event: ev.Event) -> None:
    match event:
        case ev.Rebooked(placement=placement):
            attempt.placements.append((event.at, placement))
        case ev.Progressed(progress=progress):
            attempt.progress = progress
        case ev.Profiled() if job.state is StateName.PROFILING:
            job.state = StateName.RUNNING
        case ev.MemoryGrew(memory=memory):
            job.grown_bytes = max(job.grown_bytes, memory)
        case ev.Stopping(outcome=outcome):
            job.state = StateName.COMPLETING
            job.reason = outcome.reason or outcome.state
        case ev.Exited(outcome=outcome, result=result):
            attempt.close(event, outcome)
            attempt.result = result
        case ev.Lost(message=message):
            attempt.close(event, Outcome(state=StateName.NODE_FAIL, reason="lost", message=message))


def _settle(job: JobRecord, event: ev.Requeued | ev.Ended) -> None:
    """What the dispatcher made of an attempt's end, and of the job's."""
    attempt = job.attempts[-1] if job.attempts else None
    if attempt is not None and not attempt.settled:
        attempt.close(event, event.outcome)
        attempt.settled = True
    if isinstance(event, ev.Requeued):
        job.reopen()
        job.reason = str(Reason("Backoff", need=max(0.0, event.not_before - event.at)))
        if attempt is not None:
            attempt.counted = event.counted
    else:
        job.reason = event.outcome.reason
        job.state, job.outcome = event.outcome.state, event.outcome
        job.ended = Moment(event.at, event.wall)
