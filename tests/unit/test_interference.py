"""Predicted rates: one job is never slowed, and what is known in closed form comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer.interference import (
    Sharing,
    Station,
    busiest_station,
    host_sharing,
    predict_rates,
    solve,
    solve_one,
)
from rmixer.model import Node, Profile

TWO_CORES = host_sharing(Node(cores=(0, 1)))
ONE_GPU = Sharing(stations=(Station(name="gpu"),), overhead=0.0)


def uses(**demand: float) -> Profile:
    return Profile(demand=demand)


demands = st.builds(
    lambda cores, bandwidth, storage: uses(
        cores=cores, memory_bandwidth=bandwidth, storage=storage
    ),
    st.floats(0, 3),
    st.floats(0, 1),
    st.floats(0, 1),
)


@given(demands)
def test_alone_the_rate_is_one(profile: Profile) -> None:
    """Whatever a job uses, alone it runs as fast as alone; also with more threads than cores."""
    assert predict_rates([profile], TWO_CORES).tolist() == [1.0]


@given(st.lists(demands, min_size=1, max_size=6))
def test_rates_are_shares(profiles: list[Profile]) -> None:
    """Every rate is above 0 and at most 1."""
    rates = predict_rates(profiles, TWO_CORES)
    assert ((rates > 0) & (rates <= 1)).all()


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.1, 10)), min_size=1, max_size=5))
@settings(max_examples=200)
def test_with_one_resource_a_further_job_helps_nobody(jobs: list[tuple[float, float]]) -> None:
    """Adding a co-runner never raises another's rate."""
    profiles = [Profile(demand={"gpu": d}, granularity={"gpu": s}) for d, s in jobs]
    for count in range(1, len(profiles)):
        before = predict_rates(profiles[:count], ONE_GPU)
        after = predict_rates(profiles[: count + 1], ONE_GPU)[:count]
        assert (after <= before + 1e-4).all()


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.1, 10)), min_size=2, max_size=5))
@settings(max_examples=100)
def test_one_resource_solves_one_equation(jobs: list[tuple[float, float]]) -> None:
    """The fixed point satisfies the closed form of one station: Q from S = sum of Q s."""
    demand = np.array([[[d] for d, _ in jobs]])
    grain = np.array([[[s] for _, s in jobs]])
    rate = solve(demand, grain, ONE_GPU)[0]
    d, s = demand[0, :, 0], grain[0, :, 0]
    queue = rate / 1.0 * (1 / rate - (1 - d))  # Q = rate * R, and 1 / rate = 1 - D + R
    waiting = ((queue * s).sum() - queue * s) / s
    assert 1 / (1 - d + d * (1 + waiting)) == pytest.approx(rate, abs=2e-4)


def test_the_iteration_does_not_stop_where_rates_only_pass_by() -> None:
    """Two equal jobs of 0.959: old and new rate meet once on the way, far from the fixed point."""
    demand = 0.958984375
    found = solve(np.full((1, 2, 1), demand), np.ones((1, 2, 1)), ONE_GPU)[0]
    assert found == pytest.approx(solve_one([demand] * 2, [1.0] * 2, ONE_GPU.stations[0]), abs=1e-5)


def test_cores_are_enough_for_as_many_jobs() -> None:
    """Two jobs of 0.9 on two cores do not wait for each other; three do."""
    alone = host_sharing(Node(cores=(0, 1)), overhead=0.0)
    assert predict_rates([uses(cores=0.9)] * 2, alone) == pytest.approx([1.0, 1.0])
    assert predict_rates([uses(cores=1.0)] * 3, alone) == pytest.approx([2 / 3] * 3, abs=1e-3)


def test_two_threads_fill_two_cores() -> None:
    """Two jobs of two threads each halve each other."""
    alone = host_sharing(Node(cores=(0, 1)), overhead=0.0)
    assert predict_rates([uses(cores=2.0)] * 2, alone) == pytest.approx([0.5, 0.5], abs=1e-3)


def test_a_short_visitor_starves_behind_long_ones() -> None:
    """Of two that fill the station, the one with small grains keeps less (measured on a V100)."""
    small = Profile(demand={"gpu": 0.9}, granularity={"gpu": 1.0})
    large = Profile(demand={"gpu": 0.9}, granularity={"gpu": 4.0})
    kept_small, kept_large = predict_rates([small, large], ONE_GPU)
    assert kept_small < 0.5 < kept_large


def test_overhead_is_paid_per_co_runner() -> None:
    """Three jobs that share nothing pay e twice each."""
    sharing = Sharing(stations=ONE_GPU.stations, overhead=0.05)
    profiles = [Profile(demand={"gpu": 1e-9})] * 3
    assert predict_rates(profiles, sharing) == pytest.approx([1 / 1.1] * 3)


def test_many_sets_at_once_and_padding() -> None:
    """A batch gives what each set gives alone; rows of zeros change nothing."""
    rng = np.random.default_rng(0)
    demand = rng.uniform(0.1, 1, (5, 4, 3))
    demand[2, 2:] = 0.0
    ones = np.ones_like(demand)
    together = solve(demand, ones, TWO_CORES)
    for index in range(5):
        apart = solve(demand[index : index + 1], ones[:1], TWO_CORES)[0]
        assert together[index] == pytest.approx(apart, abs=1e-4)
    assert together[2, :2] == pytest.approx(
        solve(demand[2:3, :2], ones[:1, :2], TWO_CORES)[0], abs=1e-4
    )


def test_the_busiest_station_is_named() -> None:
    """The bottleneck of a set is the station with the highest utilisation."""
    name, share = busiest_station([uses(cores=0.5, storage=0.9)] * 2, TWO_CORES)
    assert name == "storage"
    assert 0.9 < share <= 1.0
    assert busiest_station([], TWO_CORES) == ("", 0.0)
