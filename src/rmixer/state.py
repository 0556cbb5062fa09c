"""The state of a run: the replay of its events, and nothing else.

`RunState.apply` is the only place where a job's state changes. It takes observed and decided events
alike, so replaying a log gives the state of the run that wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rmixer import events as ev
from rmixer.faults import COLLATERAL
from rmixer.health import drained_text, restarting, unreadable, with_seen, without_cost
from rmixer.interference import Companies, Correction, Pace, company_key
from rmixer.model import (
    Active,
    Attempt,
    Estimate,
    Final,
    Job,
    JobSpec,
    Node,
    Outcome,
    Pending,
    Profile,
    Progress,
    Rate,
    Reason,
    StateName,
)
from rmixer.policies.base import attempt_of
from rmixer.policies.limits import is_declared
from rmixer.policies.live import alone_key, company_on, kind_of
from rmixer.roster import Roster

#: A measured peak is reserved with this much room above it, until errors have been calibrated.
MEMORY_MARGIN = 1.2
#: After an out-of-memory end at least so many times as much is reserved.
OUT_OF_MEMORY_GROWTH = 2.0
#: And after one at the limit that the user declared: all that is known of the need is that this
#: number was wrong, and before the job gets the whole machine there is one attempt in between.
DECLARED_GROWTH = 4.0
#: Attempts that may end out of memory, or be lost, without using up the user's retries. The last
#: of them gets the whole memory of the node, and so runs alone.
FREE_ATTEMPTS = 3
#: A sibling's profile counts this much for the other members of a family.
FAMILY_CONFIDENCE = 0.5

#: Sources of an estimate that a measurement may lower.
_GUESSED = ("default", "hint")

Interruption = Literal["no", "graceful", "forced"]


@dataclass(slots=True)
class RunState:
    """Everything that is known of a run. Two states are equal if they hold the same."""

    began: ev.Began | None = None
    node: Node = field(default_factory=Node)
    at: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    queue_closed: bool = False
    interrupted: Interruption = "no"
    finished: ev.Finished | None = None
    correction: Correction = field(default_factory=Correction)
    companies: Companies = field(default_factory=Companies)
    unread: dict[str, str] = field(default_factory=dict)
    drained: dict[str, str] = field(default_factory=dict)
    roster: Roster = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.roster = Roster(self.jobs, self.node)

    def apply(self, event: ev.Event) -> None:
        """Take one event in. An event about an attempt that is not current changes nothing.

        Nor does anything that comes after the run has finished, unless it is resumed.
        """
        if self.finished is not None and not isinstance(event, ev.Resumed):
            return
        self.at = max(self.at, event.at)
        change = _CHANGES.get(type(event))
        if change is not None:  # others only say that something happened; decisions follow
            change(self, event)

    # --- questions --------------------------------------------------------------------------

    def current(self, job: str, token: str) -> Job | None:
        """The job if that attempt is the one it is running, else None (compare-and-set)."""
        found = self.jobs.get(job)
        if found is None or not isinstance(found.state, Active):
            return None
        return found if found.state.attempt.token == token else None

    @property
    def active(self) -> tuple[Job, ...]:
        """Jobs that hold a placement, in the order of submission."""
        return self.roster.active

    @property
    def pending(self) -> tuple[Job, ...]:
        """Jobs that wait, in the order of submission."""
        return self.roster.pending

    def _put(self, job: Job) -> None:
        """What a job has become."""
        self.jobs[job.id] = job
        self.roster.put(job)

    # --- changes ----------------------------------------------------------------------------

    def _begin(self, event: ev.Began) -> None:
        self.began = event
        self._take_node(event.node)

    def _close_queue(self, event: ev.QueueClosed) -> None:  # noqa: ARG002
        self.queue_closed = True
        self.roster.check_all()

    def _interrupt(self, event: ev.Interrupted) -> None:
        self.interrupted = "forced" if event.force else "graceful"

    def _finish(self, event: ev.Finished) -> None:
        self.finished = event

    def _progress(self, event: ev.Progressed) -> None:
        if job := self.current(event.job, event.token):
            self.jobs[job.id] = replace(job, progress=event.progress)

    def _see_device(self, event: ev.DeviceSeen) -> None:
        self.unread.pop(event.device, None)
        if event.problem:
            self.unread[event.device] = unreadable(
                self.node.device(event.device).index, event.problem
            )
        self._set_node(with_seen(self.node, event))

    def _drain(self, event: ev.DeviceDrained) -> None:
        """Give a GPU up. What its fault has cost waiting jobs, they get back."""
        self.drained[event.device] = drained_text(event, self.node)
        for job in list(self.jobs.values()):
            if event.device in job.faulted_on(event.fault) and not job.is_final:
                attempts = tuple(without_cost(a, event) for a in job.attempts)
                self._put(replace(job, attempts=attempts))
        self._set_node(self.node)

    def _set_node(self, node: Node) -> None:
        """The node as it is now, its devices closed for whatever closes them."""
        busy = restarting(node, self.active)
        closed = {**busy, **self.unread, **self.drained}
        devices = tuple(replace(d, closed=closed.get(d.id, "")) for d in node.devices)
        if devices != self.node.devices or node != self.node:
            self.node = replace(node, devices=devices)
            self.roster.fit_to(self.node)

    def _take_node(self, node: Node) -> None:
        """A node that nothing is known of but what it says of itself."""
        self.node, self.drained = node, {}
        self.unread = {d.id: d.closed for d in node.devices if d.closed}
        self.roster.fit_to(node)

    def _resume(self, event: ev.Resumed) -> None:
        self._take_node(event.node)
        self._fit_to_node()
        self.finished = None
        self.interrupted = "no"
        if event.retry_failed:
            for job in list(self.jobs.values()):
                if isinstance(job.state, Final) and job.state.name != StateName.SUCCEEDED:
                    attempts = tuple(replace(a, counted=False) for a in job.attempts)
                    state = Pending(Reason("Submitted"), since=event.at)
                    self._put(replace(job, state=state, attempts=attempts, forgiven=len(attempts)))

    def _fit_to_node(self) -> None:
        """What was learned may exceed a machine that has become smaller; a hint stays a hint."""
        for job in list(self.jobs.values()):
            limit = max(self.node.memory, job.spec.memory or 0)
            if job.estimate.memory > limit:
                self._put(replace(job, estimate=replace(job.estimate, memory=limit)))

    def _submit(self, event: ev.Submitted) -> None:
        profile = event.profile or self._family_profile(event.spec)
        job = Job(
            spec=event.spec,
            state=Pending(Reason("Submitted"), since=event.at),
            queued_at=event.at,
            estimate=event.estimate,
            profile=profile,
            told=event.profile,
            profiles=event.profiles,
        )
        self._put(job)

    def _family_profile(self, spec: JobSpec) -> Profile | None:
        known = self.roster.known_member(spec.family) if spec.family else None
        if known is None or known.profile is None:
            return None
        return replace(known.profile, confidence=FAMILY_CONFIDENCE)

    def _place(self, event: ev.Placed) -> None:
        job = self.jobs[event.job]
        assert isinstance(job.state, Pending), f"{job.id} is {job.state.name}"
        attempt = Attempt(
            number=event.attempt,
            token=event.token,
            placement=event.placement,
            started_at=event.at,
        )
        name = StateName.PROFILING if event.profiling else StateName.RUNNING
        state = Active(name, attempt, since=event.at)  # type: ignore[arg-type]
        self._put(replace(job, state=state, progress=Progress(at=event.at)))

    def _rebook(self, event: ev.Rebooked) -> None:
        if job := self.current(event.job, event.token):
            assert isinstance(job.state, Active)
            attempt = replace(job.state.attempt, placement=event.placement)
            self._put(replace(job, state=replace(job.state, attempt=attempt)))

    def _suspend(self, event: ev.Suspended) -> None:
        if job := self.current(event.job, event.token):
            assert isinstance(job.state, Active)
            state = Active(
                StateName.SUSPENDED, job.state.attempt, since=event.at, reason=event.reason
            )
            self._put(replace(job, state=state))

    def _continue(self, event: ev.Continued) -> None:
        if job := self.current(event.job, event.token):
            assert isinstance(job.state, Active)
            attempt = replace(_awake(job.state, event.at), placement=event.placement)
            state = Active(StateName.RUNNING, attempt, since=event.at)
            self._put(replace(job, state=state))

    def _wait(self, event: ev.Waiting) -> None:
        job = self.jobs[event.job]
        if isinstance(job.state, Pending):
            self.jobs[job.id] = replace(job, state=replace(job.state, reason=event.reason))

    def _stop(self, event: ev.Stopping) -> None:
        if job := self.current(event.job, event.token):
            assert isinstance(job.state, Active)
            outcome = job.state.stopping or event.outcome
            since = job.state.since if job.state.stopping else event.at
            attempt = _awake(job.state, event.at)
            state = Active(StateName.COMPLETING, attempt, since, stopping=outcome)
            self._put(replace(job, state=state))
            if outcome.reason == COLLATERAL:
                self._set_node(self.node)

    def _close(self, event: ev.Requeued | ev.Ended) -> None:
        """End the running attempt, if there is one, and give the job its next state."""
        job = self.jobs[event.job]
        assert not job.is_final, f"{job.id} has ended already"
        counted = event.counted if isinstance(event, ev.Requeued) else True
        attempts = job.attempts
        if isinstance(job.state, Active):
            ended = replace(
                _awake(job.state, event.at),
                outcome=event.outcome,
                ended_at=event.at,
                counted=counted,
            )
            attempts = (*attempts, ended)
        state: Pending | Final
        if isinstance(event, ev.Requeued):
            state = Pending(_reason(event), since=event.at, not_before=event.not_before)
        else:
            state = Final(event.outcome, at=event.at)
        estimate = _after(job, event.outcome, self.node)
        self._put(replace(job, state=state, attempts=attempts, estimate=estimate))
        if _ran_out(event.outcome):
            self._warn_siblings(job, _grown(job, event.outcome), "out of memory")
        else:
            needed = int(event.outcome.memory_peak_bytes * MEMORY_MARGIN)
            self._warn_siblings(job, needed, "measured")
        self._learn_device(job, event.outcome)
        if event.outcome.reason == COLLATERAL:
            self._set_node(self.node)

    def _learn_device(self, job: Job, outcome: Outcome) -> None:
        """What a whole attempt held on its device counts for the waiting members of its family.

        One of which nothing was known would book the whole device; one that books less gets more.
        """
        needed = int(outcome.device_peak_bytes * MEMORY_MARGIN)
        whole = outcome.state == StateName.SUCCEEDED
        for sibling in self.roster.siblings(job) if needed else ():
            booked = sibling.estimate.device_memory
            if (booked and needed > booked) or (not booked and whole):
                estimate = replace(sibling.estimate, device_memory=self._most_on_device(needed))
                self._put(replace(sibling, estimate=estimate))

    def _most_on_device(self, needed: int) -> int:
        return min(needed, max((device.capacity for device in self.node.devices), default=0))

    def _learn(self, event: ev.Profiled) -> None:
        job = self.current(event.job, event.token)
        if job is None:
            return
        assert isinstance(job.state, Active)
        state = job.state
        if state.name == StateName.PROFILING:
            state = replace(state, name=StateName.RUNNING)
        estimate = _learned(job, event.profile.memory, self.node)
        profile = _with_solo(event.profile, job.profile)
        self._put(replace(job, state=state, profile=profile, estimate=estimate))
        for sibling in self.roster.siblings(job):
            if sibling.profile is None or sibling.profile.confidence <= FAMILY_CONFIDENCE:
                seen = replace(event.profile, confidence=FAMILY_CONFIDENCE)
                profile = _with_solo(seen, sibling.profile)
                estimate = _learned(sibling, event.profile.memory, self.node)
                self._put(replace(sibling, profile=profile, estimate=estimate))

    def _measure(self, event: ev.Measured) -> None:
        """Learn from the rates of a company, if it is still the one that is there."""
        if not self.is_company(event):
            return
        jobs, rates = [self.jobs[job] for job in event.jobs], list(event.jobs.values())
        if len(jobs) == 1:
            self._know_alone(jobs[0], rates[0])
            return
        kinds = [kind_of(job) for job in jobs]
        found = [rate.relative for rate in rates]
        predicted = [rate.predicted for rate in rates if rate.predicted is not None]
        if len(predicted) == len(rates):
            self.correction = self.correction.learn(
                kinds, predicted, [math.nan if rate is None else rate for rate in found]
            )
        paces = [
            Pace(alone_key(job, self.node), rate.steps_per_second, rate.step_seconds)
            for job, rate in zip(jobs, rates, strict=True)
            if rate.steps_per_second is not None and rate.step_seconds is not None
        ]
        if len(paces) == len(jobs):
            key = company_key(self.node.device(event.device).kind, kinds)
            self.companies = self.companies.with_company(key, paces)

    def _know_alone(self, job: Job, rate: Rate) -> None:
        if rate.steps_per_second:
            self.companies = self.companies.with_alone(
                alone_key(job, self.node), 1.0 / rate.steps_per_second
            )

    def is_company(self, event: ev.Measured) -> bool:
        """Whether these attempts, and no others, run on that device now."""
        there = company_on(event.device, self.active)
        now = {job.id: attempt_of(job).token for job in there}
        return now == {job: rate.token for job, rate in event.jobs.items()}

    def _grow(self, event: ev.MemoryGrew) -> None:
        if job := self.current(event.job, event.token):
            needed = min(int(event.memory * MEMORY_MARGIN), self.node.memory)
            if needed > job.estimate.memory:
                estimate = replace(job.estimate, memory=needed, source="measured")
                self._put(replace(job, estimate=estimate))
            self._warn_siblings(job, needed, "measured")

    def _grow_on_device(self, event: ev.DeviceMemoryGrew) -> None:
        """What is seen on the device is reserved, for the job and for the waiting of its family."""
        job = self.current(event.job, event.token)
        needed = self._most_on_device(int(event.memory * MEMORY_MARGIN))
        for one in (job, *self.roster.siblings(job)) if job is not None else ():
            if 0 < one.estimate.device_memory < needed:
                estimate = replace(one.estimate, device_memory=needed)
                self._put(replace(one, estimate=estimate))

    def _warn_siblings(self, job: Job, needed: int, source: str) -> None:
        """What one member of a family was seen to need, none of the others gets less."""
        needed = min(needed, self.node.memory)
        for sibling in self.roster.siblings(job) if needed else ():
            if needed > sibling.estimate.memory:
                estimate = replace(sibling.estimate, memory=needed, source=source)
                self._put(replace(sibling, estimate=estimate))


def _awake(state: Active, at: float) -> Attempt:
    """The attempt, the time in which it stands still counted up to now."""
    if state.name != StateName.SUSPENDED:
        return state.attempt
    stood = state.attempt.suspended_seconds + max(0.0, at - state.since)
    return replace(state.attempt, suspended_seconds=stood)


def _reason(event: ev.Requeued) -> Reason:
    """Why a job that has just ended an attempt waits."""
    if event.not_before > event.at:
        return Reason("Backoff", event.not_before - event.at)
    interrupted = event.outcome.state == StateName.CANCELLED
    return Reason("Interrupted" if interrupted else "Submitted")


def _with_solo(seen: Profile, before: Profile | None) -> Profile:
    """A profile seen in company, with what only solo runs and traces show from the one before."""
    if before is None:
        return seen
    kept = ("solo_seconds", "speeds", "granularity")
    return replace(
        seen, **{name: getattr(before, name) for name in kept if not getattr(seen, name)}
    )


def _learned(job: Job, peak: int, node: Node) -> Estimate:
    """The reservation once a peak was seen. The user's hint stays if it is larger.

    Only a guess is lowered. What was measured before, in a whole run or up to an out-of-memory end,
    counts: the job may come to it later than it was looked at now.
    """
    if not peak:
        return job.estimate
    needed = max(int(peak * MEMORY_MARGIN), job.spec.memory or 0)
    if job.estimate.source not in _GUESSED and needed <= job.estimate.memory:
        return job.estimate
    source = "hint" if needed == job.spec.memory else "measured"
    return replace(job.estimate, memory=min(needed, node.memory), source=source)


def _after(job: Job, outcome: Outcome, node: Node) -> Estimate:
    """The reservation for the next attempt: more room after an out-of-memory end, at last all."""
    if outcome.fault and isinstance(job.state, Active):
        device = job.state.attempt.placement.device
        if any(d.id == device and d.sharing == "mps" for d in node.devices):
            return replace(job.estimate, device_memory=0)  # alone from now on
    if outcome.state != StateName.OUT_OF_MEMORY:
        return job.estimate
    if not _ran_out(outcome):
        return replace(job.estimate, device_memory=0)  # a whole GPU is booked for it
    before = sum(_ran_out(a.outcome) for a in job.attempts[job.forgiven :])
    is_last = before + 2 >= FREE_ATTEMPTS
    needed = node.memory if is_last else _grown(job, outcome)
    return replace(job.estimate, memory=min(needed, node.memory), source="out of memory")


def _ran_out(outcome: Outcome | None) -> bool:
    """Whether an attempt ended because there was not enough host memory for it."""
    if outcome is None or outcome.state != StateName.OUT_OF_MEMORY:
        return False
    return outcome.reason != "gpu"


def _grown(job: Job, outcome: Outcome) -> int:
    """What to reserve next for a job whose running attempt has ended out of memory, bytes.

    A peak that is well above the limit was not cut off by it: it tells what is needed.
    """
    peak = outcome.memory_peak_bytes
    needed = max(int(peak * MEMORY_MARGIN), job.estimate.memory)
    if not isinstance(job.state, Active):
        return needed
    held = job.state.attempt.placement
    if is_declared(job.spec, held) and peak <= held.memory_limit * MEMORY_MARGIN:
        return max(needed, int(held.memory_limit * DECLARED_GROWTH))
    return max(needed, int(held.memory * OUT_OF_MEMORY_GROWTH))


_CHANGES: dict[type, Callable[[RunState, Any], None]] = {
    ev.Began: RunState._begin,
    ev.Resumed: RunState._resume,
    ev.DeviceSeen: RunState._see_device,
    ev.DeviceDrained: RunState._drain,
    ev.Submitted: RunState._submit,
    ev.QueueClosed: RunState._close_queue,
    ev.Interrupted: RunState._interrupt,
    ev.Finished: RunState._finish,
    ev.Progressed: RunState._progress,
    ev.Profiled: RunState._learn,
    ev.Measured: RunState._measure,
    ev.MemoryGrew: RunState._grow,
    ev.DeviceMemoryGrew: RunState._grow_on_device,
    ev.Placed: RunState._place,
    ev.Rebooked: RunState._rebook,
    ev.Suspended: RunState._suspend,
    ev.Continued: RunState._continue,
    ev.Waiting: RunState._wait,
    ev.Stopping: RunState._stop,
    ev.Requeued: RunState._close,
    ev.Ended: RunState._close,
}
