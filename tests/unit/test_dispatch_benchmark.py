"""The benchmark of decisions runs, on a small cluster and a trace of a few lines."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def dispatch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("dispatch")


def test_decisions_are_measured_on_a_full_cluster(dispatch: Any) -> None:
    """So many jobs wait as were asked for, others run, and each decision has a time."""
    row = dispatch.measure(gpus=20, queued=60, events=20, workloads=3)
    assert abs(row["queued"] - 60) <= 10
    assert row["running"] >= 20
    assert 0 < row["median_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_the_exponent_of_growth(dispatch: Any) -> None:
    """A quadratic cost has the exponent 2."""
    assert dispatch.exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2.0)


def test_a_trace_is_simulated_with_its_jobs_of_several_gpus(dispatch: Any, tmp_path: Path) -> None:
    """All of them end, those of several GPUs as well; the longest queue is counted."""
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    lines += [f"2017-10-09 07:01:{i:02d},600.0,{1 + 7 * (i % 3 == 0)},1,c" for i in range(30)]
    path = tmp_path / dispatch.PHILLY
    path.parent.mkdir()
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    (row,) = dispatch.philly(SimpleNamespace(gpus=[20], traces=tmp_path, first=None))
    assert (row["jobs"], row["succeeded"], row["of_several_gpus"]) == (30, 30, 10)
    assert row["most_waiting"] >= 8
