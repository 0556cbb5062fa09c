"""Companies that were measured: which are kept apart, and what a job seen alone changes."""

from __future__ import annotations

import pytest

from rmixer.interference import Companies, Pace, company_key

PAIR = company_key("gpu", ["b", "a"])


def paces(*rates: float) -> list[Pace]:
    """Of jobs that are believed to take 0.1 s a step alone."""
    return [Pace(f"{n}", rate * 10.0, 0.1) for n, rate in enumerate(rates)]


def test_a_company_is_vetoed_below_one_limit_and_freed_above_another() -> None:
    """Between them it stays as it was; another company, or another kind of device, is no matter."""
    known = Companies().with_company(PAIR, paces(0.5, 0.5))
    assert not known.vetoed
    known = known.with_company(PAIR, paces(0.45, 0.47))
    assert known.vetoed == {PAIR}
    assert known.with_company(company_key("other", ["a", "b"]), paces(0.9, 0.9)).vetoed == {PAIR}
    known = known.with_company(PAIR, paces(0.5, 0.51))
    assert known.vetoed == {PAIR}
    assert not known.with_company(PAIR, paces(0.5, 0.53)).vetoed


def test_a_job_seen_alone_corrects_what_was_measured_before() -> None:
    """Believed to take 0.1 s alone, in truth 0.12 s: the pair pays, and is freed at once."""
    known = Companies().with_company(PAIR, paces(0.45, 0.47))
    assert known.sum_of_rates(PAIR) == pytest.approx(0.92)
    known = known.with_alone("0", 0.12).with_alone("1", 0.12)
    assert known.sum_of_rates(PAIR) == pytest.approx(1.104)
    assert not known.vetoed
