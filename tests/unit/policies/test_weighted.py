"""The weighted rule: many GPUs or many waiting jobs, and jobs of several GPUs."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.interference import Companies, company_key
from rmixer.model import Active, Device, Estimate, JobSpec, Node, Outcome, Profile, StateName
from rmixer.policies.candidates import compiled, sums_and_least
from rmixer.policies.complementary import Complementary
from rmixer.policies.fleet import Fleet
from rmixer.policies.outlook import rates_of
from rmixer.policies.pools import MOST_USES, Pool, Uses
from rmixer.policies.weighted import Kept
from rmixer.resources import GIB
from rmixer.simulate.engine import Engine
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.network import NetworkWorld


def node(gpus: int) -> Node:
    devices = (
        Device(id=f"GPU-{i}", kind="T", index=i, memory=16 * GIB, sharing="mps")
        for i in range(gpus)
    )
    return Node(cores=tuple(range(99)), memory=99 * GIB, devices=(Device(places=0), *devices))


def sim_job(
    name: str,
    *,
    seconds: float = 10.0,
    demand: float = 0.5,
    memory: float = 2,
    arrival: float = 0.0,
    **spec: object,
) -> SimJob:
    profile = Profile(device_kind="T", solo_seconds=seconds, demand={"compute": demand})
    return SimJob(
        spec=JobSpec(id=name, name=name, kind="command", **spec),  # type: ignore[arg-type]
        profiles={"T": profile},
        estimate=Estimate(memory=0, device_memory=int(memory * GIB)),
        arrival=arrival,
    )


def run(jobs: list[SimJob], gpus: int) -> dict[str, tuple[float, float]]:
    """When each job started and ended; no device is overbooked on the way."""
    engine = Engine(jobs, node(gpus), Complementary(), NetworkWorld())
    result = engine.run()
    assert all(job.state.name == StateName.SUCCEEDED for job in result.state.jobs.values())
    return {span.job: (span.start, span.end) for span in result.spans}


def test_the_compiled_core_and_numpy_solve_the_same_equation() -> None:
    """Both give the rates of the scalar solver, also for empty places and empty sets."""
    draw = np.random.default_rng(0)
    demand = draw.uniform(0.02, 1.0, (60, 6)) * (draw.random((60, 6)) < 0.7)
    grain = 2.0 ** draw.uniform(-2, 2, (60, 6))
    sums, least = sums_and_least(demand, grain, 0.02)
    for row in range(25):
        uses = [(d, s) for d, s in zip(demand[row], grain[row], strict=True) if d > 0]
        rates = rates_of(tuple(sorted(uses)), 0.02) if uses else ()
        assert sums[row] == pytest.approx(sum(rates), abs=1e-4)
        assert least[row] == pytest.approx(min(rates, default=1.0), abs=1e-4)
    fast = compiled()
    if fast is None:
        pytest.skip("numba is not installed")
    for one, other in zip((sums, least), fast(demand, grain, 0.02), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_uses_beyond_the_most_count_as_the_nearest() -> None:
    """However different jobs are, the table of uses stays small, and a pool keeps up with it."""
    uses, draw = Uses(), Random(0)
    pool = Pool([Device(id="G", kind="T", memory=1)], uses)
    for _ in range(3 * MOST_USES):
        number = uses.number((draw.random(), 2.0 ** draw.uniform(-3, 3)))
        assert number < MOST_USES
    assert len(uses.table) == MOST_USES
    pool.keep_up()
    assert pool.gain.shape == (1, MOST_USES)
    assert abs(uses.table[uses.number((0.505, 1.0))] - (0.505, 1.0)).max() < 0.2


def test_what_is_kept_is_what_would_be_counted_anew() -> None:
    """After any news the arrays of the fleet are those of one that is made from the state."""
    draw, core = Random(3), Dispatcher(Complementary())
    core.handle(ev.Began(wall=0.0, run="r", name="r", node=node(20), policy=""))
    for step in range(25):
        at = float(step)
        for _ in range(draw.choice([0, 0, 1, 1, 4, 30])):
            job = sim_job(
                f"{step}.{_}", seconds=draw.uniform(5, 90), demand=draw.uniform(0.05, 0.9),
                memory=draw.uniform(1, 12), gpus=draw.choice([None, None, None, 2]),
                device=draw.choice(["auto", "gpu", "GPU-7"]), priority=draw.choice([0, 0, 2]),
                retries=1,
            )  # fmt: skip
            spec = job.spec if job.spec.device != "GPU-7" else sim_job(job.id, device="GPU-7").spec
            core.handle(
                ev.Submitted(
                    at=at, wall=at, spec=spec, estimate=job.estimate, profiles=job.profiles
                )
            )
        running = [job for job in core.state.active if draw.random() < 0.2]
        for job in running:
            assert isinstance(job.state, Active)
            bad = Outcome(state=StateName.FAILED, reason="exit 1", exit_code=1)
            good = Outcome(state=StateName.SUCCEEDED)
            core.handle(
                ev.Exited(at=at, wall=at, job=job.id, token=job.state.attempt.token,
                          outcome=draw.choice([good, good, bad]))
            )  # fmt: skip
        core.handle(ev.Woke(at=at, wall=at))
        memo = core.snapshot(at).memo
        assert isinstance(memo, Kept)
        kept = memo.fleet
        kept.sync(core.snapshot(at), sorted(core.state.roster.changed))
        anew = Fleet(core.state.node, 1.05)
        anew.sync(core.snapshot(at), None)
        assert set(kept.waiting) == set(anew.waiting)
        assert set(kept.queue.rows) == set(anew.queue.rows)
        assert (set(kept.gangs), set(kept.named)) == (set(anew.gangs), set(anew.named))
        assert set(kept.running) == set(anew.running)
        for one, other in zip(kept.pools, anew.pools, strict=True):
            np.testing.assert_array_equal(one.free, other.free)
            np.testing.assert_array_equal(one.places, other.places)
            assert one.count.tolist() == [len(members) for members in one.state]
            for mine, theirs in zip(one.state, other.state, strict=True):
                same = [
                    Counter(tuple(fleet.uses.table[use]) for use in state)
                    for fleet, state in ((kept, mine), (anew, theirs))
                ]
                assert same[0] == same[1]
    assert core.state.active
    assert core.state.pending


def test_a_plan_does_not_depend_on_what_was_kept() -> None:
    """The same snapshot gives the same plan again, though the first has used up what was kept."""
    core = Dispatcher(Complementary())
    core.handle(ev.Began(wall=0.0, run="r", name="r", node=node(18), policy=""))
    for number in range(25):
        job = sim_job(f"{number}", demand=0.3 + 0.01 * number)
        core.handle(
            ev.Submitted(
                at=0.0, wall=0.0, spec=job.spec, estimate=job.estimate, profiles=job.profiles
            )
        )
    core.handle(ev.Woke(at=0.0, wall=0.0))
    first = core.state.active[0]
    assert isinstance(first.state, Active)
    gone = Outcome(state=StateName.SUCCEEDED)
    core.state.apply(ev.Ended(at=1.0, wall=1.0, job=first.id, outcome=gone))
    job = sim_job("new")
    core.state.apply(
        ev.Submitted(at=1.0, wall=1.0, spec=job.spec, estimate=job.estimate, profiles=job.profiles)
    )
    one, other = (core.policy.plan(core.snapshot(1.0)) for _ in range(2))
    assert one.starts == other.starts != {}


def test_a_job_of_several_gpus_has_them_whole() -> None:
    """It starts when so many are empty; nothing else runs on them meanwhile."""
    jobs = [sim_job("gang", gpus=2, seconds=100.0, demand=0.1)]
    jobs += [sim_job(f"one{i}", seconds=30.0, demand=0.1, arrival=1.0) for i in range(4)]
    spans = run(jobs, 3)
    assert spans["gang"] == (0.0, 100.0)
    assert all(start == 1.0 for name, (start, _) in spans.items() if name != "gang")
    late = [sim_job("gang", gpus=3, arrival=2.0)]
    spans = run([*late, sim_job("one", seconds=30.0), sim_job("other", seconds=9.0)], 3)
    assert spans["gang"][0] == 30.0


def test_a_stream_of_small_jobs_starves_nobody() -> None:
    """A job of several GPUs, and one that needs a whole one, start though others always wait."""
    stream = [
        sim_job(f"s{i}", seconds=50.0, demand=0.3, memory=5, arrival=float(i)) for i in range(300)
    ]
    gang = sim_job("gang", gpus=12, seconds=20.0, arrival=100.0)
    large = sim_job("large", seconds=20.0, memory=15, arrival=101.0)
    spans = run([*stream, gang, large], 17)
    waited = {name: spans[name][0] - 100.0 for name in ("gang", "large")}
    assert waited["gang"] < 100.0
    assert waited["large"] < 140.0
    assert max(start for start, _ in spans.values()) > 250.0


def test_hundreds_of_jobs_are_shared_out_well() -> None:
    """Without looking ahead the makespan of 300 jobs stays near the work that there is."""
    draw = Random(1)
    jobs = [
        sim_job(f"{i}", seconds=draw.uniform(20, 200), demand=draw.uniform(0.1, 0.6), memory=3)
        for i in range(300)
    ]
    work = sum(j.least_seconds * j.profiles["T"].demand["compute"] for j in jobs) / 17
    assert max(end for _, end in run(jobs, 17).values()) < 1.35 * work


def test_priorities_and_vetoes_hold() -> None:
    """A vetoed company is not put together, and who has a higher priority starts first."""
    jobs = [sim_job(f"{i}", demand=0.2, family="a") for i in range(130)]
    urgent = sim_job("urgent", demand=0.2, family="b", priority=1)
    core = Dispatcher(Complementary())
    key = company_key("T", ["a", "a"])
    core.state.companies = Companies(vetoed=frozenset([key]))
    core.handle(ev.Began(wall=0.0, run="r", name="r", node=node(1), policy=""))
    for job in (*jobs, urgent):
        core.handle(
            ev.Submitted(
                at=0.0, wall=0.0, spec=job.spec, estimate=job.estimate, profiles=job.profiles
            )
        )
    core.handle(ev.Woke(at=0.0, wall=0.0))
    there = [job.spec.family for job in core.state.active]
    assert "b" in there
    assert Counter(there) != Counter("aa")
