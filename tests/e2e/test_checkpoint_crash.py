"""Trainings that are killed or stopped at any moment lose nothing but the steps since a checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Workplace

from rmixer.launch.page import read_progress
from waiting import wait_until

pytestmark = pytest.mark.e2e

#: How often a training is killed; 20 by hand.
KILLS = int(os.environ.get("RMIXER_TEST_KILLS", "2"))
DATA = {"format": "generated", "like": "criteo", "rows": 12_000, "max_table_rows": 500}
JOB = {
    "name": "job",
    "model": "deepfm",
    "params": {"embedding_dim": 4, "mlp": [16], "dropout": 0.1},
    "optimizer": {"name": "adam", "lr": 0.002},
    "batch_size": 64,
    "epochs": 4,
    "data": DATA,
}
#: A worker that writes a checkpoint after every step that it has time for.
EAGER = """
import sys
from rmixer.train import checkpoint, worker
checkpoint.SHORTEST_SECONDS, checkpoint.SHARE = 0.02, 1e9
sys.exit(worker.main(sys.argv[1:]))
"""


def configured(folder: Path, cache: Path) -> Path:
    folder.mkdir()
    config = {
        **JOB,
        "threads": 1,
        "cache_dir": str(cache),
        "progress_path": str(folder / "progress"),
        "result_path": str(folder / "result.json"),
        "model_dir": str(folder / "model"),
        "checkpoint_dir": str(folder / "checkpoints"),
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def start(config: Path) -> subprocess.Popen[bytes]:
    with (config.parent / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", EAGER, str(config)], stdout=log, stderr=log)


def step_of(config: Path) -> int:
    page = read_progress(str(config.parent / "progress"))
    return int(page["step"]) if page else 0


def kill_later(process: subprocess.Popen[bytes], config: Path, steps: int) -> None:
    """kill -9 once it has made so many steps more than when it was first seen to step."""
    until = wait_until(lambda: step_of(config)) + steps
    wait_until(lambda: step_of(config) >= until or process.poll() is not None)
    process.kill()
    process.wait()


def weights(config: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(config.parent / "model" / "weights.pt")
    return found


def test_killed_at_any_moment_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    """kill -9 at random steps; the metrics and every weight are those of a training left alone."""
    alone = configured(tmp_path / "alone", tmp_path / "cache")
    assert start(alone).wait() == 0
    killed = configured(tmp_path / "killed", tmp_path / "cache")
    chance = random.Random(5)
    for _ in range(KILLS):
        (killed.parent / "progress").unlink(missing_ok=True)
        process = start(killed)
        kill_later(process, killed, chance.randrange(120))
    assert start(killed).wait() == 0
    wanted, found = weights(alone), weights(killed)
    assert all(torch.equal(value, found[key]) for key, value in wanted.items())
    results = [json.loads((c.parent / "result.json").read_text()) for c in (alone, killed)]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[1]["resumed_samples"] > 0
    assert "going on from step" in (killed.parent / "log.txt").read_text()
    assert not (killed.parent / "checkpoints").exists(), "they are gone when the training is done"


@pytest.mark.skipif(
    not os.environ.get("RMIXER_TEST_LONG"), reason="takes half a minute: set RMIXER_TEST_LONG=1"
)
def test_a_run_that_is_stopped_goes_on_where_it_was(place: Workplace) -> None:
    """Ctrl-C, then the same command again: the job says so, and its samples are counted once."""
    place.write({**JOB, "epochs": 4, "batch_size": 256, "threads": 1})
    runner = place.start("run", "jobs.yaml", "--json")
    job = place.paths().root / "jobs"

    def steps() -> int:
        pages = list(job.glob("*/attempts/*/progress"))
        page = read_progress(str(pages[0])) if pages else None
        return int(page["step"]) if page else 0

    wait_until(lambda: steps() > 10, "steps", seconds=120.0)
    runner.send_signal(signal.SIGINT)
    assert place.wait(runner).returncode == 130
    done = place.run("run", "jobs.yaml", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["jobs"]
    document: dict[str, Any] = found
    assert document["state"] == "SUCCEEDED"
    rows = 4 * 10_800
    assert abs(document["samples"] - rows) < 0.05 * rows
    log = (place.directory / document["log"]).read_text()
    assert "going on from step" in log


def test_a_loop_of_ones_own_goes_on_where_it_was(place: Workplace) -> None:
    """`rmixer.job()`: Ctrl-C, a checkpoint in the grace time, and the same command goes on from it."""
    script = Path(__file__).parents[2] / "examples" / "own_loop.py"
    command = [sys.executable, str(script), "--steps", "1200", "--keep-every", "100000"]
    place.write({"name": "own", "command": command, "threads": 1})
    runner = place.start("run", "jobs.yaml", "--json")
    job = place.paths().root / "jobs" / "own"

    def steps() -> int:
        page = read_progress(str(job / "attempts" / "1" / "progress"))
        return int(page["step"]) if page else 0

    wait_until(lambda: steps() > 5, "steps", seconds=120.0)
    runner.send_signal(signal.SIGINT)
    assert place.wait(runner).returncode == 130
    assert [path.name for path in (job / "checkpoints").iterdir()] == ["checkpoint"]
    done = place.run("run", "jobs.yaml", "--json")
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)["jobs"]
    assert document["state"] == "SUCCEEDED"
    assert document["samples"] == 1200 * 256
    assert document["metrics"]["accuracy"] > 0
    assert "going on from step" in (place.directory / document["log"]).read_text()
