"""What a right jobs file becomes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from rmixer.errors import SpecError
from rmixer.model import JobSpec
from rmixer.spec import (
    CommandNotFoundError,
    JobsFile,
    job_from_command,
    jobs_from_dicts,
    json_schema,
    load_jobs_file,
)

DATA = "{format: generated, like: criteo, rows: 100}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the jobs file lies."""
    return tmp_path


def read(folder: Path, text: str, *, require_data: bool = True) -> JobsFile:
    file = folder / "jobs.yaml"
    file.write_text(text)
    return load_jobs_file(file, require_data=require_data)


def test_the_example_of_the_design(folder: Path) -> None:
    """A sweep of a model and a command in one file, with defaults."""
    (folder / "train.tsv").write_text("1\n")
    (folder / "train.py").touch()
    jobs = read(
        folder,
        "defaults: {data: {format: criteo, path: train.tsv}, epochs: 1, retries: 2}\n"
        "jobs:\n"
        "  - name: dlrm-{lr}\n"
        "    model: dlrm\n"
        "    params: {embedding_dim: 16, bottom_mlp: [512, 256, 64, 16], top_mlp: [512, 256]}\n"
        '    optimizer: {name: rowwise_adagrad, lr: "{lr}"}\n'
        "    batch_size: 2048\n"
        "    sweep: {lr: [0.1, 0.03, 1e-2]}\n"
        "  - name: theirs\n"
        "    command: python train.py --lr 0.1\n"
        "    gpu_memory: 6GiB\n",
    ).jobs
    assert [job.name for job in jobs] == ["dlrm-0.1", "dlrm-0.03", "dlrm-0.01", "theirs"]
    assert [job.payload["optimizer"]["lr"] for job in jobs[:3]] == [0.1, 0.03, 0.01]
    assert {job.kind for job in jobs[:3]} == {"model"}
    assert jobs[0].payload["data"] == {"format": "criteo", "path": str(folder / "train.tsv")}
    assert [job.retries for job in jobs] == [2] * 4
    theirs = jobs[3]
    assert theirs.kind == "command"
    assert theirs.payload["argv"][1:] == ["train.py", "--lr", "0.1"]
    assert theirs.payload["workdir"] == str(folder)
    assert theirs.gpu_memory == 6 * 1024**3


def test_every_job_is_json(folder: Path) -> None:
    """A job goes through the event log and comes back equal."""
    for job in read(
        folder,
        "jobs:\n"
        f"  - {{name: a, model: dlrm, data: {DATA}, profile: {{demand: {{cores: 1}}}}, fuse: auto}}\n"
        "  - {name: b, command: [echo, 1, 0.5, true], env: {A: 1, B: x, C: false}, after: a}\n",
    ).jobs:
        fields = json.loads(json.dumps(asdict(job)))
        assert JobSpec(**{**fields, "after": tuple(fields["after"])}) == job


def test_defaults_of_a_training(folder: Path) -> None:
    """What a file does not say."""
    job = read(folder, f"jobs: [{{name: a, model: deepfm, data: {DATA}}}]").jobs[0]
    payload = job.payload
    assert (payload["batch_size"], payload["epochs"], payload["seed"]) == (2048, 1, 0)
    assert payload["steps"] is None
    assert payload["optimizer"]["lr"] > 0
    assert (job.device, job.retries, job.priority, job.total_steps) == ("auto", 0, 0, None)
    assert (job.threads, job.memory, job.gpu_memory, job.timeout_seconds) == (None,) * 4


def test_every_key_reaches_the_job(folder: Path) -> None:
    """Sizes are bytes, durations seconds."""
    job = read(
        folder,
        "jobs:\n"
        f"  - {{name: a, model: deepfm, data: {DATA}, steps: 7, seed: 3, epochs: 2, batch_size: 0x10,\n"
        "     device: GPU-5fd4b2b6-0000, gpus: 1, threads: 2, memory: 512MiB, gpu_memory: 2GB,\n"
        "     retries: 100, timeout: 01:30:00, priority: -5, env: {A: 1e-3}}\n",
    ).jobs[0]
    assert (job.device, job.gpus, job.threads) == ("GPU-5fd4b2b6-0000", 1, 2)
    assert (job.memory, job.gpu_memory) == (512 * 1024**2, 2 * 1000**3)
    assert (job.retries, job.timeout_seconds, job.priority) == (100, 5400.0, -5)
    assert (job.total_steps, job.payload["batch_size"], job.payload["seed"]) == (7, 16, 3)
    assert job.payload["env"] == {"A": "0.001"}


