"""Several sources as one profile; what is kept; what the thread curve is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmixer.launch.page import EVALUATING, LOADING, TRAINING, ProgressWriter
from rmixer.model import Device, Profile
from rmixer.monitor import Counters, GpuProcess, GpuSample
from rmixer.paths import AttemptPaths
from rmixer.profile import window
from rmixer.profile.merge import known_profile, merged
from rmixer.profile.on_gpu import GpuUse
from rmixer.profile.window import Window
from rmixer.store import Store

STATIC = Profile(
    step_seconds=0.5, demand={"cores": 1.0, "memory_bandwidth": 0.3}, granularity={"compute": 2.0},
    memory=7, source="static", confidence=0.3,
)  # fmt: skip
PROBE = Profile(
    step_seconds=0.2, demand={"cores": 0.8}, speeds={1: 5.0, 2: 4.0}, source="probe",
    confidence=0.9,
)  # fmt: skip


def test_measured_comes_first_and_predicted_fills_gaps() -> None:
    """What the probe did not see is the trace's; what it saw stays."""
    found = merged([STATIC, PROBE])
    assert found == replace(
        PROBE,
        demand={"cores": 0.8, "memory_bandwidth": 0.3},
        granularity={"compute": 2.0},
        memory=7,
    )
    assert merged([]) is None


def test_kept_profiles_serve_the_job_and_half_its_family(tmp_path: Path) -> None:
    """The newest of each source; a member of the family believes in it half; not elsewhere."""
    store = Store(tmp_path / "store.sqlite")
    store.keep_profile("s", "f", "m/2/cpu", replace(PROBE, step_seconds=9.0), 1.0)
    store.keep_profile("s", "f", "m/2/cpu", PROBE, 2.0)
    store.keep_profile("s", "f", "m/2/cpu", STATIC, 3.0)
    own = known_profile(store, "s", "f", "m/2/cpu")
    assert own is not None
    assert (own.step_seconds, own.confidence, own.speeds) == (0.2, 0.9, {1: 5.0, 2: 4.0})
    other = known_profile(store, "another", "f", "m/2/cpu")
    assert other is not None
    assert (other.step_seconds, other.confidence) == (0.2, 0.45)
    assert known_profile(store, "s", "f", "m/2/A100") is None


def test_the_least_threads_that_are_about_fastest() -> None:
    """5 % more speed is no reason for another core; one count alone is no curve."""
    assert replace(PROBE, speeds={1: 10.0, 2: 10.4}).best_threads == 1
    assert replace(PROBE, speeds={1: 10.0, 2: 18.0, 4: 18.5}).best_threads == 2
    assert replace(PROBE, speeds={1: 10.0}).best_threads is None
    assert replace(PROBE, speeds={1: 10.0, 2: 18.0}).speed_ratio(1, 2) == pytest.approx(10 / 18)


class Scripted:
    """A meter of one process with a core of its own."""

    rss_peak_bytes = 5

    def __init__(self) -> None:
        self.at = 0.0

    def sample(self, pids: object) -> Scripted:
        return self

    @property
    def counters(self) -> Counters:
        return Counters(cpu_seconds=self.at)

    def close(self) -> None:
        pass


def test_only_training_after_the_first_step_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps a second while it trains, however long it loads and evaluates."""
    tmp_path.mkdir(exist_ok=True)
    paths, meter = AttemptPaths(tmp_path), Scripted()
    monkeypatch.setattr(window, "TreeMeter", lambda: meter)
    pages = ProgressWriter(str(paths.progress))
    monkeypatch.setattr("rmixer.launch.page.time.time", lambda: 1000.0 + meter.at)
    looked = Window(0.0, 1, Device(), paths)
    step = 0
    for tick in range(400):
        meter.at = at = tick / 10
        phase = LOADING if at < 20 else EVALUATING if 23 <= at < 30 else TRAINING
        step += phase == TRAINING
        pages.phase, pages.step, pages.total_steps = phase, step, 5000
        pages.publish()
        looked.look(at, [1])
        if looked.is_enough:
            break
    pages.close()
    found = looked.profile(0.0)
    assert found is not None
    assert found.step_seconds == pytest.approx(0.1, rel=0.01)
    assert found.demand["cores"] == pytest.approx(1.0, abs=0.01)
    assert found.startup_seconds == pytest.approx(20.0, abs=0.2)
    assert (found.total_steps, found.memory, found.source) == (5000, 5, "probe")
    assert 30 < meter.at < 33, "4 seconds of training were enough"


def test_too_little_is_nothing(tmp_path: Path) -> None:
    """A job that was not seen to train has no profile."""
    looked = Window(0.0, 1, Device(), AttemptPaths(tmp_path))
    looked.look(0.1, [])
    assert looked.profile(1e9) is None
    assert not looked.is_enough


def test_shares_of_a_gpu() -> None:
    """Moving memory is bandwidth, the rest of busy is compute; other people's work is not ours."""
    use = GpuUse()
    mine, theirs = GpuProcess(memory_bytes=100, sm=0.5, memory=0.2), GpuProcess(sm=0.9, memory=0.9)
    sample = GpuSample(
        utilisation=1.0, memory_utilisation=1.0, pcie_sent_bytes_per_second=1e9,
        pcie_received_bytes_per_second=4e9, pcie_capacity_bytes_per_second=16e9,
        processes={1: mine, 2: theirs},
    )  # fmt: skip
    use.see(sample, [1], 0.0)
    assert use.demand() == {"compute": 0.3, "bandwidth": 0.2, "transfer": 0.25}
    assert use.memory_peak_bytes == 100
    assert not use.is_due(0.2)


def test_what_the_driver_does_not_tell_is_missing() -> None:
    """No share is made up; the whole GPU's stands in for the processes'."""
    use = GpuUse()
    use.see(GpuSample(processes={1: GpuProcess()}), [1], 0.0)
    assert use.demand() == {}
    assert use.memory_peak_bytes is None
    use.see(GpuSample(utilisation=0.4, processes={1: GpuProcess()}), [1], 1.0)
    assert use.demand() == {"compute": 0.4}
