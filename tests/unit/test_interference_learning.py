"""Corrections from live rates, sharing modes, and the change of a regime."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer.errors import UsageError
from rmixer.interference import (
    Change,
    Correction,
    Follower,
    Pairs,
    Sharing,
    Sight,
    Station,
    fit_mode,
    one_gpu,
    solve,
    solve_one,
)

jobs = st.lists(st.tuples(st.floats(0.001, 1.5), st.floats(0.05, 20)), min_size=1, max_size=7)
stations = st.builds(
    lambda gamma, capacity: Station(name="gpu", gamma=gamma, capacity=capacity),
    st.floats(0, 1),
    st.floats(1, 4),
)


@given(jobs, stations, st.floats(0, 0.3))
@settings(max_examples=150, deadline=None)
def test_newton_finds_what_the_iteration_finds(
    numbers: list[tuple[float, float]], station: Station, overhead: float
) -> None:
    """One set at one station, whatever gamma, capacity and overhead: both solvers agree."""
    demand, grain = [d for d, _ in numbers], [s for _, s in numbers]
    scalar = solve_one(demand, grain, station, overhead)
    sharing = Sharing(stations=(station,), overhead=overhead)
    batched = solve(np.array(demand)[None, :, None], np.array(grain)[None, :, None], sharing)[0]
    assert scalar == pytest.approx(batched, rel=2e-4)
    assert all(0 < rate <= 1 for rate in scalar)


@given(jobs, stations)
@settings(max_examples=150, deadline=None)
def test_a_further_job_raises_no_rate(numbers: list[tuple[float, float]], station: Station) -> None:
    """At one station without overhead; and a job alone has rate 1 exactly, by both solvers."""
    demand, grain = [d for d, _ in numbers], [s for _, s in numbers]
    before = [1.0]
    for count in range(1, len(numbers) + 1):
        now = solve_one(demand[:count], grain[:count], station)
        assert all(b <= a + 1e-9 for a, b in zip(before, now, strict=False))
        before = now
    sharing = Sharing(stations=(station,), overhead=0.1)
    assert solve_one(demand[:1], grain[:1], station, 0.1) == [1.0]
    alone = solve(np.array([[[demand[0]]]]), np.array([[[grain[0]]]]), sharing)
    assert alone.tolist() == [[1.0]]


def test_jobs_of_no_demand_and_wrong_stations() -> None:
    """Who wants nothing is nobody's co-runner; several servers have no closed form."""
    station = Station(name="gpu")
    assert solve_one([0.8, 0.0], [1.0, 1.0], station, 0.1) == [1.0, 1.0]
    assert solve_one([], [], station) == []
    with pytest.raises(UsageError, match="2 servers"):
        solve_one([0.5], [1.0], Station(name="cores", servers=2))
    with pytest.raises(UsageError, match="1 demands, but 2"):
        solve_one([0.5], [1.0, 1.0], station)


# --- a sharing mode -------------------------------------------------------------------------------


def known_jobs() -> tuple[np.ndarray, np.ndarray, Pairs, Sharing]:
    """Ten jobs of known profiles, all pairs measured under a mode with 2 % noise."""
    rng = np.random.default_rng(3)
    demand, grain = rng.uniform(0.2, 0.95, (10, 1)), np.exp(rng.normal(0, 0.8, (10, 1)))
    mode = Sharing(stations=(Station(name="compute", capacity=1.6, gamma=0.35),), overhead=0.06)
    index = np.array([(a, b) for a in range(10) for b in range(a, 10)])
    rates = solve(demand[index], grain[index], mode) * np.exp(rng.normal(0, 0.02, index.shape))
    return demand, grain, Pairs(tuple("abcdefghij"), index, rates), mode


