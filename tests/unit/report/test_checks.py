"""What `rmixer doctor` checks: each lack is told with what follows from it and how it is mended."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmixer.cli import cli
from rmixer.model import JobSpec, Node
from rmixer.report import checks

V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def machine(folder: Path, mounts: str, controllers: str | None = None) -> dict[str, str]:
    """A /proc and a /sys with these mounts."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text(mounts)
    (folder / "proc/self/cgroup").write_text("4:memory:/\n0::/\n")
    (folder / "sys/fs/cgroup/memory").mkdir(parents=True)
    if controllers is not None:
        (folder / "sys/fs/cgroup/cgroup.controllers").write_text(controllers)
    return {"proc": str(folder / "proc"), "sys": str(folder / "sys")}


@pytest.mark.parametrize(
    ("mounts", "controllers", "found"),
    [
        (V2, "cpu memory", "version 2"),
        (V1, None, "version 1"),
        (f"{V1}\n{V2}", "cpu", "version 1, and version 2 without the memory controller (hybrid)"),
        (f"{V1}\n{V2}", "memory", "version 1, and version 2 with the memory controller (hybrid)"),
        ("22 1 0:5 / /proc rw - proc proc rw", None, "none are mounted"),
    ],
)
def test_control_groups_are_named_by_what_is_mounted(
    tmp_path: Path, mounts: str, controllers: str | None, found: str
) -> None:
    """Version 2, version 1, both, none."""
    check = checks.hierarchy(**machine(tmp_path, mounts, controllers))
    assert check.found == found
    assert (check.state == "missing") == (found == "none are mounted")


def test_where_no_group_can_be_made_memory_is_limited_per_process(tmp_path: Path) -> None:
    """It says so, and what that leaves open."""
    check = checks.memory_cage(**machine(tmp_path, ""))
    assert "RLIMIT_DATA" in check.found
    assert "several times" in check.follows
    assert "Delegate=yes" in check.mend


def test_the_limit_that_is_in_force_here_is_made_and_removed() -> None:
    """Nothing of it is left."""
    check = checks.memory_cage()
    assert check.state == "ok"
    if "control group" in check.found:
        parent = Path(check.found.rpartition(" ")[2])
        assert not list(parent.glob(f"rmixer-doctor-{os.getpid()}*"))


def test_a_container_with_little_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB is a problem with its remedy; a place that is not there is a lack."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: (64 << 20, 0, 60 << 20))
    small = checks.shared_memory(str(tmp_path))
    assert small.state == "problem"
    assert "--shm-size" in small.mend
    monkeypatch.undo()
    assert checks.shared_memory(str(tmp_path / "none")).state == "missing"


def test_few_descriptors_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """256, as some systems have it."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    check = checks.open_files()
    assert (check.state, check.found) == ("problem", "256 of at most 4096")
    assert "ulimit" in check.mend


def test_cores_that_may_not_be_used_are_told() -> None:
    """More in the machine than for jobs: affinity or a container."""
    check = checks.cores(Node(cores=(0,) * ((os.cpu_count() or 1) - 1)))
    assert "affinity" in check.follows


def test_interpreters_are_those_of_the_jobs(tmp_path: Path) -> None:
    """Each once, with its torch; one that does not run is a problem, other programs have none."""
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    jobs = [
        JobSpec(id="a", name="a", kind="model"),
        JobSpec(id="b", name="b", kind="command", payload={"argv": [sys.executable, "x.py"]}),
        JobSpec(id="c", name="c", kind="command", payload={"argv": [str(broken), "x.py"]}),
        JobSpec(id="d", name="d", kind="command", payload={"argv": ["sleep", "1"]}),
    ]
    mine, other = checks.interpreters(jobs)
    assert mine.state == "ok"
    assert "torch 2." in mine.found
    assert other.state == "problem"
    assert "exit status 3" in other.found


def test_a_problem_is_in_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rmixer doctor FILE --json`: its interpreters, and 1 because one of them does not run."""
    monkeypatch.setenv("RMIXER_HOME", str(tmp_path / "home"))
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(json.dumps({"jobs": [{"name": "a", "command": [str(broken), "-V"]}]}))
    done = CliRunner().invoke(cli, ["doctor", str(jobs), "--json"])
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert any(str(broken) in problem for problem in document["problems"])
    text = CliRunner().invoke(cli, ["doctor", str(jobs)]).stdout
    assert "PROBLEM" in text
    assert "to mend it" in text
