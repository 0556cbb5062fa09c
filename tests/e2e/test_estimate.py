"""``rmixer estimate``: figures before anything is trained, for models of ours and for any program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caging import needs_groups
from rmixer.estimate.program import estimate_command
from rmixer.spec import job_from_command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

#: The tables of MLPerf's DLRM (rows; dimension 128).
MLPERF = [
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
]  # fmt: skip
TABLE_BYTES = 104_542_509_056


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One store for all, so that the machine's baseline is measured once."""
    place = tmp_path_factory.mktemp("home")
    places = {"RMIXER_HOME": str(place / "home"), "RMIXER_CACHE": str(place / "cache")}
    return {**os.environ, **places}


def estimate(home: dict[str, str], cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmixer", "estimate", *words]
    return subprocess.run(command, env=home, cwd=cwd, capture_output=True, text=True, check=False)


def write(folder: Path, *jobs: Any) -> Path:
    file = folder / "jobs.yaml"
    file.write_text(json.dumps({"jobs": list(jobs)}))
    return file


def mlperf(optimizer: str) -> dict[str, Any]:
    return {
        "name": f"big-{optimizer}",
        "model": "dlrm",
        "params": {"embedding_dim": 128, "table_rows": MLPERF},
        "optimizer": {"name": optimizer},
    }


def test_tables_of_204_million_rows(home: dict[str, str], tmp_path: Path) -> None:
    """They are 104.5 GB of parameters, refused on 80 GiB with the options, on any machine."""
    heavy = mlperf("adam")
    heavy["optimizer"] = {"name": "adam", "weight_decay": 1e-6}  # so gradients are dense
    jobs = write(tmp_path, mlperf("rowwise_adagrad"), heavy)
    done = estimate(
        home, tmp_path, str(jobs), "--device", "cuda", "--device-memory", "80GiB", "--json"
    )
    assert done.returncode == 4, done.stderr
    sparse, dense = json.loads(done.stdout)["jobs"]
    assert TABLE_BYTES <= sparse["bytes"]["parameters"] < TABLE_BYTES + 100 * 2**20
    assert dense["bytes"]["total"] > 4 * TABLE_BYTES
    assert sparse["bytes"]["total"] < 1.1 * TABLE_BYTES
    assert "embedding_dim" in done.stderr
    assert "sparse optimizer" in done.stderr
    assert "can never fit" in done.stderr
    assert sparse["source"] == "trace"
    assert sparse["peak"]["largest"][0]["name"].startswith("embedding.weight")


def test_a_small_job_fits_and_says_where_its_peak_is(home: dict[str, str], tmp_path: Path) -> None:
    """The table for people has every part, the JSON the documented keys; nothing is trained."""
    job = {
        "name": "small",
        "model": "deepfm",
        "data": {"format": "generated", "like": "criteo", "rows": 5000},
        "batch_size": 256,
        "threads": 1,
    }
    done = estimate(home, tmp_path, str(write(tmp_path, job)), "--json")
    assert done.returncode == 0, done.stderr
    (small,) = json.loads(done.stdout)["jobs"]
    assert set(small["bytes"]) == {
        "parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries",
        "allocated_peak", "reserved_peak", "context", "total",
    }  # fmt: skip
    assert 200 * 2**20 < small["host_bytes"] < 2 * 2**30
    assert small["reserve"]["host_bytes"] > 0
    assert not (tmp_path / "runs").exists()
    shown = estimate(home, tmp_path, "jobs.yaml")
    assert shown.returncode == 0
    assert "small" in shown.stdout
    assert "peak at" in shown.stdout
    assert "to book: what is set aside" in shown.stdout


SCRIPT = """
import torch, sys
model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(64, 2048)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, loss.item(), flush=True)
open("finished", "w").close()
"""


def test_an_unchanged_script_is_traced(home: dict[str, str], tmp_path: Path) -> None:
    """Three steps on fake tensors: the figures are there, and the script never came to its end."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = estimate(home, tmp_path, "--json", "--", sys.executable, "train.py", "100000")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["source"] == "trace"
    assert job["bytes"]["parameters"] == pytest.approx(2048 * 2048 * 4, rel=0.01)
    assert job["bytes"]["optimizer_state"] == pytest.approx(2 * 2048 * 2048 * 4, rel=0.01)
    assert not (tmp_path / "finished").exists()


def test_a_program_without_torch_is_probed(home: dict[str, str], tmp_path: Path) -> None:
    """Its process tree is watched until it ends; the answer says that it was a probe."""
    text = "import time; block = bytearray(200 << 20); time.sleep(1.5)"
    done = estimate(home, tmp_path, "--json", "--", sys.executable, "-c", text)
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["source"] == "probe"
    assert 200 * 2**20 < job["host_bytes"] < 300 * 2**20
    assert any("did not import torch" in note for note in job["notes"])


@needs_groups
def test_a_probe_is_in_a_memory_cage(tmp_path: Path) -> None:
    """A program that takes more than it may is ended there, and the answer says so."""
    text = "x = [bytearray(1 << 20) for _ in range(400)]"
    job = job_from_command([sys.executable, "-c", text], tmp_path)
    answer = estimate_command(job, False, dict(os.environ), 30.0, limit_bytes=100 << 20)
    assert "more than the 100 MiB" in answer["error"]


def test_a_program_that_makes_no_step_never_hangs(home: dict[str, str], tmp_path: Path) -> None:
    """The time limit ends it and all that it started, and the note says what to do."""
    text = "import subprocess; subprocess.run(['setsid', '--fork', 'sleep', '4711'])"
    done = estimate(home, tmp_path, "--json", "--limit", "2", "--", sys.executable, "-c", text)
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["source"] == "probe"
    assert subprocess.run(["pgrep", "-f", "sleep 4711"], check=False).returncode == 1


def test_a_program_that_fails_is_told_with_its_words(home: dict[str, str], tmp_path: Path) -> None:
    """Exit code 1 and the last line of what the program said, once."""
    done = estimate(
        home, tmp_path, "--json", "--", sys.executable, "-c", "raise SystemExit('no such data')"
    )
    assert done.returncode == 1
    assert done.stderr.count("no such data") == 1
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["source"] == "default"
    assert "no such data" in job["failure"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device-memory", "80GiB"], "--device"),
        (["--device", "cuda", "--device-memory", "lots"], "lots"),
        (["--device", "cuda", "--device-memory", "80"], "80GiB"),
        (["--device", "tpu"], "tpu"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_options_that_are_not_right(
    home: dict[str, str], tmp_path: Path, words: list[str], told: str
) -> None:
    """Exit code 2, naming the option."""
    done = estimate(home, tmp_path, str(write(tmp_path, mlperf("sgd"))), *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_neither_data_nor_tables(home: dict[str, str], tmp_path: Path) -> None:
    """A model of which no table size is known gets the default, and a note that says why."""
    done = estimate(home, tmp_path, str(write(tmp_path, {"name": "a", "model": "dlrm"})), "--json")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["source"] == "default"
    assert any("table_rows" in note for note in job["notes"])


def test_a_wrapper_counts_once(home: dict[str, str], tmp_path: Path) -> None:
    """A shell around the program adds its own few MiB, not the program again."""
    (tmp_path / "train.py").write_text(SCRIPT)
    sizes = []
    for words in ([sys.executable, "train.py", "9"], ["sh", "-c", "python train.py 9; true"]):
        environment = {**home, "PATH": f"{Path(sys.executable).parent}:{home['PATH']}"}
        done = estimate(environment, tmp_path, "--json", "--", *words)
        (job,) = json.loads(done.stdout)["jobs"]
        assert job["source"] == "trace", job["notes"]
        sizes.append(job["host_bytes"])
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_a_command_on_a_gpu_is_refused_too(home: dict[str, str], tmp_path: Path) -> None:
    """The job's own ``device: gpu`` is what it is estimated for; exit code 4."""
    text = SCRIPT.replace("2048", "60000").replace("torch.randn(64", "torch.randn(1")
    (tmp_path / "train.py").write_text(text)
    job = {"name": "b", "command": [sys.executable, "train.py", "9"], "device": "gpu"}
    words = [str(write(tmp_path, job)), "--device", "cuda", "--device-memory", "20GiB", "--json"]
    done = estimate(home, tmp_path, *words)
    assert done.returncode == 4, done.stdout
    own = json.loads(estimate(home, tmp_path, "jobs.yaml", "--json").stdout)["jobs"][0]
    assert own["device"] == "cuda" or "NVIDIA" in own["device"]


def test_torch_that_is_looked_for_before_it_is_imported(
    home: dict[str, str], tmp_path: Path
) -> None:
    """Libraries ask whether torch is there; the program is traced all the same."""
    ask = "import importlib.util as u; assert u.find_spec('torch') and u.find_spec('torch')\n"
    (tmp_path / "train.py").write_text(ask + SCRIPT)
    done = estimate(home, tmp_path, "--json", "--", sys.executable, "train.py", "100000")
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["source"] == "trace", job["notes"]
    assert not (tmp_path / "finished").exists()
