"""A company that was measured to do harm is taken apart, and nobody is left standing."""

from __future__ import annotations

from typing import Any

import pytest
from driving import OK, Driver, job, kinds

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.model import Device, Estimate, Node, Rate, StateName
from rmixer.policies.baselines import AllAtOnce
from rmixer.policies.complementary import Complementary

RUNNING, SUSPENDED = StateName.RUNNING, StateName.SUSPENDED


class Pair(Driver):
    """Jobs a, b and c, a core each of two, of which a and b run; then they are measured."""

    def __init__(self, *, memory: int = 20, device: str = "cpu", **keys: Any) -> None:
        self.log: list[ev.Event] = []
        jobs = [job(name, threads=1, device=device, **keys) for name in "abc"]
        node = Node(cores=(0, 1), memory=memory)
        if device == "gpu":
            gpu = Device(id="G", kind="gpu", index=0, memory=20, sharing="mps")
            node = Node(cores=(0, 1), memory=100, devices=(Device(), gpu))
        sizes = Estimate(memory=10, device_memory=10, source="hint")
        super().__init__(
            *jobs, policy=Complementary(), node=node, estimates=dict.fromkeys("abc", sizes)
        )
        assert [placed.job for placed in kinds(self.said, ev.Placed)] == ["a", "b"]

    def tell(self, event: Any) -> list[ev.Action]:
        actions = super().tell(event)
        self.log += [event, *(a for a in actions if not isinstance(a, ev.Wake))]
        return actions

    def measure(self, *rates: float, device: str = "cpu") -> list[ev.Action]:
        self.at += 5.0
        there = [j for j in self.core.state.active if j.state.name != SUSPENDED]
        told = {
            j.id: Rate(
                token=j.state.attempt.token, steps_per_second=10 * rate, step_seconds=0.1,
                predicted=0.6,
            )
            for j, rate in zip(there, rates, strict=True)
        }  # fmt: skip
        return self.tell(self.make(ev.Measured, device=device, jobs=told, seconds=5.0))


def test_the_newest_of_a_harmful_pair_stands_still_until_the_other_has_ended() -> None:
    """Its cores are free meanwhile, its memory is not; then it goes on, and is not met again."""
    pair = Pair()
    (order,) = kinds(pair.measure(0.45, 0.45), ev.Suspended)
    assert (order.job, str(order.reason)) == ("b", "Interference(sum of rates 0.90<0.98)")
    assert pair.states() == {
        "a": StateName.PROFILING, "b": SUSPENDED, "c": StateName.PENDING
    }  # fmt: skip
    assert pair.reason("c") == "HostMemory(10 B>0 B)"
    actions = pair.ends("a", OK, after=60.0)
    assert [order.job for order in kinds(actions, ev.Continued)] == ["b"]
    assert pair.states()["b"] == RUNNING
    ended = pair.core.state.jobs["b"].state.attempt  # type: ignore[union-attr]
    assert ended.suspended_seconds == 60.0
    assert Dispatcher.replay(Complementary(), pair.log).state == pair.core.state


def test_a_pair_that_pays_is_left_alone() -> None:
    """Also one that is worth nothing either way."""
    pair = Pair()
    assert not kinds(pair.measure(0.49, 0.5), ev.Suspended)
    assert not kinds(pair.measure(0.8, 0.8), ev.Suspended)


def test_a_vetoed_kind_of_company_is_not_put_together_again() -> None:
    """Of two families: after a and b did harm, c of b's family does not join a's, but waits."""
    pair = Pair(memory=30, family="x")
    assert len(kinds(pair.said, ev.Placed)) == 2, "no core is left for the third"
    pair.measure(0.45, 0.45)
    assert pair.states()["c"] == StateName.PENDING
    assert pair.reason("c") == "Interference(sum of rates 0.90<0.98)"
    pair.ends("a", OK, after=1.0)
    assert pair.states()["c"] == StateName.PENDING
    pair.ends("b", OK, after=1.0)
    assert pair.states()["c"] in (RUNNING, StateName.PROFILING)


def test_timeouts_do_not_run_while_a_job_stands_still() -> None:
    """30 s of its own: stopped after 30 s in which it ran, and not before."""
    pair = Pair(timeout_seconds=30.0)
    pair.measure(0.45, 0.45)  # b has run for 5 s
    pair.ends("a", OK, after=20.0)
    pair.at = 45.0
    assert not kinds(pair.tell(pair.make(ev.Woke)), ev.Stopping)
    pair.at = 51.0
    assert [s.job for s in kinds(pair.tell(pair.make(ev.Woke)), ev.Stopping)] == ["b"]


def test_who_stands_still_can_be_cancelled_and_interrupted() -> None:
    """It is stopped like any other, and its time still is told."""
    pair = Pair()
    pair.measure(0.45, 0.45)
    pair.at += 10
    assert kinds(pair.tell(pair.make(ev.CancelRequested, job="b")), ev.Stopping)
    pair.ends("b", OK)
    assert pair.core.state.jobs["b"].attempts[0].suspended_seconds == 10.0


@pytest.mark.parametrize("policy", [Complementary(), AllAtOnce()])
def test_a_run_that_is_taken_over_lets_nobody_stand_for_ever(policy: Any) -> None:
    """Replayed, b stands still; the policy goes on with it, one that knows of none lets it go on."""
    pair = Pair()
    pair.measure(0.45, 0.45)
    core = Dispatcher.replay(policy, pair.log)
    assert core.state.jobs["b"].state.name == SUSPENDED
    actions = core.handle(ev.Resumed(at=60.0, wall=60.0, node=core.state.node))
    actions += core.handle(ev.Woke(at=60.0, wall=60.0))
    if isinstance(policy, AllAtOnce):
        assert [order.job for order in kinds(actions, ev.Continued)] == ["b"]
        return
    assert core.state.jobs["b"].state.name == SUSPENDED
    token = core.state.jobs["a"].state.attempt.token  # type: ignore[union-attr]
    actions = core.handle(ev.Exited(at=61.0, wall=61.0, job="a", token=token, outcome=OK))
    assert [order.job for order in kinds(actions, ev.Continued)] == ["b"]


def test_under_mps_a_harmful_company_is_not_refilled() -> None:
    """Nobody stands still there; what waits starts when the company has shrunk."""
    pair = Pair(device="gpu")
    assert not kinds(pair.measure(0.45, 0.45, device="G"), ev.Suspended)
    pair.ends("a", OK, after=1.0)
    assert pair.states()["c"] == RUNNING or pair.states()["c"] == StateName.PROFILING
