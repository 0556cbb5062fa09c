"""Whatever arrives, in whatever order: no capacity is broken, every job ends once, logs replay."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.model import (
    Active,
    Device,
    Estimate,
    JobSpec,
    Node,
    Outcome,
    Pending,
    Placement,
    Profile,
    Progress,
    Rate,
    StateName,
)
from rmixer.policies.base import Policy, placement_of
from rmixer.policies.baselines import AllAtOnce, Fixed, Sequential
from rmixer.policies.complementary import Complementary
from rmixer.policies.ledger import Ledger
from rmixer.policies.limits import HELD
from rmixer.policies.live import company_on
from rmixer.state import RunState

POLICIES: list[Policy] = [
    Sequential(),
    Fixed(k=2, threads=1),
    Fixed(k=3),
    AllAtOnce(),
    Complementary(),
    Complementary(floor=0.5, overhead=0.1),
]

nodes = st.builds(
    lambda cores, memory, gpus: Node(
        cores=tuple(range(cores)),
        memory=memory,
        devices=(
            Device(),
            *(Device(id=f"GPU-{i}", kind="T", index=i, memory=8) for i in range(gpus)),
        ),
    ),
    st.integers(1, 5),
    st.integers(50, 200),
    st.integers(0, 2),
)

specs = st.builds(
    lambda family, threads, memory, retries, timeout, priority, device: JobSpec(
        id="?",
        name="?",
        kind="command",
        family=family,
        threads=threads,
        memory=memory,
        retries=retries,
        timeout_seconds=timeout,
        priority=priority,
        device=device,
    ),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([None, None, 1, 2, 9]),
    st.sampled_from([None, 10, 40, 500]),
    st.integers(0, 2),
    st.sampled_from([None, 5.0]),
    st.integers(-1, 1),
    st.sampled_from(["auto", "auto", "cpu", "gpu"]),
)


class World:
    """Drives a dispatcher with random, sometimes contradictory, news; checks after each."""

    def __init__(self, policy: Policy, node: Node, jobs: list[JobSpec], random: Random) -> None:
        self.dispatcher = Dispatcher(policy)
        self.node = node
        self.random = random
        self.log: list[ev.Event] = []
        self.at = 0.0
        self.wake: float | None = None
        self.ended: Counter[str] = Counter()
        self.tokens: set[str] = set()
        self.send(ev.Began(wall=0.0, run="r", name="t", node=node, policy="p"))
        for spec in jobs:
            source = random.choice(["default", "measured", *HELD])
            estimate = Estimate(memory=spec.memory or 20, source=source)
            self.send(ev.Submitted(at=self.at, wall=self.at, spec=spec, estimate=estimate))
        self.send(ev.QueueClosed(at=self.at, wall=self.at))

    @property
    def state(self) -> RunState:
        return self.dispatcher.state

    def send(self, event: ev.Observed) -> None:
        before = {job.id: placement_of(job) for job in self.state.active}
        self.log.append(event)
        for action in self.dispatcher.handle(event):
            if isinstance(action, ev.Wake):
                self.wake = action.at
                continue
            self.log.append(action)
            if isinstance(action, ev.Placed):
                assert action.token not in self.tokens, "a token is never used twice"
                self.tokens.add(action.token)
                self.check_limit(action.placement)
            if isinstance(action, ev.Rebooked):
                self.check_rebooked(before, action)
            if isinstance(action, ev.Ended):
                self.ended[action.job] += 1
        self.check()

    def check_limit(self, placement: Placement) -> None:
        """No job is held to less than it was promised, or allowed more than the node has."""
        if placement.memory_limit:
            assert placement.memory <= placement.memory_limit <= self.node.memory

    def check_rebooked(self, before: dict[str, Placement], action: ev.Rebooked) -> None:
        """What a running job is held to is never tightened, taken away, or first set."""
        held = before.get(action.job)
        if held is not None and held.memory_limit:
            assert action.placement.memory_limit >= held.memory_limit
        elif held is not None:
            assert action.placement.memory_limit == 0

    def check(self) -> None:
        active = self.state.active
        assert sum(placement_of(job).memory for job in active) <= self.node.memory
        for device in self.node.devices:
            there = [placement_of(j) for j in active if placement_of(j).device == device.id]
            assert sum(p.device_memory for p in there) <= device.memory
        moving = [job for job in active if job.state.name != StateName.SUSPENDED]
        assert moving or not active, "somebody runs where anybody does"
        placements = [placement_of(job) for job in moving]
        assert sum(p.cpu for p in placements) <= len(self.node.cores) + 1e-6
        for core in self.node.cores:
            shares = [p.cpu / len(p.cores) for p in placements if core in p.cores]
            assert sum(shares) <= 1 + 1e-2
        self.check_roster()

    def check_roster(self) -> None:
        """What is kept from event to event is what counting it anew gives."""
        jobs, roster = self.state.jobs.values(), self.state.roster
        assert self.state.active == tuple(j for j in jobs if isinstance(j.state, Active))
        waiting = [job for job in jobs if isinstance(job.state, Pending)]
        assert self.state.pending == tuple(waiting)
        succeeded = {j.id for j in jobs if j.state.name == StateName.SUCCEEDED}
        free = {j.id for j in waiting if succeeded.issuperset(j.spec.after)}
        assert {*roster.ready, *roster.due} == free
        assert set(roster.blocked) == {j.id for j in waiting} - free
        fresh = Ledger(self.node, self.state.active)
        for key in ("free_memory", "free_device_memory", "free_places"):
            assert getattr(roster.ledger, key) == getattr(fresh, key)
        assert roster.ledger.free_cpu == pytest.approx(fresh.free_cpu, abs=1e-2)
        assert set(roster.ledger.pinned) == set(fresh.pinned)

    def step(self) -> None:
        """One piece of news: mostly something that can happen, now and then nonsense."""
        self.at += self.random.choice([0.0, 0.1, 3.0])
        active = self.state.active
        if active and self.random.random() < 0.8:
            self.about(self.random.choice(active))
        elif self.wake is not None:
            self.at = max(self.at, self.wake)
            self.wake = None
            self.send(ev.Woke(at=self.at, wall=self.at))
        else:
            job = self.random.choice([*self.state.jobs, "none"])
            stale = ev.Exited(
                at=self.at, wall=self.at, job=job, token="stale", outcome=outcome(self.random)
            )
            self.send(stale)

    def about(self, job: object) -> None:
        token = job.state.attempt.token
        where = {"at": self.at, "wall": self.at, "job": job.id, "token": token}
        roll = self.random.random()
        if roll < 0.5:
            self.send(ev.Exited(**where, outcome=outcome(self.random)))
        elif roll < 0.6:
            self.send(ev.Lost(**where, message="gone"))
        elif roll < 0.75:
            demand = {"cores": self.random.choice([0.1, 0.5, 1.0, 3.0]), "storage": 0.2}
            self.send(ev.Profiled(**where, profile=Profile(demand=demand, memory=15)))
        elif roll < 0.85:
            self.send(ev.MemoryGrew(**where, memory=self.random.choice([5, 60, 900])))
        elif roll < 0.92:
            self.measure(placement_of(job).device)
        elif roll < 0.95:
            self.send(ev.Progressed(**where, progress=Progress(at=self.at, step=1)))
        else:
            self.send(ev.CancelRequested(at=self.at, wall=self.at, job=job.id))

    def measure(self, device: str) -> None:
        """The rates of those that run there: well, or badly."""
        low, high = self.random.choice([(0.1, 0.4), (0.8, 1.0)])
        rates = {
            job.id: Rate(
                token=job.state.attempt.token, steps_per_second=self.random.uniform(low, high),
                step_seconds=1.0, predicted=0.7,
            )
            for job in company_on(device, self.state.active)
        }  # fmt: skip
        where = {"at": self.at, "wall": self.at, "device": device, "seconds": 3.0}
        self.send(ev.Measured(**where, jobs=rates))


def outcome(random: Random) -> Outcome:
    state = random.choice(
        [StateName.SUCCEEDED, StateName.SUCCEEDED, StateName.FAILED, StateName.OUT_OF_MEMORY]
    )
    return Outcome(state=state, memory_peak_bytes=random.choice([0, 30, 100]))


def named(jobs: list[JobSpec], random: Random) -> list[JobSpec]:
    result = []
    for index, spec in enumerate(jobs):
        earlier = [str(i) for i in range(index)]
        after = tuple(random.sample(earlier, k=min(len(earlier), random.choice([0, 0, 1]))))
        result.append(replace(spec, id=str(index), name=f"job{index}", after=after))
    return result


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name}")
@given(
    node=nodes,
    jobs=st.lists(specs, max_size=8),
    random=st.builds(Random, st.integers(0, 2**32)),
    interrupt_at=st.none() | st.integers(0, 20),
)
@settings(max_examples=150, deadline=None)
def test_any_order_of_news(
    policy: Policy, node: Node, jobs: list[JobSpec], random: Random, interrupt_at: int | None
) -> None:
    """Capacities hold after every event, each job ends exactly once, and the log replays."""
    world = World(policy, node, named(jobs, random), random)
    for step in range(400):
        if world.state.finished is not None:
            break
        if step == interrupt_at:
            world.send(ev.Interrupted(at=world.at, wall=world.at))
        else:
            world.step()
    assert world.state.finished is not None, "the run comes to an end"
    if interrupt_at is None or world.state.interrupted == "no":
        assert world.ended == Counter(dict.fromkeys(world.state.jobs, 1))
    assert max(world.ended.values(), default=1) == 1
    assert Dispatcher.replay(policy, world.log).state == world.state


@given(
    node=nodes, jobs=st.lists(specs, max_size=6), random=st.builds(Random, st.integers(0, 2**32))
)
@settings(max_examples=150, deadline=None)
def test_a_run_taken_over_goes_on_to_the_end(
    node: Node, jobs: list[JobSpec], random: Random
) -> None:
    """Cut anywhere, replayed and resumed, every job still ends exactly once."""
    world = World(Complementary(), node, named(jobs, random), random)
    for _ in range(random.randrange(12)):
        if world.state.finished is None:
            world.step()
    world.dispatcher = Dispatcher.replay(Complementary(), world.log)
    world.wake = None
    if world.state.finished is not None:
        return
    world.send(ev.Resumed(at=world.at, wall=world.at, node=node))
    for _ in range(400):
        if world.state.finished is not None:
            break
        world.step()
    assert world.state.finished is not None
    assert world.ended == Counter(dict.fromkeys(world.state.jobs, 1))


@given(
    node=nodes,
    jobs=st.lists(specs, min_size=1, max_size=6),
    random=st.builds(Random, st.integers(0, 2**32)),
)
@settings(max_examples=150, deadline=None)
def test_the_same_news_lead_to_the_same_decisions(
    node: Node, jobs: list[JobSpec], random: Random
) -> None:
    """The dispatcher is a function of its events: a second one told the same decides the same."""
    world = World(Complementary(), node, named(jobs, random), random)
    for _ in range(15):
        if world.state.finished is None:
            world.step()
    observed = [event for event in world.log if isinstance(event, ev.Observed)]
    again = Dispatcher(Complementary())
    decided = []
    for event in observed:
        decided += [a for a in again.handle(event) if not isinstance(a, ev.Wake)]
    assert decided == [event for event in world.log if isinstance(event, ev.Decided)]
