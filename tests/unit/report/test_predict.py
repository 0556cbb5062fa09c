"""What is predicted of a run by its own log is plausible, and never above what the run did."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_run import ScriptedRun

from rmixer import events as ev
from rmixer.bound import LONGEST_JOB
from rmixer.model import Estimate, JobSpec, Outcome, Profile, StateName
from rmixer.report.document import build_document
from rmixer.report.headline import headline
from rmixer.report.predict import predict

SUCCEEDED = Outcome(state=StateName.SUCCEEDED)


def uses(cores: float, **more: float) -> Profile:
    return Profile(demand={"cores": cores, **more})


def run_of(*jobs: tuple[str, float, float, Profile | None, float | None]) -> ScriptedRun:
    """A run on two cores: (job, start, end, profile, core seconds), each pinned to a core."""
    run = ScriptedRun(cores=2)
    run.submit(*(name for name, *_ in jobs))
    moments = []
    for index, (name, start, end, profile, seconds) in enumerate(jobs):
        moments += [(start, 1, index, name, profile, seconds), (end, 0, index, name, None, seconds)]
    for at, begins, index, name, profile, seconds in sorted(moments, key=lambda m: m[:3]):
        if begins:
            run.place(at, name, (index % 2,), cpu=0.1)
            if profile is not None:
                run.add(ev.Profiled, at, job=name, token=run.token(name), profile=profile)
        else:
            usage = {} if seconds is None else {"user_seconds": seconds, "system_seconds": 0.0}
            token = run.token(name)
            run.add(ev.Exited, at, job=name, token=token, outcome=SUCCEEDED, usage=usage)
            run.add(ev.Ended, at, job=name, outcome=SUCCEEDED)
    run.finish(run.events[-1].at)
    return run


def test_alone_a_job_took_what_it_took() -> None:
    """One after the other: each one's time alone is its own time, and sequential is their sum."""
    found = predict(run_of(("a", 0, 10, uses(1.0), 10), ("b", 10, 25, uses(0.1), 1.5)).events)
    assert found.solo_seconds == pytest.approx({"a": 10.0, "b": 15.0})
    assert found.sequential_seconds == pytest.approx(25.0)
    assert found.sequential_source == "predicted"


def test_side_by_side_on_two_cores_costs_the_overhead_only() -> None:
    """Two computing jobs of 10 s took nearly 20 s of solo time, and the cores are the limit."""
    found = predict(run_of(("a", 0, 10, uses(1.0), 10), ("b", 0, 10, uses(1.0), 10)).events)
    assert found.sequential_seconds == pytest.approx(20 / 1.02, rel=1e-3)
    assert (found.bound_seconds, found.bottleneck) == (pytest.approx(10.0), "cores")


def test_what_is_shared_makes_time_alone_shorter() -> None:
    """Two that fill the memory bandwidth halve each other: one by one they take as long."""
    profile = uses(0.5, memory_bandwidth=1.0)
    found = predict(run_of(("a", 0, 10, profile, 5), ("b", 0, 10, profile, 5)).events)
    assert 8 < (found.sequential_seconds or 0) < 14
    assert found.bottleneck == "memory_bandwidth"
    assert (found.bound_seconds or 0) <= 10


def test_a_waiting_job_is_its_own_limit() -> None:
    """Nothing shortens waiting: a reader that took 30 s sets the limit."""
    found = predict(run_of(("r", 0, 30, uses(0.1), 3), ("c", 0, 10, uses(1.0), 10)).events)
    assert found.bottleneck == LONGEST_JOB
    assert 25 < (found.bound_seconds or 0) <= 30


def test_a_measured_time_alone_counts_and_does_not_lift_the_bound() -> None:
    """A job known to take 40 s alone that took 10 s: reported as measured, the limit is below 10."""
    run = ScriptedRun(cores=2)
    profile = Profile(demand={"cores": 1.0}, solo_seconds=40.0, source="history")
    spec = JobSpec(id="a", name="a", kind="model")
    run.add(ev.Submitted, 0.0, spec=spec, estimate=Estimate(memory=1), profile=profile)
    run.place(0.0, "a", (0,))
    run.succeed(10.0, "a")
    run.finish(10.0)
    found = predict(run.events)
    assert (found.solo_seconds["a"], found.sequential_source) == (40.0, "measured")
    assert (found.bound_seconds or 0) <= 10


def test_one_at_a_time_is_at_the_best_number_of_threads() -> None:
    """A job that is twice as fast with two threads would have them alone; start-up is start-up."""
    curve = {1: 10.0, 2: 20.0}
    kept = Profile(demand={"cores": 1.0}, startup_seconds=4.0, speeds=curve, confidence=0.9)
    seen = Profile(demand={"cores": 1.0}, startup_seconds=4.0)
    run = ScriptedRun(cores=2)
    spec = JobSpec(id="a", name="a", kind="model")
    run.add(ev.Submitted, 0.0, spec=spec, estimate=Estimate(memory=1), profile=kept)
    run.place(0.0, "a", (0,))
    run.add(ev.Profiled, 1.0, job="a", token=run.token("a"), profile=seen)
    run.succeed(24.0, "a")
    run.finish(24.0)
    found = predict(run.events)
    assert found.sequential_seconds == pytest.approx(14.0)
    assert found.sequential_threads == "best"
    document = build_document(run.events, predictions=found)
    assert "(predicted 14.0 s, best threads)" in headline(document)
    unknown = predict(run_of(("a", 0, 10, uses(1.0), 10)).events)
    assert unknown.sequential_threads == "same"


def test_what_failed_is_not_predicted() -> None:
    """A run in which nothing succeeded has no prediction; one job that did has its own."""
    run = ScriptedRun(cores=2)
    run.submit("a", "b")
    run.place(0.0, "a", (0,))
    run.place(0.0, "b", (1,))
    run.fail(5.0, "a")
    assert predict(run.events).bound_seconds is None
    run.succeed(9.0, "b")
    run.finish(9.0)
    assert set(predict(run.events).solo_seconds) == {"b"}


def test_only_the_last_attempt_counts() -> None:
    """The seconds of an attempt that failed are no part of the job's time alone."""
    run = ScriptedRun(cores=2)
    run.submit("a")
    run.place(0.0, "a", (0,))
    run.fail(5.0, "a", retry_at=6.0)
    run.place(6.0, "a", (0,))
    run.succeed(16.0, "a")
    run.finish(16.0)
    assert predict(run.events).solo_seconds == pytest.approx({"a": 10.0})


shares = st.floats(0.0, 1.0)
ran = st.tuples(
    st.floats(0, 50), st.floats(0.5, 50), st.floats(0.0, 2.0), shares, shares, st.floats(0.0, 2.5)
)


@given(st.lists(ran, min_size=1, max_size=7))
@settings(max_examples=80, deadline=None)
def test_the_bound_is_never_above_the_makespan(
    jobs: list[tuple[float, float, float, float, float, float]],
) -> None:
    """Whatever was seen and counted of the jobs, and however wrong: what was done can be done."""
    run = run_of(
        *(
            (f"j{i}", start, start + long, uses(c, memory_bandwidth=b, storage=s), long * busy)
            for i, (start, long, c, b, s, busy) in enumerate(jobs)
        )
    )
    found = predict(run.events)
    document = build_document(run.events, predictions=found, root=Path("/r"))
    assert 0 < document["bound"]["makespan_seconds"] <= document["makespan_seconds"] + 1e-9
    for index, (_, long, *_) in enumerate(jobs):
        assert 0 < found.solo_seconds[f"j{index}"] <= long + 1e-6
