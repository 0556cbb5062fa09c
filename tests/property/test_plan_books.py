"""Whatever is asked of a plan, what it has booked is what it holds, and never more than there is."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer.errors import OverbookedError
from rmixer.model import Placement, Profile
from rmixer.policies.base import Plan
from rmixer.policies.complementary import Complementary
from rmixer.policies.ledger import core_share
from rmixer.resources import GIB
from rmixer.testing.policies import check_plan, make_active, make_job, make_snapshot

CORES = 3
placements = st.builds(
    lambda cpu, cores, memory, device, device_memory: Placement(
        cpu=cpu / 1000, cores=tuple(sorted(cores)), memory=memory * GIB,
        device=device, device_memory=device_memory * GIB,
    ),
    st.integers(0, 3500), st.sets(st.integers(0, CORES), max_size=CORES), st.integers(0, 9),
    st.sampled_from(["cpu", "GPU-0", "GPU-9"]), st.integers(0, 17),
)  # fmt: skip
asked = st.lists(st.tuples(st.integers(0, 4), placements), max_size=25)


@given(asked)
@settings(max_examples=120, deadline=None)
def test_no_sequence_of_requests_overbooks(requests: list[tuple[int, Placement]]) -> None:
    """Starts and rebookings in any order: refused ones change nothing, the sums stay within."""
    jobs = [make_job(f"j{i}") for i in range(5)]
    snapshot = make_snapshot(jobs, cores=CORES)
    plan = Plan(snapshot)
    held: dict[str, Placement] = {}
    for index, placement in requests:
        job = jobs[index]
        try:
            if job.id in held:
                plan.rebook(job, placement)
            else:
                plan.start(job, placement)
        except OverbookedError:
            pass
        else:
            held[job.id] = placement
        assert sum(p.cpu for p in held.values()) <= CORES + 1e-9
        assert sum(p.memory for p in held.values()) <= snapshot.node.memory
        assert sum(p.device_memory for p in held.values() if p.device == "GPU-0") <= 16 * GIB
        assert plan.free_memory == snapshot.node.memory - sum(p.memory for p in held.values())
        for core in snapshot.node.cores:
            assert sum(core_share(p) for p in held.values() if core in p.cores) <= 1 + 1e-9


@given(st.integers(1, 4), st.integers(0, 4000), st.lists(st.integers(0, 1000), min_size=4))
@settings(max_examples=80, deadline=None)
def test_picked_cores_have_room(threads: int, cpu: int, taken: list[int]) -> None:
    """Cores that are picked can be booked, and no fuller core with room was passed over."""
    plan = Plan(make_snapshot([], cores=4))
    for core, part in enumerate(taken[:4]):
        plan.start(make_job(f"t{core}"), Placement(cpu=part / 1000, cores=(core,)))
    cores = plan.pick_cores(threads, cpu / 1000)
    share = round(cpu / 1000 / threads, 3)
    fitting = [core for core, free in plan.free_cores.items() if free >= share]
    assert (len(cores) == threads) == (len(fitting) >= threads)
    if cores:
        left = [plan.free_cores[core] for core in fitting if core not in cores]
        assert min(left, default=1.0) >= max(plan.free_cores[core] for core in cores)
        placement = Placement(cpu=cpu / 1000, cores=cores)
        if placement.cpu <= plan.free_cpu:
            plan.start(make_job("x"), placement)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0, 3.5), st.floats(0, 1)), max_size=9),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_complementary_never_asks_for_what_is_not_there(
    jobs: list[tuple[int, float, float]], cores: int, seed: int
) -> None:
    """Started, seen to use something else, rebooked, again and again: every plan is whole."""
    random, policy = Random(seed), Complementary()
    pending = [
        make_job(f"j{i}", threads=min(threads, cores), profile=Profile(demand={"cores": used, "storage": s}))
        for i, (threads, used, s) in enumerate(jobs)
    ]  # fmt: skip
    active = []
    for _ in range(4):
        snapshot = make_snapshot(pending, active, cores=cores)
        plan = policy.plan(snapshot)
        check_plan(snapshot, plan)
        where = {job.id: job.state.attempt.placement for job in active}
        where |= plan.rebooked | plan.starts
        running = [job for job in [*active, *pending] if job.id in where]
        pending = [job for job in pending if job.id not in where]
        active = [
            make_active(
                make_job(job.id, profile=Profile(demand={"cores": random.uniform(0, 3)})),
                where[job.id],
            )
            for job in running
            if random.random() < 0.8
        ]
