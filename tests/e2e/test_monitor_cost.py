"""The benchmark of the monitor still runs, and what it watches is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
def test_monitor_cost(tmp_path: Path) -> None:
    """Two small jobs for a second: a cost is measured, and less than a whole core."""
    small = ["--jobs", "2", "--mib", "8", "--seconds", "1.2", "--out", str(tmp_path / "m.json")]
    done = subprocess.run(
        [sys.executable, "benchmarks/monitor.py", *small, "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "m.json").read_text())
    assert (document["jobs"], document["mib"]) == (2, 8)
    assert 0 < document["share_of_a_core"] < 1
    assert 0 < document["milliseconds"]["median"] <= document["milliseconds"]["longest"]
