"""The training process, from its configuration to its result, its model and its exit code."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from rmixer.data import generate
from rmixer.data.generated import sizes_of
from rmixer.errors import StorageError, UsageError
from rmixer.launch import page
from rmixer.train import artifact, worker
from rmixer.train.metrics import auc

torch.set_num_threads(1)

JobWriter = Callable[..., Path]
DATA = {"format": "generated", "like": "criteo", "rows": 4000, "max_table_rows": 50}
DLRM = {"embedding_dim": 4, "bottom_mlp": [16, 4], "top_mlp": [16]}
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """`worker.main` takes SIGTERM; give it back."""
    saved = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, saved)


@pytest.fixture
def job(tmp_path: Path) -> JobWriter:
    def write(name: str = "job", **changed: object) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        config = {
            "schema_version": 1,
            "name": name,
            "model": "dlrm",
            "params": DLRM,
            "optimizer": {"name": "rowwise_adagrad", "lr": 0.02},
            "batch_size": 128,
            "epochs": 1,
            "steps": None,
            "seed": 0,
            "data": DATA,
            "threads": 1,
            "cache_dir": str(tmp_path / "cache"),
            "progress_path": str(folder / "progress"),
            "result_path": str(folder / "result.json"),
            "model_dir": str(folder / "model"),
            "stop_grace_seconds": 10,
            **changed,
        }
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return write


def run(folder: Path) -> int:
    return worker.main([str(folder / "config.json")])


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_job_leaves_its_result_its_progress_and_its_model(
    job: JobWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job()
    assert run(folder) == 0
    found = result(folder)
    assert found["schema_version"] == 1
    assert found["data"]["rows"] == 4000
    assert found["samples"] == found["data"]["train_rows"]
    assert found["steps"] == -(-found["samples"] // 128)
    assert found["epochs"] == 1
    assert found["train_seconds"] > 0
    assert 0.5 < found["metrics"]["auc"] <= 1
    assert found["metrics"]["logloss"] > 0
    assert found["metrics"]["train_loss"] > 0
    assert found["model"]["bytes"] == 4 * found["model"]["parameters"]
    progress = page.read_progress(str(folder / "progress"))
    assert progress is not None
    assert progress["phase"] == page.DONE
    assert progress["step"] == progress["total_steps"] == found["steps"]
    assert progress["samples"] == found["samples"]
    assert progress["moved_bytes"] > 0
    assert progress["first_step_at"] > 0
    assert min(progress[f"{phase}_seconds"] for phase in ("input", "forward", "backward")) > 0
    assert {p.name for p in (folder / "model").iterdir()} == {
        "config.json",
        "weights.pt",
        "vocabulary.npz",
    }
    assert "done: " in capsys.readouterr().out
    assert not list(folder.glob("*.part")) + list(folder.glob(".*.part"))


def test_the_same_seed_gives_the_same_numbers_to_the_last_digit(job: JobWriter) -> None:
    folders = [job("a"), job("b"), job("other", seed=1)]
    for folder in folders:
        assert run(folder) == 0
    a, b, other = (result(folder)["metrics"] for folder in folders)
    assert a == b
    assert a != other
    weights = [torch.load(f / "model" / "weights.pt", weights_only=True) for f in folders[:2]]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_two_at_once_give_the_numbers_of_one_alone(job: JobWriter) -> None:
    folders = [job(name, epochs=2) for name in ("alone", "left", "right")]
    command = [sys.executable, "-m", "rmixer.train.worker"]
    subprocess.run([*command, str(folders[0] / "config.json")], check=True, capture_output=True)
    running = [
        subprocess.Popen([*command, str(f / "config.json")], stdout=subprocess.DEVNULL)
        for f in folders[1:]
    ]
    assert [process.wait() for process in running] == [0, 0]
    metrics = [result(folder)["metrics"] for folder in folders]
    assert metrics[0] == metrics[1] == metrics[2]


def test_steps_end_the_training_however_many_epochs_that_is(job: JobWriter) -> None:
    for steps, epochs in ((3, 1), (40, 2)):
        folder = job(steps=steps)
        assert run(folder) == 0
        assert (result(folder)["steps"], result(folder)["epochs"]) == (steps, epochs)


def test_without_a_held_out_part_there_is_no_auc(job: JobWriter) -> None:
    folder = job(data={**DATA, "valid": {"fraction": 0}}, steps=2)
    assert run(folder) == 0
    assert result(folder)["metrics"]["auc"] is None


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"model": "drlm"}, 65, "model: unknown model 'drlm'; did you mean 'dlrm'?"),
        ({"model": "no.module:M"}, 65, "cannot be loaded"),
        ({"params": {"embeding_dim": 4}}, 65, "params.embeding_dim: dlrm has no such"),
        ({"optimizer": {"name": "adma"}}, 65, "optimizer.name: unknown optimizer 'adma'"),
        ({"data": {"format": "criteo", "path": "/nowhere"}}, 65, "/nowhere: no such file"),
        ({"data": {"format": "criteo"}}, 65, "data.path: is missing"),
        ({"batch_size": 0}, 65, "batch_size"),
        ({"model": "din", "params": {}}, 65, "din needs a behaviour sequence"),
        ({"optimizer": {"name": "sgd", "lr": 1e38}}, 70, "at step"),
    ],
)  # fmt: skip
def test_what_is_not_right_has_its_exit_code_and_one_line(
    job: JobWriter, capsys: pytest.CaptureFixture[str], changed: dict, code: int, message: str
) -> None:
    folder = job(**changed)
    assert run(folder) == code
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (folder / "result.json").exists()
    assert not (folder / "model").exists()


def test_bad_data_ends_with_65_and_names_the_line(
    job: JobWriter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text("0\t1\n")
    assert run(job(data={"format": "criteo", "path": str(path)})) == 65
    assert f"{path}:1: 2 columns; 40 are needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 71, "out of memory"),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: you tried"), 71, "out of memory"),
        (OSError(28, "No space left on device", "/some/file"), 74, "disk full: /some/file"),
        (StorageError("disk full: here"), 74, "disk full: here"),
    ],
)  # fmt: skip
def test_failures_of_the_machine_have_their_exit_codes(
    job: JobWriter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    message: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("rmixer.train.artifact.save", fail)
    assert run(job(steps=1)) == code
    assert message in capsys.readouterr().err


def test_a_configuration_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.main([str(tmp_path / "none.json")]) == 65
    (tmp_path / "half.json").write_text('{"name": "x"')
    assert worker.main([str(tmp_path / "half.json")]) == 65
    assert worker.main([]) == 65
    assert "no job that can be read" in capsys.readouterr().err


def test_sigterm_ends_it_at_a_step_without_a_model(job: JobWriter) -> None:
    folder = job(steps=10_000_000)
    command = [sys.executable, "-m", "rmixer.train.worker", str(folder / "config.json")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    while (progress := page.read_progress(str(folder / "progress"))) is None or progress[
        "step"
    ] < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.stderr is not None
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 143
    assert "stopped after" in error
    assert not (folder / "model").exists()
    assert not (folder / "result.json").exists()


def test_a_model_comes_back_and_predicts_raw_rows(job: JobWriter, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    generate.write("criteo", sizes_of("criteo", rows=3000, max_table_rows=50), path)
    folder = job(data={"format": "criteo", "path": str(path), "valid": {"by": "tail"}})
    assert run(folder) == 0
    for place in (folder, folder / "model"):
        loaded = artifact.load(place)
    assert loaded.schema.sparse[0] == "C1"
    assert not loaded.module.training
    assert "path" not in loaded.config["data"]
    predicted = loaded.predict(path)
    assert predicted.shape == (3000,)
    # The held-out metric again, from raw text: vocabulary and transform are the training's.
    labels = np.array([line[0] == "1" for line in path.read_text().splitlines()])
    logits = np.log(predicted / (1 - predicted.astype(np.float64)))[-300:]
    assert abs(auc(labels[-300:], logits) - result(folder)["metrics"]["auc"]) < 1e-3
    # A file without labels, and a frame.
    unlabelled = tmp_path / "test.tsv"
    unlabelled.write_text(
        "".join(line.split("\t", 1)[1] + "\n" for line in path.read_text().splitlines()[:20])
    )
    # Another batch size may add up in another order: equal to float32's last bits.
    np.testing.assert_allclose(loaded.predict(unlabelled), predicted[:20], rtol=1e-5)
    names = ["label", *loaded.schema.dense, *loaded.schema.sparse]
    frame = pl.read_csv(
        path, separator="\t", has_header=False, new_columns=names, infer_schema=False
    )
    np.testing.assert_allclose(loaded.predict(frame[:20]), predicted[:20], rtol=1e-5)
    np.testing.assert_allclose(loaded.predict(frame[:20].drop("label")), predicted[:20], rtol=1e-5)


def test_a_behaviour_model_predicts_frames_with_empty_histories_and_unknown_items(
    job: JobWriter,
) -> None:
    data = {"format": "generated", "like": "behaviour", "rows": 3000, "items": 50, "categories": 5}
    folder = job(model="din", params={"embedding_dim": 4}, data=data)
    assert run(folder) == 0
    loaded = artifact.load(folder)
    rows = {
        "hist_items": ["1 2 3", "", None, "999999"],
        "hist_cates": ["1 2 3", "", None, "x"],
        "item": ["4", "5", None, "nowhere"],
        "cate": ["4", "5", None, "x"],
    }
    predicted = loaded.predict(rows)
    assert predicted.shape == (4,)
    assert np.isfinite(predicted).all()


def test_loading_what_is_not_there_or_damaged(job: JobWriter, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model here"):
        artifact.load(tmp_path)
    folder = job(steps=1)
    assert run(folder) == 0
    (folder / "model" / "weights.pt").write_bytes(b"nothing")
    with pytest.raises(StorageError, match="cannot be read"):
        artifact.load(folder)


def test_a_model_of_somebody_else(
    job: JobWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(
        "import torch\n"
        "class Linear(torch.nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(width, 1)\n"
        "    @classmethod\n"
        "    def from_config(cls, params, info):\n"
        "        return cls(len(info.dense))\n"
        "    def forward(self, batch):\n"
        "        return self.layer(batch.dense_BN).squeeze(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = job(model="theirs:Linear", params={"any": 1})
    assert run(folder) == 0
    assert result(folder)["model"]["parameters"] == 14


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs {SHARED}")
def test_din_trains_on_real_behaviour_lists(job: JobWriter) -> None:
    path = SHARED / "amazon_small" / "paddlerec_din_electronics.txt"
    schema = {
        "columns": ["hist_items", "hist_cates", "item", "cate", "label"],
        "label": "label",
        "sparse": ["item", "cate"],
        "sequence": {"hist_items": {"shares": "item"}, "hist_cates": {"shares": "cate"}},
    }
    data = {"format": "csv", "path": str(path), "schema": {**schema, "delimiter": ";"}}
    folder = job(model="din", params={"embedding_dim": 8}, data=data, epochs=30, batch_size=32)
    assert run(folder) == 0
    assert result(folder)["metrics"]["train_loss"] < 0.6
