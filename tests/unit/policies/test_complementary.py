"""Who runs beside whom, scenario by scenario."""

from __future__ import annotations

from typing import Any

import pytest

from rmixer import interference
from rmixer.interference import solve
from rmixer.model import CPU, Job, Placement, Profile
from rmixer.policies.complementary import Complementary, booking
from rmixer.policies.traits import seconds_on
from rmixer.resources import GIB
from rmixer.testing.policies import make_active, make_job, make_snapshot


def uses(cores: float, **more: float) -> Profile:
    return Profile(demand={"cores": cores, **more})


def running(name: str, cores: tuple[int, ...], cpu: float, profile: Profile) -> Job:
    placement = Placement(threads=1, cpu=cpu, cores=cores, memory=GIB)
    return make_active(make_job(name, profile=profile), placement)


def starts(pending: list[Job], active: list[Job] = [], **machine: int) -> dict[str, Placement]:  # noqa: B006
    return Complementary().plan(make_snapshot(pending, active, **machine)).starts


def test_computing_jobs_get_a_core_each() -> None:
    """Two of three computing jobs start, pinned to different cores with one thread."""
    found = starts([make_job(name, profile=uses(1.0)) for name in "abc"])
    assert [(p.cores, p.cpu, p.threads) for p in found.values()] == [((0,), 1.0, 1), ((1,), 1.0, 1)]


@pytest.mark.parametrize(
    ("speeds", "threads"),
    [
        ({}, 4),
        ({1: 10.0, 2: 19.0, 4: 30.0}, 4),
        ({1: 10.0, 2: 19.0, 4: 18.0}, 2),
        ({1: 10.0, 2: 10.2, 4: 3.0}, 1),
        ({1: 10.0, 2: 19.0}, 4),
    ],
)
def test_no_more_threads_than_make_it_faster(speeds: dict[int, float], threads: int) -> None:
    """Alone on four cores a job gets what its curve says; beyond the curve more may help."""
    profile = Profile(demand={"cores": 1.0}, speeds=speeds)
    found = starts([make_job("a", profile=profile)], cores=4)
    assert (found["a"].threads, len(found["a"].cores)) == (threads, threads)


def test_waiting_jobs_share_a_core() -> None:
    """Two readers share one core with a computing job that takes the rest; another has its own."""
    readers = [make_job(f"r{i}", profile=uses(0.1)) for i in range(2)]
    computing = [make_job(f"c{i}", profile=uses(1.0)) for i in range(2)]
    found = starts(readers + computing)
    assert set(found) == {"r0", "r1", "c0", "c1"}
    assert found["r0"].cores == found["r1"].cores
    assert sorted(found[name].cpu for name in ("c0", "c1")) == [0.8, 1.0]


def test_a_core_that_is_free_is_used_whatever_runs_beside_it() -> None:
    """A computing job that holds a tenth of a core does not keep others from the free core."""
    crowded = [
        running("deepfm", (1,), 0.8, uses(1.0)),
        running("r1", (1,), 0.1, uses(0.1)),
        running("r2", (1,), 0.1, uses(1.0)),
    ]
    found = starts([make_job("din", profile=uses(1.0))], crowded)
    assert (found["din"].cores, found["din"].cpu) == ((0,), 1.0)


def test_a_rest_that_is_too_small_is_left() -> None:
    """A fifth of a core is not worth starting a computing job on."""
    busy = [running("a", (0,), 1.0, uses(1.0)), running("b", (1,), 0.8, uses(0.8))]
    plan = Complementary().plan(make_snapshot([make_job("c", profile=uses(1.0))], busy))
    assert not plan.starts
    assert str(plan.waits["c"]).startswith("Cpu(1>")


def test_two_that_fill_the_memory_bandwidth_do_not_meet() -> None:
    """A free core does not help a job whose station is taken: it would gain less than the floor."""
    busy = [running("a", (0,), 1.0, uses(1.0, memory_bandwidth=1.0))]
    eager = make_job("b", profile=uses(0.2, memory_bandwidth=1.0))
    plan = Complementary(floor=0.6).plan(make_snapshot([eager], busy))
    assert not plan.starts
    assert plan.waits["b"].code == "Interference"
    assert set(starts([make_job("c", profile=uses(1.0))], busy)) == {"c"}


def test_memory_is_a_hard_limit() -> None:
    """Cores are free, memory is not: the reason has the numbers."""
    plan = Complementary().plan(
        make_snapshot([make_job("a", memory=5 * GIB), make_job("b", memory=5 * GIB)])
    )
    assert set(plan.starts) == {"a"}
    assert str(plan.waits["b"]) == "HostMemory(5.0 GiB>3.0 GiB)"


def test_unknown_families_come_first_then_the_longest() -> None:
    """One of each unknown family, then by length; a job of unknown length counts as long."""
    known = [
        make_job(name, family="k", profile=Profile(demand={"cores": 1.0}, step_seconds=1.0, total_steps=n))
        for name, n in (("short", 10), ("long", 90))
    ]  # fmt: skip
    unknown = [make_job("x1", family="x"), make_job("x2", family="x"), make_job("y1", family="y")]
    assert set(starts([*known, *unknown])) == {"x1", "y1"}
    assert set(starts([*known, unknown[0]])) == {"x1", "long"}
    assert set(starts(known, cores=1)) == {"long"}