def test_a_mode_is_found_from_pairs_of_known_jobs() -> None:
    """Gamma, capacity and overhead come out, and the error of unseen pairs is that of the noise."""
    demand, grain, pairs, mode = known_jobs()
    found = fit_mode(pairs, demand, grain, one_gpu(1))
    (station,) = found.sharing.stations
    assert station.gamma == pytest.approx(0.35, abs=0.1)
    assert station.capacity == pytest.approx(1.6, abs=0.25)
    assert found.sharing.overhead == pytest.approx(mode.overhead, abs=0.025)
    assert found.error <= found.held_out < 0.025


def test_a_mode_needs_pairs_and_profiles() -> None:
    """What cannot be fitted is said; with few pairs there is no held-out error, not a made-up one."""
    demand, grain, pairs, _ = known_jobs()
    with pytest.raises(UsageError, match=r"shape \(10, 2\)"):
        fit_mode(pairs, demand, grain, one_gpu(2))
    with pytest.raises(UsageError, match="no pairs"):
        fit_mode(pairs.some(np.zeros(len(pairs), bool)), demand, grain, one_gpu(1))
    assert np.isnan(fit_mode(pairs.some(np.arange(6)), demand, grain, one_gpu(1)).held_out)


# --- correction -----------------------------------------------------------------------------------

TOLD = [0.9, 0.8]


def test_a_measured_set_is_known() -> None:
    """After one measurement most of the error is gone, after three nearly all; nobody is above 1."""
    belief = Correction()
    assert belief.correct(["a", "b"], TOLD).tolist() == TOLD
    wide = belief.deviation(["a", "b"])
    for most in (0.06, 0.03, 0.02):
        belief = belief.learn(["a", "b"], TOLD, [0.72, 0.84])
        assert np.abs(belief.correct(["a", "b"], TOLD) / [0.72, 0.84] - 1).max() < most
    assert (belief.deviation(["a", "b"]) < wide).all()
    assert belief.correct(["b", "a"], TOLD[::-1]) == pytest.approx(
        belief.correct(["a", "b"], TOLD)[::-1]
    )
    assert (
        belief.learn(["a", "b"], [0.99, 0.99], [1.3, 1.3]).correct(["a", "b"], [1, 1]) <= 1
    ).all()


def test_pairs_help_in_larger_sets_and_a_job_among_strangers() -> None:
    """A neighbour that hurts in a pair is expected to hurt in a triple; a stranger's is less so."""
    belief = Correction()
    for _ in range(5):
        belief = belief.learn(["victim", "bully"], [0.9, 0.9], [0.6, 0.9])
    third = belief.correct(["victim", "bully", "other"], [0.8, 0.8, 0.8])
    stranger = belief.correct(["victim", "other"], [0.8, 0.8])
    assert third[0] < stranger[0] < 0.8
    assert third[2] == stranger[1] == 0.8


def test_errors_are_kept_and_the_old_belief_stays() -> None:
    """It is a value; both errors are those of what was said before each measurement."""
    first = Correction()
    second = first.learn(["a", "b"], [0.9, 0.9], [0.6, np.nan])
    third = second.learn(["a", "b"], [0.9, 0.9], [0.6, np.nan])
    assert (first.errors.count, second.errors.count, third.errors.count) == (0, 1, 2)
    assert np.isnan(first.errors.of_prediction)
    assert second.errors.of_correction == second.errors.of_prediction == pytest.approx(0.5)
    assert third.errors.of_prediction == pytest.approx(0.5)
    assert third.errors.of_correction < 0.4
    assert not first.effects
    with pytest.raises(FrozenInstanceError):
        first.errors = third.errors  # type: ignore[misc]
    with pytest.raises(TypeError):
        third.effects["job", "a"] = third.effects["job", "a"]  # type: ignore[index]


