"""Rates of companies: when they are told, and what begins a new window."""

from __future__ import annotations

import pytest

from rmixer.launch.page import EVALUATING, STARTING, TRAINING
from rmixer.runner.rates import FIRST_SECONDS, SILENT_SECONDS, CompanyPace, RateMeter, Seen


class Clock:
    """Looks twice a second at jobs that make so many steps a second."""

    def __init__(self, **paces: float) -> None:
        self.meter, self.paces, self.at = RateMeter(), dict(paces), 0.0
        self.phase = dict.fromkeys(paces, TRAINING)
        self.steps = dict.fromkeys(paces, 0.0)

    def look(self, seconds: float) -> list[tuple[float, CompanyPace]]:
        told = []
        for _ in range(round(seconds * 2)):
            self.at += 0.5
            for token, pace in self.paces.items():
                self.steps[token] += 0.5 * pace * (self.phase[token] == TRAINING)
            seen = {
                token: Seen("cpu", self.phase[token], int(self.steps[token]), 900, self.at)
                for token in self.paces
            }
            told += [(self.at, one) for one in self.meter.see(self.at, seen)]
        return told


def test_a_company_is_told_of_at_growing_intervals() -> None:
    """Both rates at once, a device at a time, after the beginning has settled."""
    told = Clock(a=20, b=4).look(40)
    assert [round(one.seconds) for _, one in told] == [3, 6, 12]
    assert told[0][0] > FIRST_SECONDS
    for _, one in told:
        assert one.paces["a"][0] == pytest.approx(20, rel=0.1)
        assert one.paces["b"][0] == pytest.approx(4, rel=0.1)


def test_who_leaves_or_evaluates_begins_a_new_window() -> None:
    """What is told afterwards is of the new regime alone, not a mean of both."""
    clock = Clock(a=20, b=20)
    assert len(clock.look(6)) == 1
    clock.phase["b"] = EVALUATING
    clock.paces["a"] = 35
    assert clock.look(20) == [], "nobody is measured beside a job that evaluates"
    clock.phase["b"] = TRAINING
    clock.paces["a"] = 20
    clock.look(3)
    del clock.paces["b"]
    clock.paces["a"] = 40
    alone = clock.look(6)
    assert [set(one.paces) for _, one in alone] == [{"a"}]
    assert alone[0][1].paces["a"][0] == pytest.approx(40, rel=0.05)


def test_a_break_in_the_step_times_begins_a_new_window() -> None:
    """A job that suddenly takes half as long again: nothing is told that has both in it."""
    clock = Clock(a=20)
    clock.look(50)
    clock.paces["a"] = 13
    told = [one.paces["a"][0] for _, one in clock.look(60)]
    assert len(told) >= 3
    assert told == pytest.approx([13] * len(told), rel=0.05)


def test_a_job_without_steps_does_not_keep_its_neighbour_from_being_measured() -> None:
    """Once it is clear that it will show none."""
    clock = Clock(a=20, b=0)
    clock.phase["b"] = STARTING
    told = clock.look(SILENT_SECONDS + 8)
    assert told[0][0] > SILENT_SECONDS
    assert told[0][1].paces["b"] == (None, 900)
    assert told[0][1].paces["a"][0] == pytest.approx(20, rel=0.05)
