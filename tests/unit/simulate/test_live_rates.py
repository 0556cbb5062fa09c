"""Measured rates in a simulation: they reach the beliefs, and the log replays to the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmixer import catalog
from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.interference import company_key
from rmixer.model import Device, Estimate, JobSpec, Node, Profile, StateName
from rmixer.policies.complementary import Complementary
from rmixer.resources import GIB
from rmixer.simulate.engine import Engine, Result
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.base import World


def node(gpus: int = 1, **keys: object) -> Node:
    devices = [
        Device(id=f"G{i}", kind="gpu", index=i, memory=16 * GIB, **keys)  # type: ignore[arg-type]
        for i in range(gpus)
    ]
    return Node(cores=tuple(range(8)), memory=64 * GIB, devices=tuple(devices))


def sim_job(name: str, seconds: float, demand: float, grain: float = 1.0) -> SimJob:
    profile = Profile(
        device_kind="gpu", solo_seconds=seconds, demand={"compute": demand},
        granularity={"compute": grain}, source="declared",
    )  # fmt: skip
    family = name.partition("-")[0]
    return SimJob(
        spec=JobSpec(id=name, name=name, kind="command", family=family, device="gpu"),
        profiles={"gpu": profile},
        estimate=Estimate(memory=0, device_memory=GIB, source="hint"),
    )


def run(jobs: list[SimJob], world: World, machine: Node) -> tuple[Result, list[ev.Event]]:
    log: list[ev.Event] = []
    known = [world.known(job) for job in jobs]
    policy = Complementary(budget=20)
    found = Engine(known, machine, policy, world, seed=1, on_event=log.append).run()
    assert {job.state.name for job in found.state.jobs.values()} == {StateName.SUCCEEDED}
    return found, log


def test_measured_rates_correct_what_is_predicted() -> None:
    """Profiles are wrong by up to half: with each measurement the next is told better."""
    world = catalog.build_world("network:demand=0.5,granularity=0.5,overhead=0.05")
    jobs = [sim_job(f"{'abcd'[n % 4]}-{n}", 200, 0.3 + 0.2 * (n % 3), 1 + n % 2) for n in range(24)]
    found, log = run(jobs, world, node(2))
    errors = found.state.correction.errors
    assert errors.count > 30
    assert errors.of_correction < 0.75 * errors.of_prediction
    replayed = Dispatcher.replay(Complementary(), log).state
    assert replayed == found.state


def test_a_company_that_has_changed_teaches_nothing() -> None:
    """A measurement of jobs that are no longer all there is passed over."""
    world = catalog.build_world("network")
    _, log = run([sim_job("a", 60, 0.4), sim_job("b", 90, 0.4)], world, node())
    at = next(n for n, e in enumerate(log) if isinstance(e, ev.Measured) and len(e.jobs) == 2)
    core = Dispatcher.replay(Complementary(), log[: at + 1])
    key = company_key("gpu", ["a", "b"])
    assert key in core.state.companies.paces
    early = Dispatcher.replay(Complementary(), log[:at])
    measured = log[at]
    assert isinstance(measured, ev.Measured)
    early.handle(replace(measured, jobs={"a": measured.jobs["a"]}))
    assert key not in early.state.companies.paces
    assert not early.state.companies.alone, "one of two is not alone"


@pytest.mark.parametrize(("sharing", "most"), [("time-slicing", 1.03), ("mps", 1.1)])
def test_twins_that_harm_each_other_end_up_one_by_one(sharing: str, most: float) -> None:
    """Believed to be worth it, pairs sum to 0.92: one is tried, and the rest go one at a time.

    Under MPS those that are together stay so, and nothing is added to them.
    """
    wrong = "demand=0.3,duration=0.1,memory=0.15,noise=0.03"
    world = catalog.build_world(f"network:overhead={1 / 0.92 - 1},{wrong}")
    jobs = [sim_job(f"twin-{n}", 300, 1.0) for n in range(6)]
    found, log = run(jobs, world, node(sharing=sharing))
    assert found.state.at < most * 6 * 300
    assert company_key("gpu", ["twin", "twin"]) in found.state.companies.vetoed
    suspended = [event.job for event in log if isinstance(event, ev.Suspended)]
    assert len(suspended) == (sharing == "time-slicing")
    stood = [span.job for span in found.spans if span.stood]
    assert stood == suspended