def test_alone_nothing_is_learned_and_wrong_rates_are_refused() -> None:
    """A job alone defines its rate; zeros, infinities and missing predictions are no rates."""
    belief = Correction()
    assert belief.learn(["a"], [1.0], [0.5]) is belief
    assert belief.correct(["a"], [1.0]).tolist() == [1.0]
    for told, found in ((TOLD, [0.0, 1.0]), (TOLD, [np.inf, 1.0]), ([np.nan, 0.5], TOLD)):
        with pytest.raises(UsageError, match="above 0"):
            belief.learn(["a", "b"], told, found)
    with pytest.raises(UsageError, match="2 jobs need as many rates"):
        belief.correct(["a", "b"], [0.5])


def test_it_follows_what_drifts() -> None:
    """After many measurements a lasting change is still learned within ten."""
    belief = Correction()
    for _ in range(100):
        belief = belief.learn(["a", "b"], [0.9, 0.9], [0.9, 0.9])
    for _ in range(10):
        belief = belief.learn(["a", "b"], [0.9, 0.9], [0.7, 0.9])
    assert belief.correct(["a", "b"], [0.9, 0.9])[0] == pytest.approx(0.7, rel=0.06)


# --- regimes --------------------------------------------------------------------------------------


def follow(follower: Follower, sights: list[Sight]) -> tuple[Follower, list[Change]]:
    changes = []
    for sight in sights:
        follower, change = follower.see(sight)
        if change is not None:
            changes.append(change)
    return follower, changes


def steady(
    count: int, pace: float, *, begin: float = 0.0, done: int = 0, **what: object
) -> list[Sight]:
    """Sights twice a second of a job that makes so many steps a second, with 2 % jitter."""
    rng = np.random.default_rng(0)
    steps = done + np.cumsum(pace / 2 * np.exp(rng.normal(0, 0.02, count)))
    times = begin + 0.5 * np.arange(count)
    return [Sight(float(at), int(step), **what) for at, step in zip(times, steps, strict=True)]  # type: ignore[arg-type]


def test_a_steady_job_is_one_stretch() -> None:
    """Two minutes without an alarm, and its rate relative to alone comes out."""
    follower, changes = follow(Follower(), steady(240, 50.0))
    assert changes == []
    assert follower.stretch is not None
    assert follower.stretch.rate(solo_step_seconds=0.016) == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("phase", {"phase": "evaluating"}),
        ("epoch", {"epoch": 1}),
        ("neighbours", {"neighbours": frozenset({"b"})}),
    ],
)
def test_what_is_announced_ends_a_stretch(kind: str, what: dict[str, object]) -> None:
    """At once, with what was measured before it; what follows does not mix with it."""
    before = steady(40, 50.0)
    after = steady(40, 20.0, begin=20.0, done=before[-1].steps, **what)
    follower, changes = follow(Follower(), before + after)
    assert [change.kind for change in changes] == [kind]
    assert changes[0].at == 20.0
    assert changes[0].ended is not None
    assert changes[0].ended.steps_per_second == pytest.approx(50, rel=0.02)
    assert follower.stretch is not None
    assert follower.stretch.steps_per_second == pytest.approx(20, rel=0.03)


@pytest.mark.parametrize("pace", [38.0, 65.0, 0.0])
def test_a_break_in_the_pace_is_noticed(pace: float) -> None:
    """Slower, faster, or standing still: within 15 seconds, and the stretch before it is clean."""
    before = steady(60, 50.0)
    after = steady(60, pace, begin=30.0, done=before[-1].steps)
    _, changes = follow(Follower(), before + after)
    assert changes[0].kind == "pace"
    assert 30.0 <= changes[0].at <= 45.0
    assert changes[0].ended is not None
    assert changes[0].ended.steps_per_second == pytest.approx(50, rel=0.05)


def test_changes_too_quick_to_settle_measure_nothing() -> None:
    """A job whose neighbours come and go every half second has no stretch; no rate is made up."""
    sights = [
        replace(sight, neighbours=frozenset({str(at)})) for at, sight in enumerate(steady(20, 50.0))
    ]
    follower, changes = follow(Follower(), sights)
    assert len(changes) == 19
    assert all(change.ended is None for change in changes)
    assert follower.stretch is None
