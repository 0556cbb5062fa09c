"""The look-ahead's own simulation, and what it plans."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from rmixer.policies.lookahead import choose, remember
from rmixer.policies.outlook import Outlook, Place, Rule, Task, rates_of
from rmixer.resources import GIB
from rmixer.simulate.network import station_rates


def task(name: str, alone: float, demand: float, **keys: object) -> Task:
    values = {"seconds": (alone, alone), "memory": (GIB, GIB), **keys}
    return Task(id=name, uses=((demand, 1.0), (demand, 1.0)), **values)  # type: ignore[arg-type]


def outlook(tasks: list[Task], gpus: int = 2, **keys: float) -> Outlook:
    places = [Place(16 * GIB, math.inf) for _ in range(gpus)]
    return Outlook(tasks, places, cores=32, host_memory=math.inf, **keys)


def test_rates_are_those_of_the_network() -> None:
    """Newton in plain Python gives what it gives in numpy."""
    draw = Random(3)
    for count, most in ((1, 1.0), (2, 1.0), (7, 1.0), (40, 0.1), (40, 1.0)):
        uses = tuple((draw.uniform(0.02, most), draw.uniform(0.1, 9)) for _ in range(count))
        demand, grain = (np.array([column]) for column in zip(*uses, strict=True))
        assert rates_of(uses, 0.0) == pytest.approx(station_rates(demand, grain)[0], rel=1e-3)


def test_jobs_that_fill_a_gpu_are_balanced() -> None:
    """8, 7, 6, 5 and 4 s of full demand on two GPUs: 15 s, where the list in order takes more."""
    tasks = [task(f"j{n}", n, 1.0) for n in (4, 5, 6, 7, 8)]
    look = outlook(tasks, floor=0.0)
    plain = look.follow(Rule(tuple(range(5)), (1.0, 1.0)))
    _, course = choose(look, 0.0, None, budget=200, seed=0)
    assert course.makespan == pytest.approx(15.0, rel=0.01)
    assert plain.makespan > 16


def test_the_incumbent_is_kept_while_things_go_as_expected() -> None:
    """After the first end the rest of the plan is followed; its end does not move."""
    draw = Random(1)
    tasks = [task(f"j{i}", draw.uniform(5, 50), draw.uniform(0.1, 0.9)) for i in range(10)]
    rule, course = choose(outlook(tasks), 0.0, None, budget=100, seed=0)
    memo = remember(outlook(tasks), rule, course, 0.0)
    look = outlook(tasks)
    again, same = choose(look, 0.0, memo, budget=0, seed=0)
    assert (again, same.makespan, look.simulated) == (rule, course.makespan, 1)


def test_priorities_go_first_and_a_floor_is_kept() -> None:
    """Whatever the search finds, nobody of a lower priority stands before one of a higher."""
    tasks = [task(f"j{i}", 10 + i, 0.9, priority=i % 2) for i in range(8)]
    look = outlook(tasks, gpus=1, floor=0.4)
    rule, course = choose(look, 0.0, None, budget=150, seed=2)
    assert [tasks[i].priority for i in rule.order] == [1] * 4 + [0] * 4
    first = [i for i, _ in course.starts]
    assert min(look.rates(0, first)) >= 0.4
    assert len(first) < 8


def test_the_cpu_takes_what_ends_there_in_time() -> None:
    """A light job goes to the CPU beside a full GPU; one that would end last stays away."""
    gpu, cpu = Place(16 * GIB, math.inf), Place(math.inf, 2, is_cpu=True)
    heavy = [task(f"h{i}", 10, 1.0, seconds=(10, 60)) for i in range(4)]
    light = [task(f"l{i}", 10, 0.9, seconds=(10, 25)) for i in range(2)]
    look = Outlook([*heavy, *light], [gpu, cpu], cores=32, host_memory=math.inf, floor=0.0)
    _, course = choose(look, 0.0, None, budget=100, seed=0)
    assert {i for i, (_, device) in course.begins.items() if device == 1} == {4, 5}
    assert course.makespan == pytest.approx(40, rel=0.01)
