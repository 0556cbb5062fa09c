"""Estimates of memory on a GPU against what a real one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmixer.estimate.contexts import STATED_CONTEXT
from rmixer.resources import GIB, MIB

#: A training step of an ordinary script; ends by writing what the allocator had reserved at most.
TRAIN = """
import json, sys, torch
from torch import nn
torch.manual_seed(0)
tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(4))
head = nn.Sequential(nn.Linear(4 * 64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
model = nn.ModuleList([tables, head]).to("cuda")
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=0.01)
for step in range(12):
    ids = torch.randint(0, 200_000, (4, 4096, 1), device="cuda")
    x = torch.cat([table(ids[i]) for i, table in enumerate(tables)], 1)
    loss = head(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
told = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
open("told.json", "w").write(json.dumps(told))
"""


def rmixer(folder: Path, *words: str) -> dict:
    """The document that a verb prints."""
    home = {"RMIXER_HOME": str(folder / "home"), "RMIXER_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "rmixer", *words],
        cwd=folder, env={**os.environ, **home}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad"])
def test_the_traced_peak_is_what_the_allocator_reserves(tmp_path: Path, optimizer: str) -> None:
    """Within 5 %, and never under by more than what one segment is."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = ("estimate", "--json", "--device", "cuda", "--", sys.executable, "train.py", optimizer)
    (estimate,) = rmixer(tmp_path, *words)["jobs"]
    assert estimate["source"] == "trace", estimate["notes"]
    subprocess.run([sys.executable, "train.py", optimizer], cwd=tmp_path, check=True)
    allocated, reserved = json.loads((tmp_path / "told.json").read_text())
    assert estimate["bytes"]["allocated_peak"] == pytest.approx(allocated, rel=0.05)
    assert estimate["bytes"]["reserved_peak"] == pytest.approx(reserved, rel=0.05, abs=20 * MIB)


def test_a_run_measures_and_books_what_was_measured(tmp_path: Path) -> None:
    """The first books the trace, the second the driver's and the allocator's peak."""
    (tmp_path / "train.py").write_text(TRAIN)
    job = {"name": "t", "command": [sys.executable, "train.py", "Adam"], "device": "gpu"}
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": [job]}))
    first = rmixer(tmp_path, "run", "jobs.yaml", "--json", "--name", "a")["jobs"][0]
    _, reserved = json.loads((tmp_path / "told.json").read_text())
    memory = first["device_memory"]
    assert reserved < memory["measured_peak_bytes"] < reserved + 2 * GIB
    assert memory["measured_peak_bytes"] < memory["reserved_bytes"] < 2 * reserved + 2 * GIB
    assert first["samples"] == 12 * 4096
    again = rmixer(tmp_path, "run", "jobs.yaml", "--json", "--name", "b")["jobs"][0]
    assert again["device_memory"]["estimated_bytes"] == memory["measured_peak_bytes"]


def test_the_context_is_measured(tmp_path: Path) -> None:
    """It is some hundred MiB, and kept."""
    (context, *_) = rmixer(tmp_path, "doctor", "--measure-context", "--json")["gpus"]
    assert context["context_source"] == "measured"
    assert 100 * MIB < context["context_bytes"] < 2 * STATED_CONTEXT
