"""The limit: exact where it is known, never above what a schedule reaches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer.bound import LONGEST_JOB, Load, makespan_bound


def cpu(solo: float, cores: float | None = None) -> dict[str, Load]:
    return {"cpu": Load(solo_seconds=solo, work={"cores": solo if cores is None else cores})}


def test_nothing_to_do() -> None:
    """No jobs take no time."""
    assert makespan_bound([], {"cores": 2}).seconds == 0.0


def test_work_over_cores_or_the_longest_job() -> None:
    """Many short jobs are limited by the cores, one long one by itself; the limit says which."""
    many = makespan_bound([cpu(10.0)] * 4, {"cores": 2})
    assert (many.seconds, many.bottleneck) == (20.0, "cores")
    long = makespan_bound([cpu(50.0), cpu(10.0)], {"cores": 2})
    assert (long.seconds, long.bottleneck) == (50.0, LONGEST_JOB)


def test_waiting_costs_no_core() -> None:
    """A reader that uses a tenth of a core takes its own time, not the machine's."""
    found = makespan_bound([cpu(30.0, 3.0), cpu(20.0), cpu(20.0)], {"cores": 2})
    assert (found.seconds, found.bottleneck) == (30.0, LONGEST_JOB)


def test_shares_over_two_devices() -> None:
    """A job that may run on either device is split as the linear program splits it."""
    either = {
        "cpu": Load(solo_seconds=10.0, work={"cores": 10.0}),
        "gpu": Load(solo_seconds=10.0, work={"gpu": 10.0}),
    }
    found = makespan_bound([either] * 4, {"cores": 1, "gpu": 1})
    assert found.seconds == pytest.approx(20.0)
    assert found.bottleneck in ("cores", "gpu")


def test_a_job_without_a_device() -> None:
    """It has no bound, and that is said."""
    with pytest.raises(ValueError, match="without a device"):
        makespan_bound([{}], {"cores": 1})


@given(st.lists(st.floats(0.1, 20), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_no_schedule_beats_it(lengths: list[float]) -> None:
    """The best assignment to two cores, found by trying all, takes at least the limit."""
    best = min(
        max(
            sum(length for length, side in zip(lengths, sides, strict=True) if side == s)
            for s in (0, 1)
        )
        for sides in itertools.product((0, 1), repeat=len(lengths))
    )
    assert makespan_bound([cpu(length) for length in lengths], {"cores": 2}).seconds <= best + 1e-9


choices = st.lists(st.tuples(st.floats(0.5, 20), st.floats(0.5, 20)), min_size=1, max_size=5)


def either_way(on_cpu: float, on_gpu: float) -> dict[str, Load]:
    return {
        "cpu": Load(solo_seconds=on_cpu, work={"cores": on_cpu}),
        "gpu": Load(solo_seconds=on_gpu, work={"gpu": on_gpu}),
    }


@given(choices)
@settings(max_examples=40, deadline=None)
def test_no_choice_of_devices_beats_it(jobs: list[tuple[float, float]]) -> None:
    """Each job on the core or on the GPU, all choices tried: the best takes at least the limit."""
    best = min(
        max(sum(job[side] for job, side in zip(jobs, sides, strict=True) if side == s) for s in (0, 1))
        for sides in itertools.product((0, 1), repeat=len(jobs))
    )  # fmt: skip
    bound = makespan_bound([either_way(*job) for job in jobs], {"cores": 1, "gpu": 1})
    assert 0 < bound.seconds <= best + 1e-6


@given(choices)
@settings(max_examples=40, deadline=None)
def test_the_program_finds_the_fractional_optimum(jobs: list[tuple[float, float]]) -> None:
    """Two devices, work that can be split: sorted by advantage, one threshold is optimal."""
    order = sorted(jobs, key=lambda job: job[0] / job[1])
    best = float("inf")
    for split in range(len(order)):
        cpu_before = sum(job[0] for job in order[:split])
        gpu_after = sum(job[1] for job in order[split + 1 :])
        on_cpu, on_gpu = order[split]
        share = min(1.0, max(0.0, (gpu_after + on_gpu - cpu_before) / (on_cpu + on_gpu)))
        best = min(best, max(cpu_before + share * on_cpu, gpu_after + (1 - share) * on_gpu))
    loads = [
        {d: Load(solo_seconds=0.0, work=load.work) for d, load in either_way(*job).items()}
        for job in jobs
    ]
    found = makespan_bound(loads, {"cores": 1, "gpu": 1})
    assert found.seconds == pytest.approx(best, rel=1e-6)


def test_a_long_job_is_split_at_most_over_its_own_time() -> None:
    """However many devices are free, a job takes its own time on the faster one."""
    found = makespan_bound([either_way(30.0, 20.0)], {"cores": 8, "gpu": 8})
    assert (found.seconds, found.bottleneck) == (pytest.approx(20.0), LONGEST_JOB)
