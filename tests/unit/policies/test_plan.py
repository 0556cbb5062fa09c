"""A plan refuses an overbooking, whatever a policy asks for."""

from __future__ import annotations

import pytest

from rmixer.errors import OverbookedError
from rmixer.model import Placement
from rmixer.policies.base import Plan
from rmixer.resources import GIB
from rmixer.testing.policies import make_active, make_job, make_snapshot


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Placement(cpu=2.5), r"Cpu\(2.5>2 cores\)"),
        (Placement(memory=9 * GIB), r"HostMemory\(9.0 GiB>8.0 GiB\)"),
        (Placement(device="GPU-0", device_memory=17 * GIB), r"GpuMemory\(17.0 GiB>16.0 GiB\)"),
        (Placement(device="GPU-7"), r"DeviceDrained\(GPU-7\)"),
        (Placement(cpu=1.0, cores=(5,)), r"Cpu\(1>0 cores\)"),
    ],
    ids=["cores", "memory", "device memory", "no such device", "no such core"],
)
def test_refusals_have_numbers(placement: Placement, words: str) -> None:
    """The error names the job, what it needs and what there is; nothing is booked."""
    plan = Plan(make_snapshot([]))
    with pytest.raises(OverbookedError, match=words):
        plan.start(make_job("a"), placement)
    assert (plan.free_cpu, plan.free_memory) == (2.0, 8 * GIB)


def test_a_core_is_not_given_twice() -> None:
    """Two jobs of 0.6 fit on two cores, not on the same one."""
    plan = Plan(make_snapshot([]))
    plan.start(make_job("a"), Placement(cpu=0.6, cores=(0,)))
    with pytest.raises(OverbookedError, match="Cpu"):
        plan.start(make_job("b"), Placement(cpu=0.6, cores=(0,)))
    plan.start(make_job("b"), Placement(cpu=0.6, cores=(1,)))


def test_a_job_has_one_place() -> None:
    """Starting a job twice, or one that runs, is refused."""
    running = make_active(make_job("r"), Placement())
    plan = Plan(make_snapshot([], [running]))
    with pytest.raises(OverbookedError, match="a place already"):
        plan.start(make_job("r"), Placement())


def test_rebooking_counts_what_the_job_held() -> None:
    """A job may grow into what is free and into its own; a refused one keeps what it had."""
    running = make_active(make_job("r"), Placement(cpu=1.5, memory=GIB))
    plan = Plan(make_snapshot([], [running]))
    plan.rebook(running, Placement(cpu=2.0, memory=8 * GIB))
    assert (plan.free_cpu, plan.free_memory) == (0.0, 0)
    with pytest.raises(OverbookedError):
        plan.rebook(running, Placement(cpu=2.1))
    assert plan.free_cpu == 0.0
    with pytest.raises(OverbookedError, match="no place"):
        plan.rebook(make_job("x"), Placement())


def test_cores_are_picked_where_they_just_fit() -> None:
    """A part of a core goes to the fullest core with room, so that whole cores stay whole."""
    plan = Plan(make_snapshot([], cores=3))
    plan.start(make_job("a"), Placement(cpu=0.5, cores=(1,)))
    assert plan.pick_cores(1, 0.4) == (1,)
    assert plan.pick_cores(1, 0.6) == (0,)
    assert plan.pick_cores(2, 2.0) == (0, 2)
    assert plan.pick_cores(3, 3.0) == ()
