"""Pressure on the machine, and proportional memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmixer.monitor import PressureMeter, proportional_bytes
from rmixer.resources import KIB


def stalled(proc: Path, resource: str, microseconds: int) -> None:
    (proc / "pressure").mkdir(parents=True, exist_ok=True)
    (proc / "pressure" / resource).write_text(
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
    )


def test_pressure_is_the_share_since_the_last_look(tmp_path: Path) -> None:
    """From the totals of "some"; what the kernel does not have is None, as is a first look."""
    meter = PressureMeter(str(tmp_path))
    stalled(tmp_path, "cpu", 1_000_000)
    stalled(tmp_path, "io", 0)
    assert meter.sample(10.0) == {"cpu": None, "memory": None, "io": None}
    stalled(tmp_path, "cpu", 1_500_000)
    assert meter.sample(12.0) == {"cpu": 0.25, "memory": None, "io": 0.0}


def test_proportional_memory_is_summed(tmp_path: Path) -> None:
    """Each process's part, in bytes; None where nobody told, not 0."""
    for pid, size in ((1, 100), (2, 23)):
        (tmp_path / str(pid)).mkdir()
        text = f"0-1 ---p 00000000 00:00 0 [rollup]\nRss: 999 kB\nPss: {size} kB\nPss_Dirty: 7 kB\n"
        (tmp_path / str(pid) / "smaps_rollup").write_text(text)
    assert proportional_bytes([1, 2, 3], str(tmp_path)) == 123 * KIB
    assert proportional_bytes([3], str(tmp_path)) is None


def test_of_this_process() -> None:
    """The real files can be read."""
    if not Path(f"/proc/{os.getpid()}/smaps_rollup").exists():
        pytest.skip("this kernel has no smaps_rollup")
    assert (proportional_bytes([os.getpid()]) or 0) > 1000 * KIB
