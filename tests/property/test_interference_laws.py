"""Laws of the network model: the published closed form, padding, batches, order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rmixer.interference import (
    Sharing,
    Station,
    host_sharing,
    predict_rates,
    predict_with_each,
    solve,
)
from rmixer.model import Node, Profile

HOST = host_sharing(Node(cores=(0, 1)))
shares = st.floats(0.02, 1.0)
grains = st.floats(0.2, 5.0)
pairs = st.lists(st.tuples(shares, grains), min_size=1, max_size=6)


def closed_form(demand: list[float], grain: list[float], gamma: float) -> NDArray[np.float64]:
    """Rates of jobs at one station: bisection on S = sum of Q s^gamma, Q in closed form."""
    d, weight = np.array(demand), np.array(grain) ** gamma

    def queues(total: float) -> NDArray[np.float64]:
        a = total / weight
        b = 1 + d * (1 + a)
        return 2 * d * (1 + a) / (b + np.sqrt(b * b - 4 * d * d * (1 + a)))

    low, high = 0.0, float(weight.sum())
    for _ in range(200):
        middle = (low + high) / 2
        if (queues(middle) * weight).sum() > middle:
            low = middle
        else:
            high = middle
    queue = queues(low)
    return queue / (d * (1 + (low - queue * weight) / weight))  # Q = rate * R


@given(pairs, st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=80, deadline=None)
def test_one_station_is_one_scalar_equation(jobs: list[tuple[float, float]], gamma: float) -> None:
    """The iteration finds what Newton on the scalar equation finds, for any granularity."""
    demand, grain = [d for d, _ in jobs], [s for _, s in jobs]
    sharing = Sharing(stations=(Station(name="gpu", gamma=gamma),), overhead=0.0)
    found = solve(
        np.array(demand)[None, :, None], np.array(grain)[None, :, None], sharing
    )[0]  # fmt: skip
    assert found == pytest.approx(closed_form(demand, grain, gamma), abs=1e-3)


@given(st.lists(st.tuples(shares, shares, shares), min_size=1, max_size=5), st.randoms())
@settings(max_examples=80, deadline=None)
def test_the_order_of_jobs_does_not_matter(
    jobs: list[tuple[float, float, float]], random: object
) -> None:
    """Each job has its rate wherever it stands in the list."""
    names = ("cores", "memory_bandwidth", "storage")
    profiles = [Profile(demand=dict(zip(names, job, strict=True))) for job in jobs]
    order = list(range(len(jobs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    straight = predict_rates(profiles, HOST)
    shuffled = predict_rates([profiles[i] for i in order], HOST)
    assert shuffled == pytest.approx(straight[order], abs=1e-4)


@given(
    st.lists(st.tuples(shares, shares), max_size=4),
    st.lists(st.tuples(shares, shares), max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_candidates_at_once_are_as_one_by_one(
    running: list[tuple[float, float]], candidates: list[tuple[float, float]]
) -> None:
    """Each candidate beside the set has the rates that it has when asked for alone."""
    here = [Profile(demand={"cores": c, "storage": s}) for c, s in running]
    more = [Profile(demand={"cores": c, "storage": s}) for c, s in candidates]
    together = predict_with_each(here, more, HOST)
    assert together.shape == (len(more), len(here) + 1)
    for row, candidate in zip(together, more, strict=True):
        assert row == pytest.approx(predict_rates([*here, candidate], HOST), abs=1e-4)


@given(st.lists(st.tuples(shares, shares, grains), min_size=1, max_size=5), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_padding_has_no_effect(jobs: list[tuple[float, float, float]], rows: int) -> None:
    """Jobs of no demand slow nobody and do not count as co-runners."""
    demand = np.array([[[c, s, 0.0] for c, s, _ in jobs]])
    grain = np.array([[[g, g, g] for *_, g in jobs]])
    padded = np.concatenate([demand, np.zeros((1, rows, 3))], axis=1)
    grains_padded = np.concatenate([grain, np.ones((1, rows, 3))], axis=1)
    alone = solve(demand, grain, HOST)[0]
    assert solve(padded, grains_padded, HOST)[0, : len(jobs)] == pytest.approx(alone, abs=1e-5)


@given(st.integers(1, 8), st.integers(1, 8))
def test_cores_are_shared_evenly(jobs: int, cores: int) -> None:
    """n computing jobs on m > 1 cores run at min(1, m / n)."""
    sharing = host_sharing(Node(cores=tuple(range(cores))), overhead=0.0)
    rates = predict_rates([Profile(demand={"cores": 1.0})] * jobs, sharing)
    assert rates == pytest.approx([min(1.0, cores / jobs)] * jobs, abs=1e-3)