def test_the_last_job_gets_the_free_cores() -> None:
    """With nothing else waiting, a job has all cores that are free; two share them."""
    assert starts([make_job("a")], cores=4)["a"].threads == 4
    assert [p.threads for p in starts([make_job("a"), make_job("b")], cores=4).values()] == [2, 2]


def test_a_waiting_job_gives_its_core_back() -> None:
    """Once it is seen to wait, it books what it uses; when it computes again, what is there."""
    reader = running("r", (0,), 1.0, uses(0.12))
    plan = Complementary().plan(make_snapshot([], [reader]))
    assert plan.rebooked["r"].cpu == 0.15
    grown = running("r", (0,), 0.15, uses(0.9))
    plan = Complementary().plan(make_snapshot([], [grown, running("b", (0,), 0.5, uses(0.5))]))
    assert plan.rebooked["r"].cpu == 0.5


@pytest.mark.parametrize(
    ("demand", "threads", "booked"),
    [
        (0.0, 1, 0.05),
        (0.12, 1, 0.15),
        (0.15, 1, 0.15),
        (0.97, 1, 1.0),
        (1.7, 2, 1.7),
        (3.0, 2, 2.0),
    ],
)
def test_bookings_are_rounded_up(demand: float, threads: int, booked: float) -> None:
    """In steps of a twentieth, at least one, at most the job's threads."""
    assert booking(uses(demand), threads) == booked


def test_expected_seconds() -> None:
    """Measured alone, else start-up and steps, else unknown."""
    steps = Profile(step_seconds=0.5, total_steps=10, startup_seconds=3.0)
    assert seconds_on(make_job("a", profile=steps), CPU) == 8.0
    assert seconds_on(make_job("a", profile=Profile(solo_seconds=7.0)), CPU) == 7.0
    assert seconds_on(make_job("a"), CPU) == float("inf")


@pytest.mark.parametrize("options", [{"floor": 1.0}, {"floor": -0.1}, {"overhead": True}])
def test_options_out_of_range(options: dict[str, float]) -> None:
    """The message names the policy, the option, and the range."""
    with pytest.raises(ValueError, match=r"policy complementary: .* from 0 to below 1"):
        Complementary(**options)


def test_a_decision_costs_one_solve_per_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 300 jobs of 300 different profiles the model is not solved for each of them apart."""
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return solve(*arguments)

    monkeypatch.setattr(interference, "solve", counted)
    pending = [make_job(f"j{i}", profile=uses(0.3 + i / 1000)) for i in range(300)]
    plan = Complementary().plan(make_snapshot(pending, cores=4, memory=512 * GIB))
    assert len(plan.starts) >= 8
    assert len(calls) <= 2 * (len(plan.starts) + 1)


def test_reasons_of_two_threads_name_what_lacks() -> None:
    """Of two cores one is nearly taken: the number is that core's room, below what is needed."""
    busy = [running("a", (0,), 0.9, uses(0.9))]
    plan = Complementary().plan(
        make_snapshot(
            [make_job("b", threads=2, profile=Profile(demand={"cores": 1.0}, threads=2))], busy
        )
    )
    assert str(plan.waits["b"]) == "Cpu(0.5>0.1 cores)"


def test_granularity_tells_jobs_apart() -> None:
    """Two jobs that differ in granularity alone are judged each by its own."""
    busy = [running("a", (0,), 0.2, uses(0.2, storage=0.5))]
    fine, coarse = (
        make_job(
            name,
            profile=Profile(demand={"cores": 0.2, "storage": 0.5}, granularity={"storage": grain}),
        )
        for name, grain in (("fine", 0.02), ("coarse", 1.0))
    )
    plan = Complementary().plan(make_snapshot([fine, coarse], busy))
    assert set(plan.starts) == {"coarse"}
    assert plan.waits["fine"].code == "Interference"


def test_equals_are_equal_to_the_best() -> None:
    """A row of jobs, each a little worse and longer than the one before, does not win by its end."""
    busy = [running("a", (0,), 0.5, uses(0.5, storage=0.6))]
    ladder = [
        make_job(
            f"j{i}",
            profile=Profile(
                demand={"cores": 0.9, "storage": 0.1 * i}, step_seconds=1.0, total_steps=10 * i
            ),
        )
        for i in range(1, 9)
    ]
    found = starts(ladder, busy)
    assert next(iter(found)) in {"j1", "j2"}


def test_a_low_priority_job_waits_its_turn() -> None:
    """While a more urgent one can start, the rest waits for it, and says so."""
    urgent = make_job("urgent", priority=1, profile=uses(1.0))
    later = make_job("later", profile=uses(0.1))
    plan = Complementary().plan(make_snapshot([later, urgent], cores=1))
    assert set(plan.starts) == {"urgent"}
    assert plan.waits["later"].code == "Cpu"


def test_what_runs_on_cores_that_are_gone_is_left_alone() -> None:
    """The machine has become smaller: a running job gives back or keeps, it is never refused."""
    for shown in (0.2, 3.0):
        away = running("a", (5, 6), 1.5, uses(shown))
        plan = Complementary().plan(make_snapshot([make_job("b")], [away], cores=1))
        assert plan.rebooked.get("a", away.state.attempt.placement).cpu <= 1.5
