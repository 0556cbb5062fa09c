"""Fitting to pairs: what made the pairs is found again, and unseen ones are predicted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmixer.errors import UsageError
from rmixer.interference import (
    Fit,
    Pairs,
    Sized,
    fit_pairs,
    from_siblings,
    one_gpu,
    relative_error,
    solve,
)
from rmixer.interference.fit import _Problem

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "interference.json"
MODELS = [Sized(model, size) for model in ("a", "b") for size in (64, 128, 256, 512)]


def truth() -> Fit:
    """Eight jobs on one station: demand and granularity grow with the batch size."""
    size = np.log2([job.batch_size for job in MODELS])
    other = np.array([job.model == "b" for job in MODELS])
    odds = 0.35 * (size - 7) - 0.8 * other
    grain = np.exp(0.4 * (size - 7) + 0.5 * other)
    sharing = replace(one_gpu(1), overhead=0.03)
    return Fit(1 / (1 + np.exp(-odds))[:, None], grain[:, None], sharing)


def pairs_of(fit: Fit, noise: float = 0.0) -> Pairs:
    """All pairs, as they would be measured."""
    index = np.array([(a, b) for a in range(len(MODELS)) for b in range(a, len(MODELS))])
    spread = np.random.default_rng(0).normal(0, noise, index.shape)
    names = tuple(f"{job.model} {job.batch_size}" for job in MODELS)
    return Pairs(names, index, fit.rates(index) * np.exp(spread))


def test_unseen_pairs_are_predicted_from_noisy_ones() -> None:
    """Half of the pairs with 3 % noise: the others come out within little more than that."""
    made = truth()
    seen, rest = pairs_of(made, noise=0.03).halves(seed=1)
    fit = fit_pairs(seen, one_gpu(1), folds=6)
    true_rates = pairs_of(made).rates
    assert relative_error(fit.rates(pairs_of(made).index), true_rates) < 0.03
    assert fit.error_on(rest) < 0.045
    assert fit.error == fit.error_on(seen)
    assert fit.error < fit.held_out < 0.06


def test_larger_sets_follow_from_what_pairs_told() -> None:
    """Fitted to pairs alone, mixes of four are predicted too."""
    made = truth()
    fit = fit_pairs(pairs_of(made), one_gpu(1))
    mixes = np.array([[0, 1, 4, 7], [2, 2, 5, 6], [3, 3, 3, 3]])
    assert relative_error(fit.rates(mixes), made.rates(mixes)) < 0.02


def test_a_job_that_is_in_no_pair_is_read_off_its_siblings() -> None:
    """Its numbers in the fit are not used; a model without another size cannot be read."""
    made = truth()
    pairs = pairs_of(made)
    for job in (0, 2, 7):
        known = fit_pairs(pairs.some(~pairs.with_job(job)), one_gpu(1))
        asked = pairs.some(pairs.with_job(job))
        assert from_siblings(known, MODELS, job).error_on(asked) < 0.05
    with pytest.raises(UsageError, match="no other job is of model 'c'"):
        from_siblings(made, [*MODELS[:-1], Sized("c", 8)], len(MODELS) - 1)


def test_derivatives_are_those_of_the_rates() -> None:
    """The pair-by-pair derivatives give what moving one number at a time gives."""
    problem = _Problem(pairs_of(truth(), noise=0.1), one_gpu(2), overhead=True)
    theta = problem.start + np.random.default_rng(1).normal(0, 0.3, len(problem.start))
    matrix, base = problem.jacobian(theta), problem.residuals(theta)
    for column in (0, 5, 17, 31, len(theta) - 1):
        moved = theta.copy()
        moved[column] += 1e-4
        slope = (problem.residuals(moved) - base) / 1e-4
        np.testing.assert_allclose(matrix[:, column], slope, atol=2e-2)


def test_what_is_no_measurement_is_refused() -> None:
    """No pairs, rates of 0, shapes that do not fit: said before anything is computed."""
    made = pairs_of(truth())
    with pytest.raises(UsageError, match="no pairs"):
        fit_pairs(made.some(np.zeros(len(made), bool)))
    with pytest.raises(UsageError, match="2 to 2 parts, not 3"):
        fit_pairs(made.some(np.arange(2)), folds=3)
    with pytest.raises(UsageError, match="above 0"):
        Pairs(made.jobs, made.index, np.zeros_like(made.rates))
    with pytest.raises(UsageError, match="two jobs"):
        Pairs(made.jobs, made.index[:, :1], made.rates[:, :1])
    with pytest.raises(UsageError, match="1 to 3"):
        one_gpu(4)


def test_the_goals_hold_for_the_published_tables() -> None:
    """benchmarks/interference.py on the measurements of others: what it found is kept, and held."""
    document = json.loads(RESULTS.read_text())
    assert document["missed"] == []
    for gpu, goal in (("v100", 0.067), ("p100", 0.075), ("k80", 0.039)):
        found = document["gavel"][gpu]["unseen"]
        assert np.mean(found["two stations"]["single"]) <= goal
        assert np.mean(found["one station"]["single"]) <= goal
    assert document["gavel"]["v100"]["left_out"]["two stations"]["mean"] <= 0.08
    assert document["lucid"]["network"]["single"] <= 0.081
    assert document["lucid"]["network"]["sum"] <= 0.060


def test_alone_and_padded_a_job_is_not_slowed() -> None:
    """A set that is padded with jobs that want nothing has the rates of the jobs that are there."""
    made = truth()
    alone = solve(made.demand[[[0]]], made.granularity[[[0]]], made.sharing)
    assert alone[0, 0] == 1.0
