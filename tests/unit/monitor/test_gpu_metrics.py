"""How busy GPUs are: what the driver tells, and that what it does not tell is not 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from doubles.fake_gpus import FakeGpus, make_gpus
from rmixer.monitor.driver import Driver
from rmixer.resources import GIB, MIB

ASK = """
import dataclasses, itertools, json, logging, sys
from rmixer.monitor import GpuMetrics
logging.basicConfig(stream=sys.stderr, format="%(message)s")
meter = GpuMetrics(clock=itertools.count(1.0).__next__)
samples = [dataclasses.asdict(meter.sample(sys.argv[1])) for _ in range(2)]
meter.close()
print(json.dumps(samples))
"""


def ask(fake: FakeGpus, index: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Two samples by a process of its own, since the library is loaded once in a process."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, fake.uuids[index]],
        env={**os.environ, **fake.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_all_that_is_told(tmp_path: Path, gpu_library: Path) -> None:
    """Shares in [0, 1], bytes per second; GPM's figures from the second look on, where valid."""
    fake = make_gpus(tmp_path / "gpus", gpu_library, 4 * GIB, 2 * GIB)
    me, parent = os.getpid(), os.getppid()
    fake.hold(me, 300 * MIB)
    fake.hold(parent, 100 * MIB)
    fake.tell(
        "utilisation 40 12", "pcie 5000 7000", "link 4 16", f"process {me} 31 9",
        "gpm 2 25", "gpm 10 12.5", "gpm 20 3",
    )  # fmt: skip
    (first, second), _ = ask(fake)
    assert (first["utilisation"], first["memory_utilisation"]) == (0.4, 0.12)
    assert first["memory_used_bytes"] == 400 * MIB
    assert first["pcie_sent_bytes_per_second"] == 5e6
    assert first["pcie_received_bytes_per_second"] == 7e6
    assert first["pcie_capacity_bytes_per_second"] == 16 * 1.969e9
    assert first["sm_active"] is None, "one look is no interval"
    assert (second["sm_active"], second["dram_active"]) == (0.25, 0.125)
    assert second["tensor_active"] is None, "this metric is not valid there"
    assert second["pcie_sent_bytes_per_second"] == 3 * MIB, "GPM's own, over the whole interval"
    assert second["processes"] == {
        str(me): {"memory_bytes": 300 * MIB, "sm": 0.31, "memory": 0.09},
        str(parent): {"memory_bytes": 100 * MIB, "sm": None, "memory": None},
    }


def test_what_is_not_told_is_not_zero(tmp_path: Path, gpu_library: Path) -> None:
    """A GPU that supports none of it has its memory, and None for the rest; no warning."""
    fake = make_gpus(tmp_path / "gpus", gpu_library, 4 * GIB)
    samples, said = ask(fake)
    for sample in samples:
        assert sample.pop("memory_total_bytes") == 4 * GIB
        assert sample.pop("memory_used_bytes") == 0
        assert sample.pop("processes") == {}
        assert set(sample.values()) == {None}
    assert not said


def test_a_lost_gpu_tells_nothing(tmp_path: Path, gpu_library: Path) -> None:
    """Everything is unknown, said once."""
    fake = make_gpus(tmp_path / "gpus", gpu_library, 4 * GIB)
    fake.tell("utilisation 40 12", "gpm 2 25")
    fake.lose()
    (first, second), said = ask(fake)
    assert set(first.values()) == set(second.values()) == {None}
    assert len(said.splitlines()) == 1
    assert "GPU is lost" in said


def test_a_driver_that_was_lost_can_be_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says to the last call does not end the run that closes it."""

    def lost() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lost)
    driver = Driver("all")
    assert driver.load() is pynvml
    driver.close()
    assert driver.load() is None
