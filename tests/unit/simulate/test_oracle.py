"""The exhaustive optimum of small cases."""

from __future__ import annotations

from random import Random

import pytest

from rmixer.model import Device, Estimate, JobSpec, Node, Profile
from rmixer.resources import GIB
from rmixer.simulate.compare import Comparison
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.oracle import Optimum, best_makespan
from rmixer.simulate.worlds.network import NetworkWorld


def node(gpus: int, sharing: str = "mps") -> Node:
    devices = tuple(
        Device(id=f"GPU-{i}", kind="V100", index=i, memory=16 * GIB, sharing=sharing)  # type: ignore[arg-type]
        for i in range(gpus)
    )
    return Node(cores=tuple(range(32)), memory=999 * GIB, devices=devices)


def job(name: str, seconds: float, compute: float, grain: float = 1.0, gib: float = 1.0) -> SimJob:
    profile = Profile(
        device_kind="V100",
        solo_seconds=seconds,
        demand={"compute": compute},
        granularity={"compute": grain},
    )
    return SimJob(
        spec=JobSpec(id=name, name=name, kind="command"),
        profiles={"V100": profile},
        estimate=Estimate(memory=0, device_memory=int(gib * GIB)),
    )


def optimum(jobs: list[SimJob], machine: Node, **keys: float) -> Optimum:
    world = NetworkWorld(**keys)
    return best_makespan(jobs, [world.member(one, 0) for one in jobs], machine, world)


def test_cases_that_are_known() -> None:
    """Jobs that exclude each other are the partition of numbers; harm is avoided by waiting."""
    numbers = [8, 7, 6, 5, 4]  # 15 and 15
    jobs = [job(f"j{n}", n, 1.0) for n in numbers]
    found = optimum(jobs, node(2, "exclusive"))
    assert (found.seconds, found.exact) == (pytest.approx(15), True)
    pair = [job("a", 10, 1.0), job("b", 10, 1.0)]
    assert optimum(pair, node(1), overhead=0.2).seconds == pytest.approx(20)  # together 24
    idle = [job("a", 10, 0.01), job("b", 10, 0.01)]
    assert optimum(idle, node(1)).seconds == pytest.approx(10, rel=0.01)


def test_no_policy_beats_it_and_it_does_not_beat_the_limit() -> None:
    """On random cases it lies between what is attainable and the best of many policies."""
    draw = Random(5)
    for _ in range(6):
        jobs = [
            job(f"j{i}", draw.uniform(10, 99), draw.uniform(0.05, 0.9), 2 ** draw.uniform(-2, 2),
                draw.uniform(1, 8))
            for i in range(5)
        ]  # fmt: skip
        here = Comparison(jobs, node(2), NetworkWorld())
        names = ["fifo", "shortest-first", "published-type", "lucid", "muri"]
        best = min(here.run(name).figures["makespan_seconds"] for name in names)
        found = best_makespan(here.jobs, here.members, here.node, here.world)
        assert found.exact
        assert here.attainable_seconds is not None
        assert here.attainable_seconds * 0.999 <= found.seconds <= best * 1.001
