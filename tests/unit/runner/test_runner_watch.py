"""What follows from looking at running jobs: rates, time left, memory that grows, progress."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rmixer.estimate.contexts import STATED_CONTEXT
from rmixer.launch.page import PHASES, ProgressWriter
from rmixer.model import Placement
from rmixer.monitor import Counters, TreeSample
from rmixer.paths import AttemptPaths
from rmixer.resources import MIB
from rmixer.runner import watch
from rmixer.runner.watch import (
    MEMORY_ALARM,
    PROGRESS_SECONDS,
    PSS_SECONDS,
    STALE_SECONDS,
    DevicePeak,
    Look,
    Watcher,
)

TRAINING = PHASES.index("training")


class Scripted:
    """A meter that shows what it is told, and keeps the peak as the real one does."""

    def __init__(self) -> None:
        self.now = TreeSample()
        self.rss_peak_bytes = 0

    def sample(self, pids: Any) -> TreeSample:
        self.rss_peak_bytes = max(self.rss_peak_bytes, self.now.rss_bytes)
        return self.now

    def close(self) -> None:
        pass


class Bench:
    """A watcher of one attempt with a fake meter and a real page."""

    def __init__(self, directory: Path) -> None:
        self.meter = Scripted()
        self.watcher = Watcher()
        self.paths = AttemptPaths(directory)
        self.placement = Placement(threads=1, memory=100 * MIB)
        self.watcher.attach("job", "t", self.paths, self.placement, 0.0)
        self.watcher._watched["t"].meter = self.meter  # type: ignore[assignment]

    def page(self, **fields: Any) -> None:
        writer = ProgressWriter(str(self.paths.progress))
        for name, value in fields.items():
            setattr(writer, name, value)
        writer.publish()
        writer.close()

    def look(self, at: float, cpu: float = 0.0, rss: int = 0, process_peak: int = 0) -> Look:
        self.meter.now = TreeSample(
            Counters(cpu_seconds=cpu), rss_bytes=rss, process_peak_bytes=process_peak, processes=1
        )
        return self.watcher.look(at, {"t": os.getpid()})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_command_without_a_page(bench: Bench) -> None:
    """Cores and memory are seen; samples per second are not made up."""
    assert bench.look(1.0, cpu=0.2, rss=MIB).sample["jobs"]["job"]["cpu"] is None
    sample = bench.look(2.0, cpu=0.7, rss=2 * MIB).sample
    assert sample["jobs"]["job"] == {
        "token": "t", "cpu": 0.5, "rss_bytes": 2 * MIB, "processes": 1,
    }  # fmt: skip
    assert sample["node"]["cpu"] == 0.5
    assert sample["node"]["rss_bytes"] == 2 * MIB


def test_rate_and_time_left(bench: Bench) -> None:
    """From two pages: samples per second, and the seconds that the remaining steps take."""
    bench.page(phase=TRAINING, step=10, total_steps=100, samples=1000, loss=0.7)
    assert bench.look(1.0).sample["jobs"]["job"]["samples_per_second"] is None
    bench.page(phase=TRAINING, step=20, total_steps=100, samples=2000, loss=0.6, input_seconds=1.25)
    line = bench.look(3.0).sample["jobs"]["job"]
    assert line["samples_per_second"] == 500.0
    assert line["eta_seconds"] == 16.0
    assert (line["phase"], line["step"], line["loss"]) == ("training", 20, 0.6)
    assert line["phase_seconds"] == {
        "input": 1.25, "forward": 0.0, "backward": 0.0, "optimizer": 0.0,
    }  # fmt: skip


def test_what_a_log_says_where_nobody_counts(bench: Bench) -> None:
    """The share and the rate that the program prints, until it is old; a page that counts wins."""
    bench.paths.log.write_text("Epoch 2/4\nstep 5/10  loss 0.6  700 samples/s\n")
    line = bench.look(1.0).sample["jobs"]["job"]
    assert (line["share"], line["samples_per_second"]) == (0.375, 700.0)
    assert line["log"]["text"] == "step 5/10  loss 0.6  700 samples/s"
    line = bench.look(2.0 + STALE_SECONDS).sample["jobs"]["job"]
    assert (line["share"], line["samples_per_second"]) == (0.375, None)
    bench.page(phase=TRAINING, step=1, samples=10)
    assert "log" not in bench.look(3.0 + STALE_SECONDS).sample["jobs"]["job"]


def test_rate_is_a_moving_average(bench: Bench) -> None:
    """One odd interval moves the rate by the weight of the newest measurement."""
    for at, samples in ((0.0, 100), (1.0, 200), (2.0, 400)):
        bench.page(phase=TRAINING, step=1, samples=samples)
        rate = bench.look(at).sample["jobs"]["job"]["samples_per_second"]
    assert rate == pytest.approx(0.4 * 200 + 0.6 * 100)


def test_no_rate_while_it_does_not_train(bench: Bench) -> None:
    """An evaluation has no training rate; a training that stalls for a moment keeps its own."""
    bench.page(phase=TRAINING, step=1, samples=100)
    bench.look(0.0)
    bench.page(phase=TRAINING, step=2, samples=200)
    bench.look(1.0)
    assert bench.look(2.0).sample["jobs"]["job"]["samples_per_second"] == 100.0
    bench.page(phase=PHASES.index("evaluating"), step=2, samples=200)
    assert bench.look(3.0).sample["jobs"]["job"]["samples_per_second"] is None


def test_growth_is_told_and_not_repeated(bench: Bench) -> None:
    """At the alarm's share of the reservation once, again when it grew further or was rebooked."""
    limit = int(bench.placement.memory * MEMORY_ALARM)
    assert bench.look(1.0, rss=limit).grown == []
    assert bench.look(2.0, rss=limit + MIB).grown == [("t", limit + MIB)]
    assert bench.look(3.0, rss=limit + 2 * MIB).grown == []
    assert bench.look(4.0, rss=limit + 20 * MIB).grown == [("t", limit + 20 * MIB)]
    bench.watcher.rebook("t", Placement(memory=50 * MIB))
    assert bench.look(5.0, rss=limit).grown == [("t", limit)]
    bench.watcher.rebook("t", Placement(memory=1000 * MIB))
    assert bench.look(6.0, rss=limit).grown == []


