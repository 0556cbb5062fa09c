"""The room above an estimate: its rank, its continuation, and that it covers what it promises."""

from __future__ import annotations

import random

import pytest

from rmixer.errors import UsageError
from rmixer.estimate.quantiles import UNKNOWN_FACTOR, known_errors, reserve, upper_factor


def test_the_rank_is_that_of_split_conformal_prediction() -> None:
    """ceil((n + 1)(1 - miss)) of n: with 99 errors and 10 % the 90th."""
    errors = [1 + i / 100 for i in range(99)]
    assert upper_factor(errors, 0.1) == pytest.approx(errors[89])


def test_few_errors_are_continued_beyond_the_largest() -> None:
    """The less is known the more room is left."""
    few, fewer = [0.98, 1.0, 1.01, 1.03] * 4, [0.98, 1.0, 1.01, 1.03]
    assert 1.03 < upper_factor(few) < upper_factor(fewer) < 1.3


def test_nothing_known_leaves_the_stated_room() -> None:
    """No error at all, and one alone."""
    assert upper_factor([]) == UNKNOWN_FACTOR
    assert upper_factor([0.9]) == UNKNOWN_FACTOR
    assert reserve(1000, "a source that nobody knows") == 1300


@pytest.mark.parametrize("count", [8, 20, 60, 200])
def test_it_covers_what_it_promises(count: int) -> None:
    """On 4000 draws at most 1 in 40 of the next ones is above, within what chance allows."""
    chance = random.Random(count)
    missed = 0
    for _ in range(4000):
        draws = [chance.lognormvariate(0, 0.05) for _ in range(count + 1)]
        missed += draws[-1] > upper_factor(draws[:-1])
    assert missed / 4000 <= 1 / 40 + 0.008


@pytest.mark.parametrize("bad", [[0.0], [-1.0], [float("nan")], [float("inf")]])
def test_an_error_must_be_a_positive_number(bad: list[float]) -> None:
    """A measured peak of nothing is no error to learn from."""
    with pytest.raises(UsageError, match="positive"):
        upper_factor(bad)


def test_a_miss_must_be_a_probability() -> None:
    """0 and 1 promise everything and nothing."""
    for miss in (0.0, 1.0, -0.1):
        with pytest.raises(UsageError, match="probability"):
            upper_factor([1.0], miss)


def test_the_published_errors_are_whole() -> None:
    """Every error that ships with the package is a positive number near one."""
    assert len(known_errors()["trace"]) >= 40
    for source, errors in known_errors().items():
        assert source
        assert all(0.5 < error < 2 for error in errors), source
