"""The core: events in, actions out. No clock, no process, no file, no torch.

The real runner, the simulator and a cluster backend drive this same object. An action is a decided
event, which the driver writes to the log and then carries out, or `Wake`, a time at which the
dispatcher wants to hear `Woke`; back-off, timeouts and grace periods are decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

from rmixer import events as ev
from rmixer.faults import COLLATERAL, DRAINED, is_excused, speaks_against
from rmixer.health import why_closed
from rmixer.model import CPU, Active, Final, Job, Outcome, Pending, Placement, Reason, StateName
from rmixer.policies.base import (
    Plan,
    Policy,
    Snapshot,
    attempt_of,
    eligible_devices,
    placement_of,
)
from rmixer.policies.limits import attempts_table, memory_limit, raised_limit
from rmixer.policies.live import kind_of
from rmixer.policies.veto import let_stranded_go_on
from rmixer.roster import Jobs
from rmixer.state import FREE_ATTEMPTS, RunState

#: First back-off after a failure, seconds; doubled for each further one, up to the cap.
BACKOFF_SECONDS = 1.0
BACKOFF_CAP_SECONDS = 60.0
#: A reason is logged anew when its numbers have moved by this share.
_REASON_CHANGE = 0.1
#: A rate that is further off than this changes the plan.
_RATE_CHANGE = 0.1

#: Events after which nothing can start that could not before.
_CHANGES_NO_PLAN = (ev.Submitted, ev.Spawned, ev.Adopted, ev.Progressed, ev.Strayed)

#: Events from which nothing follows.
_ONLY_TELL = (ev.Progressed, ev.Spawned)

#: Ends after which the job waits longer each time; others do not count against its patience.
_FAILURES = (StateName.FAILED, StateName.OUT_OF_MEMORY)

INTERRUPTED = Outcome(state=StateName.CANCELLED, reason="Interrupted")
CANCELLED = Outcome(state=StateName.CANCELLED, reason="cancelled", retryable=False)
NEVER_STARTED = "never started"
DEPENDENCY_FAILED = "DependencyFailed"


@dataclass(slots=True)
class _Answer:
    """What one event led to, while it is being worked out."""

    at: float
    wall: float
    actions: list[ev.Action]


class Dispatcher:
    """Holds the state of one run and decides what happens next.

    Args:
        policy: decides what starts where.
        state: where to go on from, for a run that is taken over.
    """

    def __init__(self, policy: Policy, state: RunState | None = None) -> None:
        self.policy = policy
        self.state = state or RunState()
        self._wake_at: float | None = None
        self._memo: object = None

    @classmethod
    def replay(cls, policy: Policy, log: Iterable[ev.Event]) -> Dispatcher:
        """The dispatcher as it was when the log ended. Decides nothing."""
        dispatcher = cls(policy)
        for event in log:
            dispatcher.state.apply(event)
        return dispatcher

    def handle(self, event: ev.Observed) -> list[ev.Action]:
        """Take one observed event in; what follows from it, in order.

        An event about an attempt that is not the current one of its job has no effect.
        """
        answer = _Answer(event.at, event.wall, [])
        if self.state.finished is not None and not isinstance(event, ev.Resumed):
            return answer.actions
        if isinstance(event, _ONLY_TELL):
            self.state.apply(event)
            return answer.actions
        known = self._is_current(event)
        changes_plan = self._changes_plan(event)
        vetoed = self.state.companies.vetoed
        self.state.apply(event)
        changes_plan |= self.state.companies.vetoed != vetoed
        if known:
            self._follow(event, answer)
        if self._may_start() and changes_plan:
            self._end_the_hopeless(answer)
            self._plan(answer)
        self._finish_if_done(answer)
        self._ask_for_wake(answer)
        return answer.actions

    # --- what follows from an event ---------------------------------------------------------

    def _is_current(self, event: ev.Observed) -> bool:
        match event:
            case ev.Exited() | ev.Lost() | ev.Profiled() | ev.MemoryGrew() | ev.DeviceMemoryGrew():
                return self.state.current(event.job, event.token) is not None
        return True

    def _changes_plan(self, event: ev.Observed) -> bool:
        """Whether anything can start after it that could not before; before it is applied."""
        if isinstance(event, ev.Measured):
            return self.state.is_company(event) and _is_surprise(self.state, event)
        return not isinstance(event, _CHANGES_NO_PLAN)

    def _follow(self, event: ev.Observed, answer: _Answer) -> None:
        match event:
            case ev.Exited(job=id, outcome=outcome):
                self._settle(self.state.jobs[id], outcome, answer)
            case ev.Lost(job=id, message=message, ran=ran):
                reason = "lost" if ran else NEVER_STARTED
                lost = Outcome(state=StateName.NODE_FAIL, reason=reason, message=message)
                self._settle(self.state.jobs[id], lost, answer)
            case ev.CancelRequested(job=id):
                self._cancel(id, answer)
            case ev.Interrupted(force=force):
                for job in self.state.active:
                    self._stop(job, INTERRUPTED, answer, force=force)
            case ev.Submitted():
                answer.actions.append(ev.Wake(at=answer.at))  # plan once the batch is in
            case ev.Resumed():
                self._wake_at = None
                answer.actions.append(ev.Wake(at=answer.at))  # times count once ends were heard
            case ev.Woke():
                self._wake_at = None
                self._enforce_times(answer)
            case ev.MemoryGrew(job=id) | ev.DeviceMemoryGrew(job=id) | ev.Profiled(job=id):
                self._book_memory(self.state.jobs[id], answer)

    def _settle(self, job: Job, outcome: Outcome, answer: _Answer) -> None:
        """An attempt is over: requeue the job or end it."""
        assert isinstance(job.state, Active)
        ordered = job.state.stopping
        if ordered is not None and outcome.state != StateName.SUCCEEDED:
            outcome = replace(
                ordered,
                message=ordered.message or outcome.message,
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                memory_peak_bytes=outcome.memory_peak_bytes,
            )
        if outcome.reason == INTERRUPTED.reason and outcome.state == INTERRUPTED.state:
            self._requeue(job, outcome, 0.0, counted=False, answer=answer)
        elif self._has_another_try(job, outcome):
            counted = not self._is_forgiven(job, outcome)
            delay = 0.0 if outcome.fault and not counted else _backoff(job, outcome)
            self._requeue(job, outcome, delay, counted=counted, answer=answer)
        else:
            self._end(job, _with_attempts(job, outcome), answer)
        if outcome.fault:
            self._judge_gpu(placement_of(job).device, job.spec.name, outcome.fault, answer)

    def _has_another_try(self, job: Job, outcome: Outcome) -> bool:
        if outcome.state == StateName.SUCCEEDED or not outcome.retryable:
            return False
        return self._is_forgiven(job, outcome) or job.tries_used < job.spec.retries

    def _is_forgiven(self, job: Job, outcome: Outcome) -> bool:
        """Whether another attempt uses none of the job's tries."""
        if not outcome.fault:
            return _costs_nothing(job, outcome)
        jobs = self.state.jobs.values() if job.spec.family else ()
        family = [one for one in jobs if one.spec.family == job.spec.family]
        return is_excused(job, attempt_of(job), outcome.fault, self.state.node, family)

    def _judge_gpu(self, device: str, job: str, fault: str, answer: _Answer) -> None:
        """After a fault: who ends with it, and whether the GPU is given up."""
        here = [other for other in self.state.active if placement_of(other).device == device]
        node = self.state.node
        if device == CPU or device in self.state.drained:
            return
        gpus = sum(one.kind != CPU for one in node.devices)
        names = speaks_against(device, fault, self.state.jobs.values(), gpus)
        if names:
            drained = ev.DeviceDrained(
                at=answer.at, wall=answer.wall, device=device, fault=fault, jobs=names
            )
            self._decide(drained, answer)
            away = _taken_away(DRAINED, self.state.drained[device])
        elif node.device(device).sharing == "mps":
            away = _taken_away(COLLATERAL, f"{job} ended its MPS server: {fault}")
        else:
            return
        for other in here:
            self._stop(other, away, answer)

    def _requeue(
        self, job: Job, outcome: Outcome, delay: float, *, counted: bool, answer: _Answer
    ) -> None:
        requeued = ev.Requeued(
            at=answer.at, wall=answer.wall, job=job.id, outcome=outcome,
            not_before=answer.at + delay, counted=counted,
        )  # fmt: skip
        self._decide(requeued, answer)

    def _end(self, job: Job, outcome: Outcome, answer: _Answer) -> None:
        """End a job for good, and with it, unless it succeeded, all that waited for it."""
        self._decide(ev.Ended(at=answer.at, wall=answer.wall, job=job.id, outcome=outcome), answer)
        if outcome.state == StateName.SUCCEEDED:
            return
        self._end_those_behind(job, outcome, answer)
        began = self.state.began
        if began is not None and began.fail_fast and outcome.state != StateName.CANCELLED:
            self._fail_fast(job, answer)

    def _end_those_behind(self, job: Job, outcome: Outcome, answer: _Answer) -> None:
        """End the chain of jobs that wait for one that did not succeed, however long it is."""
        failed = deque([(job, outcome.state)])
        while failed:
            before, state = failed.popleft()
            why = _cancelled(DEPENDENCY_FAILED, f"{before.spec.name} ended {state}")
            for other in self.state.roster.behind(before.id):
                ended = ev.Ended(at=answer.at, wall=answer.wall, job=other.id, outcome=why)
                self._decide(ended, answer)
                failed.append((other, why.state))

    def _fail_fast(self, failed: Job, answer: _Answer) -> None:
        outcome = _cancelled("FailFast", f"{failed.spec.name} failed")
        for job in self.state.active:
            self._stop(job, outcome, answer)
        for job in self.state.pending:
            if isinstance(self.state.jobs[job.id].state, Pending):
                self._end(job, outcome, answer)

    def _cancel(self, id: str, answer: _Answer) -> None:  # noqa: A002
        job = self.state.jobs.get(id)
        if job is None:
            return
        match job.state:
            case Pending():
                self._end(job, CANCELLED, answer)
            case Active():
                self._stop(job, CANCELLED, answer)

    def _stop(
        self,
        job: Job,
        outcome: Outcome,
        answer: _Answer,
        *,
        force: bool = False,
    ) -> None:
        assert isinstance(job.state, Active)
        if job.state.stopping is not None and not force:
            return
        stopping = ev.Stopping(
            at=answer.at, wall=answer.wall, job=job.id, token=job.state.attempt.token,
            outcome=job.state.stopping or outcome, force=force,
        )  # fmt: skip
        self._decide(stopping, answer)

    def _enforce_times(self, answer: _Answer) -> None:
        """Timeouts that are over, and grace periods that were not enough."""
        for job in self._timed():
            deadline = self._deadline(job)
            if deadline is None or deadline > answer.at:
                continue
            assert isinstance(job.state, Active)
            if job.state.stopping is not None:
                self._stop(job, job.state.stopping, answer, force=True)
            else:
                limit = job.spec.timeout_seconds
                timeout = Outcome(
                    state=StateName.TIMEOUT, reason=f"over {limit:g} s", retryable=False
                )
                self._stop(job, timeout, answer)

    def _book_memory(self, job: Job, answer: _Answer) -> None:
        """Book the memory that a job was seen to need, as far as there is room."""
        assert isinstance(job.state, Active)
        held = job.state.attempt.placement
        booked = sum(placement_of(other).memory for other in self.state.active)
        room = self.state.node.memory - booked
        memory = min(job.estimate.memory, held.memory + max(0, room))
        if memory != held.memory:
            limit = raised_limit(job.spec, held, memory, self.state.node.memory)
            self._rebook(job, replace(held, memory=memory, memory_limit=limit), answer)
        if held.device != CPU:
            self._book_device_memory(self.state.jobs[job.id], answer)

    def _book_device_memory(self, job: Job, answer: _Answer) -> None:
        """Book what a job was seen to need on its GPU, as far as there is room: no other may."""
        held = placement_of(job)
        here = [placement_of(other) for other in self.state.active]
        booked = sum(one.device_memory for one in here if one.device == held.device)
        room = self.state.node.device(held.device).memory - booked
        memory = min(job.estimate.device_memory, held.device_memory + max(0, room))
        if memory > held.device_memory:
            self._rebook(job, replace(held, device_memory=memory), answer)

    def _rebook(self, job: Job, placement: Placement, answer: _Answer) -> None:
        assert isinstance(job.state, Active)
        rebooked = ev.Rebooked(
            at=answer.at, wall=answer.wall, job=job.id, token=job.state.attempt.token,
            placement=placement,
        )  # fmt: skip
        self._decide(rebooked, answer)

    # --- planning ---------------------------------------------------------------------------

    def _may_start(self) -> bool:
        return self.state.began is not None and self.state.interrupted == "no"

    def snapshot(self, now: float) -> Snapshot:
        """What a policy may know at that time."""
        state, roster = self.state, self.state.roster
        roster.ripen(now)
        return Snapshot(
            now=now,
            node=state.node,
            pending=Jobs(roster, lambda: self._open(roster.eligible())),
            active=Jobs(roster, lambda: roster.active),
            total_jobs=len(state.jobs),
            seed=state.began.seed if state.began else 0,
            jobs=MappingProxyType(state.jobs),
            memo=self._memo,
            correction=state.correction,
            companies=state.companies,
            changed=None if self._memo is None else frozenset(roster.changed),
            ledger=roster.ledger,
        )

    def _open(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """Those of which not every device is closed."""
        node = self.state.node
        if not self.state.roster.any_closed:
            return jobs
        return tuple(job for job in jobs if why_closed(job.spec, node) is None)

    def _end_the_hopeless(self, answer: _Answer) -> None:
        """End what can never start: its predecessor failed, or the machine is too small."""
        unchecked, self.state.roster.unchecked = self.state.roster.unchecked, {}
        for id in sorted(unchecked, key=self.state.roster.number):  # noqa: A001
            job = self.state.jobs[id]
            if not isinstance(job.state, Pending):
                continue
            failed = self._failed_predecessor(job)
            reason = self.state.roster.never_fits(job)
            if failed:
                self._end(job, _cancelled(DEPENDENCY_FAILED, failed), answer)
            elif self._is_stranded(job):
                texts = "; ".join(self.state.drained.values())
                self._end(job, _no_device_left(texts), answer)
            elif reason is not None:
                outcome = Outcome(
                    state=StateName.FAILED,
                    reason="NeverFits",
                    message=f"needs more than the whole machine: {reason}",
                    retryable=False,
                )
                self._end(job, outcome, answer)

    def _is_stranded(self, job: Job) -> bool:
        """Whether all devices that the job may use have been given up."""
        devices = eligible_devices(job.spec, self.state.node) if self.state.drained else ()
        return bool(devices) and all(device.id in self.state.drained for device in devices)

    def _failed_predecessor(self, job: Job) -> str:
        for id in job.spec.after:  # noqa: A001
            before = self.state.jobs.get(id)
            if before is None and self.state.queue_closed:
                return f"there is no job {id}"
            if before is not None and before.is_final and before.state.name != StateName.SUCCEEDED:
                return f"{before.spec.name} ended {before.state.name}"
        return ""

    def _plan(self, answer: _Answer) -> None:
        snapshot = self.snapshot(answer.at)
        roster = self.state.roster
        blocked = [job for job in roster.changed if job in roster.blocked]
        plan = self.policy.plan(snapshot)
        let_stranded_go_on(plan, all_of_them=not getattr(self.policy, "suspends", False))
        self._memo = plan.memo
        roster.changed.clear()
        for id, why in plan.suspended.items():  # noqa: A001
            self._suspend(self.state.jobs[id], why, answer)
        for id, placement in plan.rebooked.items():  # noqa: A001
            self._rebook(self.state.jobs[id], placement, answer)
        for id, placement in plan.continued.items():  # noqa: A001
            self._go_on(self.state.jobs[id], placement, answer)
        for id, placement in plan.starts.items():  # noqa: A001
            self._place(self.state.jobs[id], placement, answer)
        shut = roster.ready if self.state.roster.any_closed else ()
        self._say_why({*plan.waits, *blocked, *roster.due, *shut}, plan, answer)

    def _say_why(self, jobs: Iterable[str], plan: Plan, answer: _Answer) -> None:
        """Log the reasons that are news, in the order of submission."""
        news = []
        for id in jobs:  # noqa: A001
            job = self.state.jobs[id]
            if not isinstance(job.state, Pending):
                continue
            reason = self._why_not_yet(job, answer.at) or plan.waits.get(id)
            if reason is not None and _differs(job.state.reason, reason):
                news.append((self.state.roster.number(id), id, reason))
        for _, id, reason in sorted(news, key=lambda one: one[0]):  # noqa: A001
            waiting = ev.Waiting(at=answer.at, wall=answer.wall, job=id, reason=reason)
            self._decide(waiting, answer)

    def _suspend(self, job: Job, reason: Reason, answer: _Answer) -> None:
        assert isinstance(job.state, Active)
        suspended = ev.Suspended(
            at=answer.at, wall=answer.wall, job=job.id, token=job.state.attempt.token,
            reason=reason,
        )  # fmt: skip
        self._decide(suspended, answer)

    def _go_on(self, job: Job, placement: Placement, answer: _Answer) -> None:
        assert isinstance(job.state, Active)
        continued = ev.Continued(
            at=answer.at, wall=answer.wall, job=job.id, token=job.state.attempt.token,
            placement=placement,
        )  # fmt: skip
        self._decide(continued, answer)

    def _place(self, job: Job, placement: Placement, answer: _Answer) -> None:
        assert self.state.began is not None
        number = len(job.attempts) + 1
        memory = placement.memory
        limit = memory_limit(job.spec, job.estimate, memory, self.state.node.memory)
        placement = replace(placement, memory_limit=limit)
        placed = ev.Placed(
            at=answer.at, wall=answer.wall, job=job.id, attempt=number,
            token=f"{self.state.began.run}.{job.id}.{number}", placement=placement,
            profiling=self._is_to_profile(job),
        )  # fmt: skip
        self._decide(placed, answer)

    def _is_to_profile(self, job: Job) -> bool:
        known = job.profile is not None or bool(job.profiles)
        return not known and not self._family_is_profiling(job)

    def _family_is_profiling(self, job: Job) -> bool:
        return bool(job.spec.family) and any(
            other.state.name == StateName.PROFILING and other.spec.family == job.spec.family
            for other in self.state.active
        )

    def _why_not_yet(self, job: Job, now: float) -> Reason | None:
        """Why a pending job is not even looked at: a predecessor, or a back-off."""
        assert isinstance(job.state, Pending)
        for id in job.spec.after:  # noqa: A001
            before = self.state.jobs.get(id)
            if before is None or before.state.name != StateName.SUCCEEDED:
                name = before.spec.name if before else id
                return Reason("Dependency", detail=name)
        if job.state.not_before > now:
            return Reason("Backoff", job.state.not_before - now)
        return why_closed(job.spec, self.state.node) if self.state.roster.any_closed else None

    # --- the end, and the clock -------------------------------------------------------------

    def _finish_if_done(self, answer: _Answer) -> None:
        roster = self.state.roster
        if roster.any_active or self.state.finished is not None:
            return
        interrupted = self.state.interrupted != "no"
        done = self.state.queue_closed and not roster.any_pending
        if self.state.began is not None and (done or interrupted):
            left = interrupted and roster.any_pending
            self._decide(ev.Finished(at=answer.at, wall=answer.wall, interrupted=left), answer)

    def _timed(self) -> list[Job]:
        """Active jobs that have a deadline, in the order of submission."""
        roster = self.state.roster
        return [self.state.jobs[job] for job in sorted(roster.timed, key=roster.number)]

    def _deadline(self, job: Job) -> float | None:
        """When an active job's grace or timeout is over."""
        assert isinstance(job.state, Active)
        began = self.state.began
        if job.state.stopping is not None:
            return job.state.since + (began.grace_seconds if began else 0.0)
        if job.spec.timeout_seconds is not None and job.state.name != StateName.SUSPENDED:
            attempt = job.state.attempt
            return attempt.started_at + attempt.suspended_seconds + job.spec.timeout_seconds
        return None

    def _ask_for_wake(self, answer: _Answer) -> None:
        times = [t for job in self._timed() if (t := self._deadline(job)) is not None]
        for id in self.state.roster.due:  # noqa: A001
            state = self.state.jobs[id].state
            assert isinstance(state, Pending)
            times.append(state.not_before)
        upcoming = [t for t in times if t > answer.at]
        if not upcoming or self.state.finished is not None:
            return
        earliest = min(upcoming)
        if self._wake_at is None or earliest < self._wake_at:
            self._wake_at = earliest
            answer.actions.append(ev.Wake(at=earliest))

    def _decide(self, event: ev.Decided, answer: _Answer) -> None:
        self.state.apply(event)
        answer.actions.append(event)


def _is_surprise(state: RunState, event: ev.Measured) -> bool:
    """Whether a rate is off by more than is passed over."""
    rates = list(event.jobs.values())
    predicted = [rate.predicted for rate in rates if rate.predicted is not None]
    if len(rates) == 1 or len(predicted) != len(rates):
        return False
    said = state.correction.correct([kind_of(state.jobs[job]) for job in event.jobs], predicted)
    found = [rate.relative for rate in rates]
    return any(
        rate is not None and abs(rate / one - 1.0) > _RATE_CHANGE
        for rate, one in zip(found, said, strict=True)
    )


def _taken_away(reason: str, message: str) -> Outcome:
    return Outcome(state=StateName.PREEMPTED, reason=reason, message=message)


def _no_device_left(message: str) -> Outcome:
    return Outcome(state=StateName.FAILED, reason=DRAINED, message=message, retryable=False)


def _cancelled(reason: str, message: str) -> Outcome:
    return Outcome(state=StateName.CANCELLED, reason=reason, message=message, retryable=False)


def _with_attempts(job: Job, outcome: Outcome) -> Outcome:
    """The outcome of a job that ran out of memory for good, its message with what was tried."""
    if outcome.state != StateName.OUT_OF_MEMORY:
        return outcome
    assert isinstance(job.state, Active)
    attempts = [*job.attempts, replace(job.state.attempt, outcome=outcome)]
    return replace(outcome, message=f"{outcome.message}\n\n{attempts_table(attempts)}".strip())


def _is_free(outcome: Outcome) -> bool:
    """Whether an end was no failure of the job: out of memory, lost, or stopped by others."""
    return outcome.state in (StateName.OUT_OF_MEMORY, StateName.NODE_FAIL, StateName.PREEMPTED)


def _costs_nothing(job: Job, outcome: Outcome) -> bool:
    """Whether another attempt uses none of the job's tries: so it is a few times, if it is free."""
    if outcome.reason in (NEVER_STARTED, COLLATERAL, DRAINED):
        return True
    alike = [a for a in job.attempts[job.forgiven :] if _is_alike(a.outcome, outcome)]
    return _is_free(outcome) and len(alike) + 1 < FREE_ATTEMPTS


def _is_alike(before: Outcome | None, now: Outcome) -> bool:
    return before is not None and before.state == now.state and before.reason != NEVER_STARTED


def _backoff(job: Job, outcome: Outcome) -> float:
    if outcome.state in (StateName.NODE_FAIL, StateName.PREEMPTED):
        return 0.0
    before = [a.outcome for a in job.attempts[job.forgiven :] if a.outcome is not None]
    failures = sum(ended.state in _FAILURES for ended in before)
    delay: float = BACKOFF_SECONDS * 2 ** min(failures, 16)
    return min(BACKOFF_CAP_SECONDS, delay)


def _differs(old: Reason, new: Reason) -> bool:
    """Whether a reason is news: another word, or numbers that have moved."""
    if old.code != new.code or old.detail != new.detail:
        return True
    if new.code == "Backoff":
        return False
    pairs = ((old.need, new.need), (old.have, new.have))
    return any(_moved(before, now) for before, now in pairs)


def _moved(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > _REASON_CHANGE * max(abs(before), abs(now), 1e-9)


def exit_code(state: RunState) -> int:
    """130 if the run was interrupted, 1 if a job did not succeed, else 0."""
    if state.interrupted != "no":
        return 130
    ended = [job.state for job in state.jobs.values() if isinstance(job.state, Final)]
    return int(any(final.name != StateName.SUCCEEDED for final in ended))