def test_progress_comes_now_and_then(bench: Bench) -> None:
    """The event log gets it at most every few seconds, however often one looks."""
    bench.page(phase=TRAINING, step=5, total_steps=9, samples=50)
    told = [look for at in range(25) if (look := bench.look(float(at))).progress]
    assert [look.sample["at"] for look in told] == [PROGRESS_SECONDS, 2 * PROGRESS_SECONDS]
    ((token, progress),) = told[0].progress
    assert (token, progress.step, progress.total_steps, progress.samples) == ("t", 5, 9, 50)


def test_detach_gives_the_peak(bench: Bench) -> None:
    """The highest memory that was seen, once; a stranger has none."""
    bench.look(1.0, rss=7 * MIB)
    bench.look(2.0, rss=3 * MIB)
    assert bench.watcher.detach("t") == (7 * MIB, 0)
    assert bench.watcher.detach("t") == (0, 0)
    assert bench.look(3.0).sample["jobs"] == {}


def test_growth_after_the_last_look_counts(bench: Bench) -> None:
    """A job that takes its memory and ends between two looks is known by the kernel's own mark."""
    bench.look(1.0, rss=10 * MIB, process_peak=15 * MIB)
    assert bench.watcher.detach("t", 615 * MIB) == (610 * MIB, 0)


def test_what_was_seen_is_not_added_to(bench: Bench) -> None:
    """Mapped files, and the noise of two ways of counting, make no difference."""
    bench.look(1.0, rss=100 * MIB, process_peak=5000 * MIB)
    assert bench.watcher.detach("t", 5001 * MIB) == (100 * MIB, 0)


def test_real_process_is_measured(tmp_path: Path) -> None:
    """With nothing faked: below this process's parent there is at least this one, and it has memory."""
    watcher = Watcher()
    watcher.attach("job", "t", AttemptPaths(tmp_path), Placement(memory=1), 0.0)
    look = watcher.look(1.0, {"t": os.getppid()})
    assert look.sample["jobs"]["job"]["processes"] >= 1
    assert look.sample["jobs"]["job"]["rss_bytes"] > MIB
    assert look.grown[0][0] == "t"


def pages(*curve: tuple[int, int]) -> list[dict[str, int]]:
    """Pages with what an allocator holds now, and its peak; MiB."""
    names = ("device_reserved_bytes", "device_reserved_peak_bytes")
    return [dict(zip(names, (now * MIB, top * MIB), strict=True)) for now, top in curve]


def test_the_peak_on_a_device_is_the_allocators_and_what_lies_outside() -> None:
    """A spike between two looks is known by the allocator, the context by the driver."""
    peak = DevicePeak()
    for held, page in zip((350, 450), pages((50, 50), (150, 900)), strict=True):
        peak.see(held * MIB, page)
    assert peak.bytes == (900 + 300) * MIB


def test_a_driver_that_does_not_tell() -> None:
    """The allocator's peak and the stated context; a program without either has no peak."""
    peak = DevicePeak()
    peak.see(None, None)
    assert peak.bytes == 0
    peak.see(None, pages((1, 5))[0])
    assert peak.bytes == 5 * MIB + STATED_CONTEXT


def test_other_frameworks_are_seen_by_the_driver_alone() -> None:
    """The highest that was looked at."""
    peak = DevicePeak()
    for held in (5, 70, 30):
        peak.see(held * MIB, None)
    assert peak.bytes == 70 * MIB


def test_proportional_memory_at_most_once_a_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costly figure is asked for rarely, and kept in between."""
    asked: list[float] = []

    def ask(pids: Any) -> int:
        asked.append(at)
        return len(asked)

    monkeypatch.setattr(watch, "proportional_bytes", ask)
    monkeypatch.setattr(bench.watcher._finder, "trees", lambda roots: {os.getpid(): [1]})
    line: dict[str, Any] = {}
    for at in [float(second) for second in range(600)]:
        line = bench.look(at).sample["jobs"]["job"]
    assert len(asked) in (3, 4)
    assert all(after - before >= PSS_SECONDS for before, after in pairwise(asked))
    assert line["pss_bytes"] == len(asked)
