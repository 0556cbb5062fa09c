"""Jobs that share a real GPU: MPS, limits, ends that harm no neighbour, processes of others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmixer.resources import GIB, MIB

needs_mps = pytest.mark.skipif(
    shutil.which("nvidia-cuda-mps-control") is None, reason="no nvidia-cuda-mps-control"
)

#: Trains until it has made so many steps; prints its loss, which does not depend on neighbours.
TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 512, device="cuda")
for step in range(int(sys.argv[1])):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""
#: One kernel after the other, without end.
ENDLESS = """
import torch
x = torch.randn(8192, 8192, device="cuda")
while True:
    x = (x @ x).clamp(-1, 1)
"""
#: Takes the memory of the GPU until there is none.
GREEDY = """
import torch
held = []
while True:
    held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda").zero_())
"""
#: Reads beyond the end of a tensor, which a kernel of torch asserts against.
FAULTY = """
import torch
x = torch.zeros(4, device="cuda")
print(x[torch.tensor([1 << 20], device="cuda")].sum().item())
"""


def run(folder: Path, *jobs: dict[str, Any], words: tuple[str, ...] = (), code: int = 0) -> dict:
    """The report of a run of these jobs."""
    (folder / "jobs.yaml").write_text(json.dumps({"jobs": list(jobs)}))
    home = {"RMIXER_HOME": str(folder / "home"), "RMIXER_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "rmixer", "run", "jobs.yaml", "--json", "--gpus", "0", *words],
        cwd=folder, env={**os.environ, **home}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    document: dict = json.loads(done.stdout)
    return document


def job(folder: Path, name: str, program: str, *words: str, **keys: Any) -> dict[str, Any]:
    """A job on the GPU, in a shell so that it is not traced before."""
    (folder / f"{name}.py").write_text(program)
    command = " ".join([sys.executable, f"{name}.py", *words])
    return {"name": name, "command": ["sh", "-c", f"{command}; exit $?"], "device": "gpu", **keys}


def loss_of(document: dict, name: str) -> str:
    found = next(one for one in document["jobs"] if one["name"] == name)
    return next(line for line in Path(found["log"]).read_text().splitlines() if "loss" in line)


@pytest.mark.parametrize("mode", ["time-slice", pytest.param("mps", marks=needs_mps)])
def test_one_that_is_stopped_in_a_kernel_harms_no_neighbour(tmp_path: Path, mode: str) -> None:
    """The others end with the loss that they have alone, and a new one can begin."""
    alone = run(tmp_path, job(tmp_path, "a", TRAIN, "3000"), words=("--name", "alone"))
    document = run(
        tmp_path,
        job(tmp_path, "a", TRAIN, "3000", gpu_memory="2GiB"),
        job(tmp_path, "endless", ENDLESS, gpu_memory="3GiB", timeout="15s"),
        job(tmp_path, "b", TRAIN, "3000", gpu_memory="2GiB"),
        words=("--policy", "all-at-once", "--sharing", mode),
        code=1,
    )
    states = {one["name"]: one["state"] for one in document["jobs"]}
    assert states == {"a": "SUCCEEDED", "endless": "TIMEOUT", "b": "SUCCEEDED"}
    assert loss_of(document, "a") == loss_of(document, "b") == loss_of(alone, "a")
    run(tmp_path, job(tmp_path, "c", TRAIN, "10"), words=("--name", "after", "--sharing", mode))


@pytest.mark.parametrize("mode", ["time-slice", pytest.param("mps", marks=needs_mps)])
def test_one_that_outgrows_its_booking_ends_alone(tmp_path: Path, mode: str) -> None:
    """Its first attempt holds no more than was booked; its neighbour is not touched."""
    document = run(
        tmp_path,
        job(tmp_path, "greedy", GREEDY, gpu_memory="2GiB", timeout="60s"),
        job(tmp_path, "a", TRAIN, "3000", gpu_memory="2GiB"),
        words=("--policy", "all-at-once", "--sharing", mode),
        code=1,
    )
    greedy, a = document["jobs"]
    assert (greedy["attempts"][0]["state"], greedy["attempts"][0]["reason"]) == (
        "OUT_OF_MEMORY",
        "gpu",
    )
    assert (a["state"], len(a["attempts"])) == ("SUCCEEDED", 1)


@needs_mps
def test_a_fault_under_mps_costs_the_neighbours_no_try(tmp_path: Path) -> None:
    """They are run again and succeed; who faulted fails."""
    document = run(
        tmp_path,
        job(tmp_path, "a", TRAIN, "20000", gpu_memory="2GiB"),
        job(tmp_path, "faulty", FAULTY, gpu_memory="2GiB"),
        words=("--policy", "all-at-once", "--sharing", "mps"),
        code=1,
    )
    a, faulty = document["jobs"]
    assert a["state"] == "SUCCEEDED"
    assert a["tries"] <= 1
    assert faulty["state"] == "FAILED"
    assert faulty["reason"].startswith("CUDA fault")


def test_memory_of_others_is_booked_out(tmp_path: Path) -> None:
    """A process that is not of the run is named, and lives."""
    program = "import torch, time; x = torch.zeros(1 << 30, dtype=torch.uint8, device='cuda'); print(1, flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        document = run(tmp_path, job(tmp_path, "a", TRAIN, "200", gpu_memory="2GiB"))
        gpu = document["devices"][1]
        assert gpu["memory"]["foreign_bytes"] > GIB - 100 * MIB
        assert any(f"pid {other.pid}" in text for text in document["warnings"])
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
