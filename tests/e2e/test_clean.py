"""`rmixer clean`: finished runs go, and nothing that anybody still works on."""

from __future__ import annotations

import json
import os

import pytest
from support import Workplace, wait_until

pytestmark = pytest.mark.e2e


def names(place: Workplace) -> list[str]:
    return sorted(path.name for path in (place.directory / "runs").iterdir())


def test_finished_runs_go_and_unfinished_ones_must_be_meant(place: Workplace) -> None:
    """By name, by age, all; what could be gone on with only with --unfinished."""
    place.write(place.work("a"))
    for name in ("one", "two"):
        assert place.run("run", "jobs.yaml", "--name", name).returncode == 0
    old = place.directory / "runs" / "one" / "events.jsonl"
    os.utime(old, (1, 1))
    shown = place.run("clean", "--older-than", "1d", "--dry-run", "--json")
    assert [run["name"] for run in json.loads(shown.stdout)["removed"]] == ["one"]
    assert names(place) == ["one", "two"]
    assert place.run("clean", "--older-than", "1d").returncode == 0
    assert names(place) == ["two"]
    unknown = place.run("clean", "two", "three")
    assert unknown.returncode == 2
    assert "'three' is no run here; there are: two" in unknown.stderr
    assert place.run("clean").returncode == place.run("clean", "two", "--all").returncode == 2
    assert names(place) == ["two"], "nothing was removed by a command that is wrong"
    assert place.run("clean", "--all").returncode == 0
    assert names(place) == []


def test_a_run_whose_job_outlived_its_runner_stays(place: Workplace) -> None:
    """While it runs, and after a kill -9 of its runner; given up by name when all is over."""
    place.write(place.work("a", "go"))
    runner = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start", "a"))
    busy = place.run("clean", "jobs")
    assert busy.returncode == 1
    assert "running" in busy.stdout
    place.kill(runner)
    assert place.run("clean", "jobs", "--unfinished").returncode == 1, "its job still works"
    assert place.run("clean", "--all").returncode == 0
    assert names(place) == ["jobs"]
    (place.directory / "go").touch()
    wait_until(lambda: not place.left())
    refused = place.run("clean", "jobs")
    assert refused.returncode == 2
    assert "--unfinished" in refused.stderr
    assert place.run("clean", "jobs", "--unfinished").returncode == 0
    assert names(place) == []