def test_yaml_is_1_2(folder: Path) -> None:
    """``1e-3`` is a number, ``on`` is text, a date is text."""
    job = read(folder, "jobs: [{name: on, command: [echo, on, no, 1e-3, 2024-01-31, 010]}]").jobs[0]
    assert job.name == "on"
    assert job.payload["argv"][1:] == ["on", "no", "0.001", "2024-01-31", "10"]


def test_anchors_and_merge_keys_work(folder: Path) -> None:
    """YAML's own means of saying something once."""
    jobs = read(
        folder,
        "jobs:\n"
        "  - &base {name: a, command: echo 1, retries: 3, env: {A: &x true, B: *x}}\n"
        "  - {<<: *base, name: b}\n",
    ).jobs
    assert jobs[1].retries == 3
    assert jobs[1].payload["env"] == {"A": "true", "B": "true"}


def test_maps_of_the_defaults_are_merged_one_level_deep(folder: Path) -> None:
    """data, optimizer, params and env are merged, everything else is replaced."""
    jobs = read(
        folder,
        "defaults:\n"
        "  data: {format: generated, like: criteo, rows: 100, valid: {fraction: 0.2, seed: 5}}\n"
        "  optimizer: {name: sgd, lr: 0.1, momentum: 0.9}\n"
        "  params: {embedding_dim: 8}\n"
        "  env: {A: 1, B: 2}\n"
        "  seed: 4\n"
        "jobs:\n"
        "  - name: a\n"
        "    model: deepfm\n"
        "    data: {rows: 200, valid: {fraction: 0.3}}\n"
        "    optimizer: {lr: 0.5}\n"
        "    params: {mlp: [8]}\n"
        "    env: {B: 3}\n"
        "    seed: 6\n",
    ).jobs
    payload = jobs[0].payload
    assert payload["data"] == {
        "format": "generated", "like": "criteo", "rows": 200, "valid": {"fraction": 0.3},
    }  # fmt: skip
    assert payload["optimizer"] == {"name": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": 0.0}
    assert payload["params"] == {"embedding_dim": 8, "mlp": [8]}
    assert payload["env"] == {"A": "1", "B": "3"}
    assert payload["seed"] == 6


def test_a_default_of_another_kind_is_not_merged(folder: Path) -> None:
    """Another format, optimizer or model does not get the options of the default one."""
    (folder / "x.tsv").write_text("1")
    job = read(
        folder,
        "defaults:\n"
        "  data: {format: generated, like: criteo, rows: 100}\n"
        "  model: dlrm\n"
        "  params: {bottom_mlp: [8, 16]}\n"
        "  optimizer: {name: sgd, momentum: 0.9}\n"
        "jobs:\n"
        "  - name: a\n"
        "    model: deepfm\n"
        "    data: {format: criteo, path: x.tsv}\n"
        "    optimizer: adam\n",
    ).jobs[0]
    assert job.payload["data"] == {"format": "criteo", "path": str(folder / "x.tsv")}
    assert job.payload["params"] == {}
    assert job.payload["optimizer"]["name"] == "adam"
    assert "momentum" not in job.payload["optimizer"]


def test_defaults_that_make_no_sense_for_a_command_are_left_out(folder: Path) -> None:
    """A command beside trainings does not mind their defaults; a null takes a default away."""
    jobs = read(
        folder,
        f"defaults: {{model: dlrm, data: {DATA}, batch_size: 64, retries: 2, threads: 1}}\n"
        "jobs:\n"
        "  - {name: a}\n"
        "  - {name: b, command: echo 1, threads: null}\n",
    ).jobs
    assert [job.kind for job in jobs] == ["model", "command"]
    assert set(jobs[1].payload) == {"argv", "workdir", "env"}
    assert (jobs[1].retries, jobs[1].threads) == (2, None)


def test_a_problem_of_a_default_is_told_where_it_is_written(folder: Path) -> None:
    """A bad value that a job inherits is reported once, in ``defaults``."""
    with pytest.raises(SpecError) as caught:
        read(
            folder,
            f"defaults:\n  optimizer: {{name: sgd, lr: -1}}\n  data: {DATA}\n"
            "jobs:\n  - {name: a, model: dlrm}\n  - {name: b, model: deepfm}\n",
        )
    assert caught.value.line == 2
    assert caught.value.key == "defaults.optimizer.lr"
    assert "\n" not in str(caught.value)


def test_paths_are_relative_to_the_jobs_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to where RMixer is called; ``~`` is the home directory."""
    (folder / "sub").mkdir()
    (folder / "sub" / "x.tsv").write_text("1")
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(folder))
    jobs = read(
        folder,
        "jobs:\n"
        "  - {name: a, model: dlrm, data: {format: criteo, path: sub/x.tsv}, workdir: sub}\n"
        "  - {name: b, model: dlrm, data: {format: criteo, path: ~/sub/x.tsv}}\n",
    ).jobs
    assert [job.payload["data"]["path"] for job in jobs] == [str(folder / "sub" / "x.tsv")] * 2
    assert jobs[0].payload["workdir"] == str(folder / "sub")


def test_data_may_be_absent_where_it_is_not_required(folder: Path) -> None:
    """An estimate needs no data set."""
    text = "jobs: [{name: a, model: dlrm, params: {table_rows: [10, 20]}}]"
    job = read(folder, text, require_data=False).jobs[0]
    assert job.payload["data"] is None


def test_an_outsiders_model_is_taken_as_it_is(folder: Path) -> None:
    """``pkg.module:Class`` needs no table, and its parameters are its own affair."""
    text = f"jobs: [{{name: a, model: 'theirs.net:Tower', params: {{x: 1}}, data: {DATA}}}]"
    assert read(folder, text).jobs[0].payload["model"] == "theirs.net:Tower"


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ("fixed:k=3", "fixed:k=3"),
        ("{name: fixed, k: 3, threads: 1}", "fixed:k=3,threads=1"),
        ("sequential", "sequential"),
    ],
)
def test_a_file_may_name_its_policy(folder: Path, written: str, policy: str) -> None:
    """As text or as a mapping; both become the form of the command line."""
    assert read(folder, f"policy: {written}\njobs: [{{name: a, command: echo}}]").policy == policy


def test_the_digest_is_of_the_content(folder: Path) -> None:
    """Comments and layout do not count, values do."""
    one = read(folder, "jobs: [{name: a, command: echo 1}]")
    same = read(folder, "# a comment\njobs:\n  - command: echo 1\n    name: a\n")
    other = read(folder, "jobs: [{name: a, command: echo 2}]")
    assert one.digest == same.digest
    assert one.digest != other.digest
    assert same.text.startswith("# a comment")


def test_after_names_a_job_a_member_or_a_whole_sweep(folder: Path) -> None:
    """The name of a sweep as it is written stands for all of its jobs; ids come out."""
    jobs = read(
        folder,
        "jobs:\n"
        "  - {name: 'p {x}', command: echo, sweep: {x: [1, 2]}}\n"
        "  - {name: q, command: echo, sweep: {x: [1, 2]}}\n"
        "  - {name: all, command: echo, after: ['p {x}', q]}\n"
        "  - {name: one, command: echo, after: p 2}\n"
        "  - {name: 'eval-{x}', command: echo, after: 'p {x}', sweep: {x: [1, 2]}}\n",
    ).jobs
    after = {job.name: job.after for job in jobs}
    assert after["all"] == ("p_1", "p_2", "q-1", "q-2")
    assert after["one"] == ("p_2",)
    assert after["eval-1"] == ("p_1",)
    assert after["eval-2"] == ("p_2",)


def test_ids_are_safe_as_file_names(folder: Path) -> None:
    """Slashes, spaces, dots in front and names that fall together are dealt with."""
    jobs = read(
        folder,
        "jobs:\n"
        "  - {name: a/b, command: echo}\n"
        "  - {name: a b, command: echo}\n"
        "  - {name: ../x, command: echo}\n"
        f"  - {{name: {'n' * 300}, command: echo}}\n"
        "  - {name: ümlaut=1.5+x, command: echo}\n",
    ).jobs
    ids = [job.id for job in jobs]
    assert ids == ["a_b", "a_b-2", "_._x", "n" * 100, "_mlaut=1.5+x"]


def test_jobs_from_python_values(folder: Path) -> None:
    """Paths, tuples and numpy numbers are taken; sweeps and defaults work as in a file."""
    (folder / "x.tsv").write_text("1")
    jobs = jobs_from_dicts(
        [
            {
                "name": "a-{b}",
                "model": "dlrm",
                "params": {"top_mlp": (8, 4)},
                "optimizer": {"name": "sgd", "lr": np.float32(0.5)},
                "batch_size": "{b}",
                "sweep": {"b": np.array([2, 4]).tolist()},
            }
        ],
        folder,
        defaults={"data": {"format": "criteo", "path": Path("x.tsv")}, "seed": np.int64(3)},
    )
    assert [job.payload["batch_size"] for job in jobs] == [2, 4]
    assert jobs[0].payload["data"]["path"] == str(folder / "x.tsv")
    assert jobs[0].payload["optimizer"]["lr"] == 0.5
    assert jobs[0].payload["seed"] == 3
    with pytest.raises(SpecError, match=r"jobs: jobs\[0\]\.batchsize: unknown key"):
        jobs_from_dicts([{"name": "a", "command": "echo", "batchsize": 1}], folder)
    with pytest.raises(SpecError, match=r"jobs\[0\]\.params\.x: a value of type object"):
        jobs_from_dicts([{"name": "a", "params": {"x": object()}}], folder)


def test_a_job_from_a_command_line(folder: Path) -> None:
    """Its words are taken as they are, braces and all; it is called after its script."""
    argv = ["echo", "{x} {{y}}", "a | b", "$HOME", ""]
    job = job_from_command(argv, folder, threads=2)
    assert job.payload["argv"] == argv
    assert job.payload["workdir"] == str(folder)
    assert (job.name, job.threads) == ("echo", 2)
    assert job_from_command(["python3", "-u", "dir/train.py", "--x"], folder).name == "train"
    with pytest.raises(CommandNotFoundError, match=r"^command line: command: no such program"):
        job_from_command(["no-such-program-here"], folder)
    with pytest.raises(SpecError, match=r"^command line: threads: 0 is out of range"):
        job_from_command(["echo"], folder, threads=0)


def test_the_json_schema_names_every_key_and_lets_templates_stand() -> None:
    """Editors get the keys, closed, with types; a number may be a template."""
    schema = json_schema()
    json.dumps(schema)
    job = schema["$defs"]["JobEntry"]
    assert set(job["properties"]) == {
        "name", "model", "params", "optimizer", "data", "batch_size", "epochs", "steps", "seed",
        "command", "python", "workdir", "env", "device", "gpus", "threads", "memory", "gpu_memory",
        "retries", "timeout", "priority", "after", "sweep", "fuse", "profile",
    }  # fmt: skip
    assert job["additionalProperties"] is False
    assert job["required"] == ["name"]
    template = next(s for s in job["properties"]["batch_size"]["anyOf"] if s["type"] == "string")
    assert re.fullmatch(template["pattern"], "{b}")
    assert not re.fullmatch(template["pattern"], "12")


def test_reading_a_file_imports_no_torch(folder: Path) -> None:
    """Checking a file of trainings stays on the light side of the line."""
    file = folder / "jobs.yaml"
    file.write_text(f"jobs: [{{name: a, model: dlrm, data: {DATA}}}]")
    program = (
        "import sys; from rmixer.spec import load_jobs_file; "
        f"assert load_jobs_file({str(file)!r}).jobs; "
        "sys.exit(bool({'torch', 'polars'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
