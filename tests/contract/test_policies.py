"""Every policy of the catalog keeps the contract; a new one is tested by being listed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer import catalog
from rmixer.model import Job, Placement, Profile
from rmixer.policies.base import Policy
from rmixer.resources import GIB
from rmixer.testing.policies import (
    check_is_pure,
    check_plan,
    check_starts_something,
    make_active,
    make_job,
    make_snapshot,
)

NAMES = list(catalog.table("policy"))

profiles = st.none() | st.builds(
    lambda cores, bandwidth, storage, threads: Profile(
        demand={"cores": cores, "memory_bandwidth": bandwidth, "storage": storage}, threads=threads
    ),
    st.floats(0.0, 2.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.integers(1, 2),
)
gpu_profiles = st.none() | st.builds(
    lambda compute, seconds, memory, on_cpu: (
        {kind: Profile(device_kind=kind, demand={"compute": compute}, solo_seconds=seconds)
         for kind in (["T4", "cpu"] if on_cpu else ["T4"])},
        memory * GIB,
    ),
    st.floats(0.0, 1.0),
    st.floats(1.0, 100.0),
    st.integers(0, 16),
    st.booleans(),
)  # fmt: skip
jobs = st.lists(
    st.builds(
        lambda profile, gpu, memory, threads, priority, device: {
            "profile": profile,
            "gpu": gpu,
            "memory": memory * GIB,
            "threads": threads,
            "priority": priority,
            "device": device,
        },
        profiles,
        gpu_profiles,
        st.integers(1, 8),
        st.sampled_from([None, None, 1, 2]),
        st.integers(-1, 1),
        st.sampled_from(["auto", "cpu", "gpu"]),
    ),
    max_size=7,
)


def _job(name: str, gpu: tuple[dict[str, Profile], int] | None, **keys: object) -> Job:
    """A job, with what is known of it on a GPU if there is anything."""
    job = make_job(name, **keys)
    if gpu is None:
        return job
    profiles, memory = gpu
    return replace(job, profiles=profiles, estimate=replace(job.estimate, device_memory=memory))


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return catalog.build_policy(request.param)


@pytest.mark.parametrize("name", NAMES)
@given(wanted=jobs, cores=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_any_snapshot(name: str, wanted: list[dict[str, object]], cores: int) -> None:
    """Nothing is overbooked, who waits has a reason, the plan is a function of the snapshot."""
    policy = catalog.build_policy(name)
    pending = [_job(f"j{i}", **keys) for i, keys in enumerate(wanted)]
    running = make_active(
        make_job("running", memory=2 * GIB, profile=Profile(demand={"cores": 0.3})),
        Placement(threads=1, cpu=1.0, cores=(0,), memory=2 * GIB),
    )
    for active in ([], [running]):
        snapshot = make_snapshot(pending, active, cores=cores)
        check_plan(snapshot, policy.plan(snapshot))
        check_is_pure(policy, snapshot)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"threads": 2},
        {"memory": 8 * GIB},
        {"device": "gpu"},
        {"device": "GPU-0"},
        {"profile": Profile(demand={"cores": 1.0})},
        {"profile": Profile(demand={"cores": 1.0, "memory_bandwidth": 1.0, "storage": 1.0})},
        {"profile": Profile(demand={"cores": 0.0})},
        {"profile": Profile(demand={})},
    ],
    ids=str,
)
def test_something_starts_on_an_empty_machine(policy: Policy, keys: dict[str, object]) -> None:
    """Whatever is believed of a job that fits, it starts when nothing else runs."""
    check_starts_something(policy, [make_job("a", **keys), make_job("b", **keys)])


def test_no_jobs(policy: Policy) -> None:
    """An empty queue gives an empty plan."""
    plan = policy.plan(make_snapshot([]))
    assert not plan.starts
    assert not plan.waits


def test_the_users_threads_are_kept(policy: Policy) -> None:
    """A job that asked for two threads gets two, from every policy."""
    plan = policy.plan(make_snapshot([make_job("a", threads=2)]))
    assert plan.starts["a"].threads == 2


def test_the_highest_priority_starts(policy: Policy) -> None:
    """Where not all can start, the one that waits does not have the highest priority."""
    pending = [make_job("low", memory=6 * GIB), make_job("high", memory=6 * GIB, priority=9)]
    plan = policy.plan(make_snapshot(pending))
    assert set(plan.starts) == {"high"}


def test_a_job_for_a_gpu_goes_to_the_gpu(policy: Policy) -> None:
    """The placement names the GPU and books its memory; one for the CPU never does."""
    plan = policy.plan(make_snapshot([make_job("g", device="gpu")]))
    assert plan.starts["g"].device == "GPU-0"
    assert plan.starts["g"].device_memory == 16 * GIB
    plan = policy.plan(make_snapshot([make_job("c", device="cpu")]))
    assert (plan.starts["c"].device, plan.starts["c"].device_memory) == ("cpu", 0)


def test_hundreds_of_jobs(policy: Policy) -> None:
    """With 500 pending jobs the plan is still whole."""
    pending = [
        make_job(f"j{i}", profile=Profile(demand={"cores": 0.1 + i % 7 / 7})) for i in range(500)
    ]
    snapshot = make_snapshot(pending, cores=16, memory=512 * GIB)
    check_plan(snapshot, policy.plan(snapshot))
