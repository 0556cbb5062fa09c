"""``rmixer doctor``: the machine as jobs see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmixer.cli import cli
from rmixer.estimate import host
from rmixer.report import doctor
from rmixer.store import Store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RMIXER_HOME", str(tmp_path))
    return tmp_path


def test_it_says_what_jobs_have(home: Path) -> None:
    """Cores, memory, GPUs and where things are kept; for people and as JSON."""
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == bool(document["problems"]), "a container may have one"
    assert document["cores"] >= 1
    assert document["memory_bytes"] > 0
    assert document["process"]["source"] == "stated"
    assert document["store"].startswith(str(home))
    assert "cores" in CliRunner().invoke(cli, ["doctor"]).stdout


def test_a_measured_baseline_replaces_the_stated_one(home: Path) -> None:
    """What `rmixer estimate` has measured here is told as such."""
    store = Store(home / "store.sqlite")
    store.keep_baseline(host.baseline_key(None), (111 << 20, 222 << 20), 1.0)
    process = doctor.examine()["process"]
    assert (process["anonymous_bytes"], process["source"]) == (111 << 20, "measured")


def test_without_a_gpu_there_is_no_context_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a problem that is told, and the exit code says so."""
    monkeypatch.setattr("rmixer.monitor.machine.discover_gpus", tuple)
    assert CliRunner().invoke(cli, ["doctor", "--measure-context"]).exit_code == 1
    document = doctor.examine(measure_contexts=True)
    assert document["problems"][0] == "there is no GPU here whose context could be measured"
    assert "problem:" in doctor.render_examination(document)
