"""``rmixer profile``: jobs are looked at alone, what they show is kept, and runs start from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace

from doubles.fake_gpus import make_gpus
from rmixer.monitor import discover_node
from rmixer.report.profiles import render_profiles
from rmixer.resources import GIB, MIB
from rmixer.runner.admit import admit
from rmixer.spec import load_jobs_file
from rmixer.store import Store

pytestmark = pytest.mark.e2e

#: A program that waits most of its step, writes what it did, and would go on for long.
WAITS = """
import sys, time
import torch
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    time.sleep(0.02)
    optimizer.zero_grad()
    model(torch.randn(8, 10)).sum().backward()
    optimizer.step()
"""


def profile(place: Workplace, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = place.run("profile", "--json", *arguments)
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_program_is_measured_and_the_next_run_knows_it(place: Workplace) -> None:
    """Its step, its part of a core; its family at once, at half the confidence."""
    (place.directory / "waits.py").write_text(WAITS)
    words = [PYTHON, "waits.py", "60", "--lr", "{lr}"]
    place.write({"name": "w-{lr}", "command": words, "threads": 1, "sweep": {"lr": [1, 2]}})
    first, second = profile(place, "jobs.yaml")["jobs"]
    assert 0.02 < first["step_seconds"] < 0.1
    assert 0 < first["demand"]["cores"] < 0.8
    assert first["steps_per_second_by_threads"].keys() == {"1"}
    assert (first["source"], first["confidence"]) == ("probe", 0.6), "it ended before 4 s"
    assert (second["confidence"], second["step_seconds"]) == (0.3, first["step_seconds"])
    place.write({"name": "later", "command": [*words[:-1], "3"], "threads": 1})
    (later,) = load_jobs_file(place.directory / "jobs.yaml").jobs
    store = Store(place.directory / "home" / "store.sqlite")
    (admitted,) = admit([later], discover_node(), store)
    assert admitted.profile is not None
    assert (admitted.profile.confidence, admitted.profile.source) == (0.3, "probe")


def test_a_program_that_cannot_run(place: Workplace) -> None:
    """Exit code 1 with its last words; one that is not there is 127, a bad device 2."""
    done = place.run("profile", "--", PYTHON, "-c", "raise SystemExit('no such table')")
    assert done.returncode == 1
    assert "no such table" in done.stderr
    assert place.run("profile", "--", "no-such-program").returncode == 127
    done = place.run("profile", "--device", "gpu", "--", "true")
    assert done.returncode == 2
    assert "name a kind: K80" in done.stderr


def test_a_gpu_tells_what_it_tells(place: Workplace, gpu_library: Path) -> None:
    """A program on a GPU: its share of it and its memory are measured; the rest is null."""
    gpu = make_gpus(place.directory / "gpus", gpu_library, 4 * GIB)
    place.environment |= gpu.environment
    gpu.tell("utilisation 40 15")
    place.write({
        "name": "g", "device": "gpu", "threads": 1,
        "command": [PYTHON, "-S", str(gpu.job), "60:300"],
    })  # fmt: skip
    document = profile(place, "jobs.yaml", "--seconds", "6")
    (job,), (card,) = document["jobs"], document["gpus"]
    assert (job["demand"]["compute"], job["demand"]["bandwidth"]) == (0.25, 0.15)
    assert job["demand"]["transfer"] is None
    assert job["step_seconds"] is None
    assert job["device_memory_bytes"] == 300 * MIB
    assert (card["utilisation"], card["pcie_sent_bytes_per_second"]) == (0.4, None)
    table = render_profiles(document)
    assert "busy 40 %" in table
    assert "PCIe sent n/a" in table


def test_a_gpu_that_is_somewhere_else(place: Workplace) -> None:
    """A static profile for a named kind, of a script that never runs for real."""
    (place.directory / "waits.py").write_text(WAITS)
    command = ["--", PYTHON, "waits.py", "5"]
    (job,) = profile(place, "--device", "A100", *command)["jobs"]
    assert (job["device"], job["source"], job["label"]) == ("A100", "static", "compute")
    assert 0 < job["step_seconds"] < 0.01
    assert 0 < job["demand"]["compute"] < 1
    assert job["demand"]["storage"] is None
    assert job["device_memory_bytes"] > GIB // 2, "the context is in it"
