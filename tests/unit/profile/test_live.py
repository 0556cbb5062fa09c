"""A profile from watching: what the job uses, not what the crowd lets it have."""

from __future__ import annotations

from typing import Any

import pytest

from rmixer.launch import page
from rmixer.model import Profile
from rmixer.monitor import Counters
from rmixer.profile.live import LiveProfiler, Sighting


def progress(step: int, phase: int = page.TRAINING, moved: int = 0) -> dict[str, Any]:
    return {
        "phase": phase,
        "step": step,
        "total_steps": 1000,
        "first_step_at": 1.0 if step else 0.0,
        "moved_bytes": moved,
    }


def watch(
    profiler: LiveProfiler,
    seconds: int,
    *,
    cpu: float,
    delay: float = 0.0,
    steps: float | None = None,
    read: float = 0.0,
    start: int = 0,
) -> list[Profile]:
    """The profiles of a job that uses `cpu` cores and waits `delay` cores' worth for one."""
    found = []
    for at in range(start, start + seconds + 1):
        counters = Counters(
            cpu_seconds=cpu * at, run_delay_seconds=delay * at, read_bytes=int(read * at)
        )
        seen = progress(int(steps * at)) if steps is not None else None
        profile = profiler.see(Sighting(float(at), counters, 1, seen, rss_peak_bytes=77))
        if profile is not None:
            found.append(profile)
    return found


def test_a_computing_job() -> None:
    """It keeps its core busy; steps, length and memory are told; once, as nothing changes."""
    (profile,) = watch(LiveProfiler(0.0), 20, cpu=1.0, steps=50.0)
    assert profile.demand["cores"] == 1.0
    assert profile.step_seconds == pytest.approx(1 / 50)
    assert (profile.total_steps, profile.memory) == (1000, 77)


def test_a_reader_that_waits() -> None:
    """A tenth of a core, whatever time passes."""
    (profile,) = watch(LiveProfiler(0.0), 20, cpu=0.1)
    assert profile.demand["cores"] == pytest.approx(0.1)
    assert profile.step_seconds is None


def test_the_crowd_is_taken_out() -> None:
    """Half a core and half the time ready for one: alone it would have kept a core busy."""
    (profile,) = watch(LiveProfiler(0.0), 30, cpu=0.5, delay=0.5, steps=10.0)
    assert profile.demand["cores"] == pytest.approx(1.0)
    assert profile.step_seconds == pytest.approx(0.05)


def test_start_up_is_left_out() -> None:
    """Without a page the first seconds are imports; in a crowd they take longer."""
    assert not watch(LiveProfiler(0.0), 5, cpu=1.0)
    assert not watch(LiveProfiler(0.0), 12, cpu=0.2, delay=0.8)


def test_with_a_page_it_begins_at_the_first_step() -> None:
    """Loading data, however long, is not the job's profile; its start-up time is kept."""
    profiler = LiveProfiler(0.0)
    for at in range(30):
        seen = progress(0, phase=page.LOADING)
        assert profiler.see(Sighting(float(at), Counters(cpu_seconds=at), 1, seen)) is None
    (profile,) = watch(profiler, 10, cpu=0.5, steps=10.0, start=30)
    assert profile.startup_seconds == 30.0
    assert profile.demand["cores"] == pytest.approx(0.5)


def test_a_page_without_any_step_is_like_none() -> None:
    """A program that has imported torch and never steps is profiled all the same."""
    profiler, found = LiveProfiler(0.0), []
    for at in range(12):
        seen = progress(0, phase=page.STARTING)
        profile = profiler.see(Sighting(float(at), Counters(cpu_seconds=0.5 * at), 1, seen))
        found += [profile] if profile else []
    assert found[0].demand["cores"] == pytest.approx(0.5)


def test_a_change_is_told() -> None:
    """A job that computed and now waits is profiled anew."""
    profiler = LiveProfiler(0.0)
    (first,) = watch(profiler, 12, cpu=1.0)
    later = []
    for at in range(13, 30):
        counters = Counters(cpu_seconds=12 + 0.1 * (at - 12))
        if profile := profiler.see(Sighting(float(at), counters, 1)):
            later.append(profile)
    assert first.demand["cores"] == 1.0
    assert later[-1].demand["cores"] == pytest.approx(0.1)


def test_bandwidth_and_storage() -> None:
    """Bytes moved count against the machine's bandwidth, bytes read against a disk's."""
    profiler = LiveProfiler(0.0, memory_bandwidth=10e9)
    found = None
    for at in range(10):
        counters = Counters(cpu_seconds=at, read_bytes=at * 100_000_000)
        seen = progress(at * 10 + 1, moved=at * 5_000_000_000)
        found = profiler.see(Sighting(float(at), counters, 1, seen)) or found
    assert found is not None
    assert found.demand["memory_bandwidth"] == pytest.approx(0.5)
    assert found.demand["storage"] == pytest.approx(0.2)


def test_long_steps_are_judged_once_there_are_enough() -> None:
    """At one step in a second a window of a few is too short: it grows instead of starting anew."""
    assert not watch(LiveProfiler(0.0), 5, cpu=1.0, steps=1.0)
    (profile,) = watch(LiveProfiler(0.0), 12, cpu=1.0, steps=1.0)
    assert profile.step_seconds == pytest.approx(1.0)
    (slow,) = watch(LiveProfiler(0.0), 60, cpu=1.0, steps=0.06)
    assert slow.demand["cores"] == 1.0


def test_a_page_that_comes_late() -> None:
    """Before a job has written its page it is starting up; that time is not guessed."""
    profiler = LiveProfiler(0.0)
    for at in range(9):
        assert profiler.see(Sighting(float(at), Counters(cpu_seconds=0.0), 1)) is None or at >= 7
    found = watch(profiler, 8, cpu=0.5, steps=10.0, start=9)
    assert found[0].startup_seconds == 9.0


def test_a_family_of_processes_cannot_use_more_than_its_threads() -> None:
    """Two threads given: whatever is counted, the demand is two cores at most."""
    profiler, found = LiveProfiler(0.0), None
    for at in range(12):
        counters = Counters(cpu_seconds=3.7 * at)
        found = profiler.see(Sighting(float(at), counters, 2, progress(10 * at))) or found
    assert found is not None
    assert (found.demand["cores"], found.threads) == (2.0, 2)
