"""Memory on a GPU: measured, learned, booked, and traced before a job runs. The GPU is a fake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace

from doubles.fake_gpus import FakeGpus, make_gpus
from rmixer import events as ev
from rmixer.resources import GIB, MIB
from rmixer.state import MEMORY_MARGIN
from rmixer.store import Store

pytestmark = pytest.mark.e2e


@pytest.fixture
def gpu(place: Workplace, gpu_library: Path) -> FakeGpus:
    """A GPU of 4 GiB for the runs of the workplace."""
    fake = make_gpus(place.directory / "gpus", gpu_library, 4 * GIB)
    place.environment |= fake.environment
    return fake


def holds(gpu: FakeGpus, name: str, *curve: str, **keys: Any) -> dict[str, Any]:
    """A job that is no Python of ours: a shell whose child holds memory of the GPU."""
    words = " ".join([PYTHON, "-S", str(gpu.job), *curve])
    return {"name": name, "command": ["sh", "-c", f"{words}; true"], "device": "gpu", **keys}


def run(place: Workplace, *arguments: str) -> dict[str, Any]:
    done = place.run("run", "jobs.yaml", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def on_device(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(j for j in document["jobs"] if j["name"] == name)["device_memory"]
    return found


def test_a_peak_is_measured_and_the_next_run_books_it(place: Workplace, gpu: FakeGpus) -> None:
    """First the whole GPU; then what its processes were seen to hold, with room above it."""
    place.write(holds(gpu, "a", "1.2:300", "1.2:900", "1.2:500"))
    first = run(place, "--name", "first")
    assert on_device(first, "a")["reserved_bytes"] == 4 * GIB
    assert on_device(first, "a")["measured_peak_bytes"] == 900 * MIB
    assert first["devices"][1]["memory"]["measured_peak_bytes"] == 900 * MIB
    again = on_device(run(place, "--name", "again"), "a")
    assert again["reserved_bytes"] == int(900 * MIB * MEMORY_MARGIN)
    assert again["estimated_bytes"] == 900 * MIB
    store = Store(place.directory / "home" / "store.sqlite")
    assert store.estimate_errors("history-gpu") == (1.0,)


def test_jobs_share_a_gpu_as_far_as_it_has_room(place: Workplace, gpu: FakeGpus) -> None:
    """Two of 1.5 GiB run together in 4 GiB, a third waits, with the numbers."""
    jobs = [holds(gpu, name, "2:1500", gpu_memory="1500MiB") for name in "abc"]
    place.write(*jobs)
    run(place, "--policy", "all-at-once")
    waited = [
        e for e in place.events() if isinstance(e, ev.Waiting) and e.reason.code == "GpuMemory"
    ]
    assert [place.state().jobs[event.job].spec.name for event in waited][:1] == ["c"]
    assert waited[0].reason.need == 1500 * MIB
    assert waited[0].reason.have == 4 * GIB - 3000 * MIB


def test_a_member_of_a_sweep_teaches_the_others(place: Workplace, gpu: FakeGpus) -> None:
    """The first books the whole GPU, the others what it was seen to hold: they fit together."""
    words = [PYTHON, "-S", str(gpu.job), "1.2:700", "--lr", "{lr}"]
    place.write({"name": "s-{lr}", "command": words, "device": "gpu", "sweep": {"lr": [1, 2, 3]}})
    document = run(place, "--policy", "all-at-once")
    reserved = [job["device_memory"]["reserved_bytes"] for job in document["jobs"]]
    assert reserved[0] == 4 * GIB
    assert reserved[1:] == [int(700 * MIB * MEMORY_MARGIN)] * 2


TRAIN = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(2000, 4000), torch.nn.Linear(4000, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(8):
    loss = model(torch.randn(64, 2000, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
open("steps", "a").write(f"{step} {device}\\n")
"""


def test_a_script_for_the_gpu_is_traced_before_it_runs(place: Workplace, gpu: FakeGpus) -> None:
    """It books weights, gradients and Adam's state, and the context; not the whole GPU."""
    (place.directory / "train.py").write_text(TRAIN)
    place.write({"name": "t", "command": [PYTHON, "train.py"], "device": "gpu"})
    document = run(place)
    weights = 4 * (2000 * 4000 + 4000 + 4001)
    found = on_device(document, "t")
    assert 4 * weights + GIB < found["estimated_bytes"] < 6 * weights + 1.2 * GIB
    assert found["estimated_bytes"] < found["reserved_bytes"] < 2 * GIB
    assert (place.directory / "steps").read_text() == "7 cpu\n", "it is trained once"
    (job,) = document["jobs"]
    assert job["samples"] == 8 * 64, "the steps of somebody else's script are counted"


def test_one_that_can_never_fit_is_refused_with_the_options(
    place: Workplace, gpu: FakeGpus
) -> None:
    """Nothing has been started; the numbers are the trace's."""
    (place.directory / "train.py").write_text(TRAIN.replace("4000", "80000"))
    place.write({"name": "t", "command": [PYTHON, "train.py"], "device": "gpu"})
    done = place.run("run", "jobs.yaml")
    assert done.returncode == 4, done.stderr
    assert "optimizer" in done.stderr
    assert "4.0 GiB" in done.stderr
    assert not (place.directory / "steps").exists()
