"""Drives a dispatcher with virtual events: what the runner does with real ones, without a clock."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.model import CPU, Node, Outcome, Progress, StateName
from rmixer.policies.base import Policy
from rmixer.policies.live import rates_of_company
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.base import Member, World
from rmixer.state import RunState

#: A job that does not fit into its device's memory is noticed after so long, as by its first steps.
OUT_OF_MEMORY_SECONDS = 5.0
#: Steps of a job per second alone where it is fastest, for what it tells of its progress.
STEPS_PER_SECOND = 1_000.0
#: A company is measured so long after it has come together, and again each time it has been there
#: for so many times longer.
MEASURE_SECONDS, MEASURED_AGAIN = 5.0, 4.0
#: Standard deviation of a measured rate, relative.
MEASURED_NOISE = 0.03
#: Nobody is measured where there are more jobs than this: it would be most of the time.
_MOST_MEASURED = 2_000
#: With so many jobs at work all tell their progress at every event, else those on the device where
#: something has changed.
_ALL_TELL = 64


class StuckError(RuntimeError):
    """Jobs wait, nothing runs and nothing will happen: a fault of the policy."""


@dataclass(slots=True)
class Span:
    """One attempt of a job as it ran; ``stood`` has the times in which it stood still."""

    job: str
    device: str
    start: float
    end: float = math.inf
    state: StateName = StateName.RUNNING
    stood: list[tuple[float, float]] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    """A running attempt: what is left of it, in seconds alone, at the rate of now.

    One on several devices has them whole; the law is asked about it on the first.
    """

    token: str
    member: Member
    device: str
    devices: tuple[str, ...]
    span: Span
    seconds: float
    steps: int
    left: float
    fails_at: float | None
    since: float
    rate: float = 1.0
    version: int = 0
    stands_since: float | None = None


@dataclass(slots=True)
class Result:
    """What happened: the final state, every attempt, and what was done on each device.

    Attributes:
        state: of the run at its end.
        spans: the attempts, in the order of their starts.
        solo_seconds: per device the work that was done there, in seconds alone.
        busy_seconds: per device the time in which at least one job was there.
        used_seconds: per device and station the time in which it was busy, by the declared demands.
    """

    state: RunState
    spans: list[Span] = field(default_factory=list)
    solo_seconds: dict[str, float] = field(default_factory=dict)
    busy_seconds: dict[str, float] = field(default_factory=dict)
    used_seconds: dict[str, dict[str, float]] = field(default_factory=dict)


#: When, in which order of those at the same time, and what happens then.
_Entry = tuple[float, int, Callable[[], Iterable[ev.Observed]]]


class Engine:
    """One simulated run.

    Args:
        jobs: `World.known` ones, with their arrivals.
        node: the machine.
        policy: decides.
        world: the truth.
        seed: of everything that is drawn.
        on_event: is told each event of the log.

    A policy that says of itself that it ``learns`` is told the rates that a runner would measure.
    """

    def __init__(
        self,
        jobs: Sequence[SimJob],
        node: Node,
        policy: Policy,
        world: World,
        *,
        seed: int = 0,
        on_event: Callable[[ev.Event], None] | None = None,
    ) -> None:
        self.node, self.world, self.seed = node, world, seed
        self.dispatcher = Dispatcher(policy)
        self._on_event = on_event or (lambda _event: None)
        self._jobs = sorted(jobs, key=lambda job: job.arrival)
        self._members = {job.id: world.member(job, seed) for job in jobs}
        self._believed = {job.id: world.believed(job, seed) for job in jobs}
        self._coupled = world.couples([*self._members.values()])
        self._now = 0.0
        self._heap: list[_Entry] = []
        self._order = itertools.count()
        self._works: dict[str, _Work] = {}
        self._devices = {device.id: device for device in node.devices}
        self._on = {device.id: list[_Work]() for device in node.devices}
        self._since = dict.fromkeys(self._on, 0.0)
        self._companies = dict.fromkeys(self._on, 0)  # how many there have been
        self._measures = getattr(policy, "learns", False) and len(jobs) <= _MOST_MEASURED
        self._result = Result(self.dispatcher.state)
        for device in node.devices:
            self._result.solo_seconds[device.id] = 0.0
            self._result.busy_seconds[device.id] = 0.0
            self._result.used_seconds[device.id] = {}

    def run(self) -> Result:
        """Simulate to the end.

        Raises:
            StuckError: jobs wait and nothing will ever happen.
        """
        self._feed(
            ev.Began(wall=0.0, run="simulated", name="simulated", node=self.node,
                     policy="", seed=self.seed)
        )  # fmt: skip
        for job in self._jobs:
            self._push(job.arrival, lambda job=job: [self._submitted(job)])  # type: ignore[misc]
        last = self._jobs[-1].arrival if self._jobs else 0.0
        self._push(last, lambda: [ev.QueueClosed(at=self._now, wall=self._now)])
        while self.dispatcher.state.finished is None:
            if not self._heap:
                waiting = [job.spec.name for job in self.dispatcher.state.pending]
                raise StuckError(f"{len(waiting)} jobs wait for ever, the first is {waiting[0]}")
            at, _, act = heapq.heappop(self._heap)
            self._now = max(self._now, at)
            for event in act():
                self._feed(event)
        return self._result

    # --- the dispatcher ---------------------------------------------------------------------

    def _push(self, at: float, act: Callable[[], Iterable[ev.Observed]]) -> None:
        heapq.heappush(self._heap, (at, next(self._order), act))

    def _feed(self, event: ev.Observed) -> None:
        queue: list[ev.Observed] = [event]
        while queue:
            news = queue.pop(0)
            self._on_event(news)
            for action in self.dispatcher.handle(news):
                if isinstance(action, ev.Wake):
                    self._push(max(action.at, self._now), self._woke)
                    continue
                self._on_event(action)
                queue += self._carry_out(action)

    def _submitted(self, job: SimJob) -> ev.Submitted:
        believed = self._believed[job.id]
        return ev.Submitted(
            at=self._now, wall=self._now, spec=believed.spec, estimate=believed.estimate,
            profile=believed.profiles.get(CPU), profiles=believed.profiles,
        )  # fmt: skip

    def _woke(self) -> list[ev.Observed]:
        self._tell([])
        return [ev.Woke(at=self._now, wall=self._now)]

    def _carry_out(self, action: ev.Decided) -> list[ev.Observed]:
        match action:
            case ev.Placed():
                return [self._start(action)]
            case ev.Suspended(token=token) if token in self._works:
                self._suspend(self._works[token])
            case ev.Continued(token=token) if token in self._works:
                self._go_on(self._works[token])
            case ev.Stopping(token=token, outcome=outcome) if token in self._works:
                return [self._end(self._works[token], outcome)]
        return []

    def _tell(self, devices: Iterable[str]) -> None:
        """Feed the progress of the jobs on these devices; of all where they are few."""
        everywhere = len(self._works) <= _ALL_TELL
        for device in list(self._on) if everywhere else devices:
            for work in [one for one in self._on[device] if one.device == device]:
                self._catch_up(work)
                done = int((1.0 - max(0.0, work.left) / work.seconds) * work.steps)
                progress = Progress(at=self._now, step=done, total_steps=work.steps)
                self._feed(
                    ev.Progressed(at=self._now, wall=self._now, job=work.member.id,
                                  token=work.token, progress=progress)
                )  # fmt: skip

    # --- the machine ------------------------------------------------------------------------

    def _start(self, placed: ev.Placed) -> ev.Observed:
        member, device = self._members[placed.job], placed.placement.device
        seconds = member.seconds(self._devices[device].kind)
        failing = placed.attempt <= len(member.fails)
        least = min(member.seconds(kind) for kind in member.profiles)
        span = Span(placed.job, device, self._now)
        work = _Work(
            token=placed.token, member=member, device=device, span=span, seconds=seconds,
            devices=placed.placement.devices,
            steps=max(1, round(least * STEPS_PER_SECOND)), left=seconds, since=self._now,
            fails_at=seconds * (1.0 - member.fails[placed.attempt - 1]) if failing else None,
        )  # fmt: skip
        self._result.spans.append(span)
        self._works[placed.token] = work
        for one in work.devices:
            if not self._on[one]:
                self._since[one] = self._now
            self._on[one].append(work)
        self._change(device)
        if self._overfull(device):
            soon = self._now + min(OUT_OF_MEMORY_SECONDS, 0.5 * seconds)
            self._push(soon, lambda: self._out_of_memory(placed.token))
        return ev.Spawned(at=self._now, wall=self._now, job=placed.job, token=placed.token, pid=1)

    def _overfull(self, device: str) -> bool:
        found = self._devices[device]
        peaks = sum(work.member.device_memory for work in self._on[device])
        return found.kind != CPU and peaks > found.memory

    def _out_of_memory(self, token: str) -> list[ev.Observed]:
        """The newest job gets no more, unless others have gone meanwhile."""
        work = self._works.get(token)
        if work is None or not self._overfull(work.device):
            return []
        others = sum(one.member.device_memory for one in self._on[work.device] if one is not work)
        outcome = Outcome(
            state=StateName.OUT_OF_MEMORY,
            reason="gpu",
            device_peak_bytes=max(0, self._devices[work.device].memory - others),
        )
        return self._leave(work, outcome)

    def _change(self, device: str) -> None:
        """The company on a device is another: bring its jobs up to now, give them new rates."""
        changed = [id for id in self._on if self._on[id]] if self._coupled else [device]  # noqa: A001
        for one in changed:
            for work in self._on[one]:
                self._catch_up(work)
        moving = {id: self._moving(id) for id in changed}  # noqa: A001
        crowds = {id: [work.member for work in works] for id, works in moving.items()}  # noqa: A001
        rates = self.world.law(self.node, crowds)
        for one in changed:
            for work, rate in zip(moving[one], rates[one], strict=True):
                work.rate = self.world.noisy(rate, work.member, crowds[one], self.seed)
                self._await_end(work)
            self._companies[one] += 1
            if self._measures and moving[one]:
                self._await_measurement(one, MEASURE_SECONDS)

    # --- what is measured -------------------------------------------------------------------

    def _await_measurement(self, device: str, seconds: float) -> None:
        """Measure the company that is there now in so many seconds, if it still is there."""
        count = self._companies[device]

        def measure() -> list[ev.Observed]:
            if self._companies[device] != count:
                return []
            self._await_measurement(device, seconds * (MEASURED_AGAIN - 1.0))
            return [self._measured(device, seconds)]

        self._push(self._now + seconds, measure)

    def _measured(self, device: str, seconds: float) -> ev.Measured:
        """What a runner would see of the jobs on a device: their steps, a little off."""
        paces = {}
        for work in self._moving(device):
            draw = Random(f"{self.seed}:{work.token}:{self._now}:measured")
            pace = work.rate * work.steps / work.seconds
            paces[work.member.id] = pace * max(0.1, draw.gauss(1.0, MEASURED_NOISE)), work.steps
        state = self.dispatcher.state
        jobs = rates_of_company(device, self.node, state.active, state.companies, paces)
        return ev.Measured(at=self._now, wall=self._now, device=device, jobs=jobs, seconds=seconds)

    def _moving(self, device: str) -> list[_Work]:
        """The jobs on a device that do not stand still."""
        return [w for w in self._on[device] if w.device == device and w.stands_since is None]

    def _suspend(self, work: _Work) -> None:
        """A job stands still, with its memory; its company is another."""
        self._catch_up(work)
        work.stands_since, work.rate = self._now, 0.0
        work.version += 1
        self._change(work.device)

    def _go_on(self, work: _Work) -> None:
        self._note_standing(work)
        self._change(work.device)

    def _note_standing(self, work: _Work) -> None:
        if work.stands_since is not None:
            work.span.stood.append((work.stands_since, self._now))
            work.stands_since, work.since = None, self._now

    def _catch_up(self, work: _Work) -> None:
        elapsed = self._now - work.since
        if elapsed <= 0 or work.stands_since is not None:
            return
        work.since = self._now
        work.left -= elapsed * work.rate
        for device in work.devices:
            self._count(work, device, elapsed * work.rate)

    def _count(self, work: _Work, device: str, seconds: float) -> None:
        """What a job has done on a device in so many seconds alone."""
        self._result.solo_seconds[device] += seconds
        used = self._result.used_seconds[device]
        kind = self._devices[device].kind
        for station, share in work.member.profiles[kind].demand.items():
            used[station] = used.get(station, 0.0) + seconds * share

    def _await_end(self, work: _Work) -> None:
        work.version += 1
        version, token = work.version, work.token
        left = work.left - (work.fails_at or 0.0)
        at = self._now + max(0.0, left) / work.rate
        self._push(at, lambda: self._arrive(token, version))

    def _arrive(self, token: str, version: int) -> list[ev.Observed]:
        work = self._works.get(token)
        if work is None or work.version != version:
            return []
        if work.fails_at is not None:
            return self._leave(work, Outcome(state=StateName.FAILED, reason="exit 1", exit_code=1))
        # A peak as it was estimated teaches nothing; told, it would be booked with another margin.
        peak = work.member.device_memory
        expected = self._believed[work.member.id].estimate.device_memory
        told = peak if peak != expected and self._devices[work.device].kind != CPU else 0
        return self._leave(work, Outcome(state=StateName.SUCCEEDED, device_peak_bytes=told))

    def _leave(self, work: _Work, outcome: Outcome) -> list[ev.Observed]:
        ended = self._end(work, outcome)
        self._tell([work.device])
        return [ended]

    def _end(self, work: _Work, outcome: Outcome) -> ev.Exited:
        self._catch_up(work)
        self._note_standing(work)
        del self._works[work.token]
        for device in work.devices:
            self._on[device].remove(work)
            if not self._on[device]:
                self._result.busy_seconds[device] += self._now - self._since[device]
        work.span.end, work.span.state = self._now, outcome.state
        self._change(work.device)
        return ev.Exited(
            at=self._now, wall=self._now, job=work.member.id, token=work.token, outcome=outcome
        )


def run_once(
    jobs: Sequence[SimJob], node: Node, policy: Policy, world: World, *, seed: int = 0, **more: Any
) -> Result:
    """Simulate one policy on jobs that are `World.known`."""
    return Engine(jobs, node, policy, world, seed=seed, **more).run()
