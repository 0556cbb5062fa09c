"""Every benchmark still runs: a small version of each, from its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = pytest.mark.skipif(
    not os.environ.get("RMIXER_TEST_LONG"), reason="takes a minute: set RMIXER_TEST_LONG=1"
)
TRACES = ROOT.parent / "shared" / "traces"


@pytest.mark.e2e
def test_colocate_measures_every_policy(tmp_path: Path) -> None:
    """The small version runs each policy in each scenario and writes what it measured."""
    out = tmp_path / "colocate.json"
    command = [sys.executable, "benchmarks/colocate.py", "--smoke", "--repeats", "1"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    measured = {(run["scenario"], run["policy"]) for run in document["runs"]}
    assert len(measured) == 6
    assert all(run["makespan_seconds"] > 0 for run in document["runs"])
    assert all(run["bound"]["makespan_seconds"] > 0 for run in document["runs"])
    assert {ratio["over"] for ratio in document["ratios"]} == {
        "sequential",
        "all-at-once",
        "fixed:k=2,threads=1",
    }
    assert "limit" in done.stdout


@pytest.mark.e2e
@LONG
def test_estimate_compares_with_real_runs() -> None:
    """The small version estimates and trains three configurations, and prints each error."""
    command = [sys.executable, "benchmarks/estimate.py", "--smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 3
    assert all(" trace " in line and "%" in line for line in lines[:2])
    assert lines[-1].startswith("2 configurations")


@pytest.mark.e2e
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs the published measurements in {TRACES}")
def test_the_network_is_held_against_published_measurements() -> None:
    """One seed of each table: goals are met, and the network beats a constant."""
    command = [sys.executable, "benchmarks/interference.py", "--quick", "--json"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # two threads beside others collapse
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["missed"] == []
    for gpu in document["gavel"].values():
        assert gpu["unseen"]["two stations"]["single"] < gpu["unseen"]["a constant"]["single"]


@pytest.mark.e2e
@LONG
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"needs the published measurements in {TRACES}")
def test_worlds_that_disagree_are_simulated() -> None:
    """One small seed: each policy ends all jobs, and twins that harm each other go one by one."""
    command = [sys.executable, "benchmarks/disagreeing_worlds.py", "--seeds", "1", "--jobs", "8"]
    more = ["--policies", "exclusive", "backfill", "--ours", "complementary:budget=10", "--json"]
    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(row["gpus"], row["places"]) for row in document["pairs"]] == [
        (1, None), (4, None), (1, 2), (4, 2)
    ]  # fmt: skip
    assert document["twins"][0]["slower"] < 0.03


@pytest.mark.e2e
@LONG
def test_reading_is_measured() -> None:
    """The small version reads every kind of text, and two processes share one data set."""
    command = [sys.executable, "benchmarks/reading.py", "--smoke", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document["seconds"]) == {"plain", "gz", "zst", "slow", "polars"}
    assert document["memory"]["first_bytes"] > 0


@pytest.mark.e2e
def test_optimizers_are_held_to_their_definitions() -> None:
    """In float64 to 1e-9; in float32 no further from that than torch, but for luck."""
    command = [sys.executable, "benchmarks/exactness.py", "--json", "--seeds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["skipped"] == [1, 199]
    for row in document["rows"]:
        assert max(row["float64"]) < 1e-9
        for at in range(2):
            torchs = max(row["torch_loop"][at], row["torch_fused"][at])
            assert row["float32"][at] <= 1.5 * torchs, row


@pytest.mark.e2e
def test_the_trainer_is_held_against_plain_scripts() -> None:
    """The small version compares the losses of all cases, and times them once."""
    command = [sys.executable, "benchmarks/trainer.py", "--smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == [
        line.split(":")[0] for line in lines[1::2]
    ]
    assert all("losses apart by" in line for line in lines[::2])
    assert all("x of the plain script" in line for line in lines[1::2])


@pytest.mark.e2e
def test_quality_is_measured_beside_logistic_regression_and_the_truth() -> None:
    """The small version trains a model on few rows, and its kept figures stay as they are."""
    kept = (ROOT / "benchmarks/results/quality.json").read_bytes()
    command = [sys.executable, "benchmarks/quality.py", "--smoke", "--only", "widedeep on avazu"]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert 0.5 < row["auc"] < row["possible"] < 1
    assert 0.5 < row["logistic_regression"] < row["possible"]
    assert (ROOT / "benchmarks/results/quality.json").read_bytes() == kept


@pytest.mark.e2e
def test_the_launcher_is_timed_on_steps_that_it_counts() -> None:
    """The timing itself is for a quiet machine; that every step was counted is checked there."""
    command = [sys.executable, "benchmarks/launcher_overhead.py", "--json"]
    done = subprocess.run(
        [*command, "--steps", "20", "--repeats", "2"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["plain_step_seconds"] > 0, "else it says on stderr what was not counted"
