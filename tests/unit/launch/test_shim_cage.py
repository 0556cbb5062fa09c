"""The shim and the memory cage of its job: real processes, real control groups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shim_attempt import LIMIT_SECONDS, Attempt

from caging import groups_of, needs_groups, parent_of_groups
from rmixer.launch import cage, shim
from rmixer.resources import MIB
from waiting import alive, wait_until

LIMIT = 64 * MIB
#: A program that takes as much as it is told, touches it, and says that it has it.
TAKE = "import sys; block = b'x' * (int(sys.argv[1]) << 20); print('has it')"
#: Two processes take and hold 45 MiB each; ends with the signal that ended the first of them.
TWO = """
import os, sys, time
def hold():
    block = b"x" * (45 << 20)
    while True:
        time.sleep(1)
children = [os.fork() or hold() for _ in range(2)]
_, status = os.wait()
sys.exit(status & 127)
"""


@pytest.fixture
def token() -> str:
    return f"shim-{os.urandom(8).hex()}"


def attempt_in(directory: Path) -> Attempt:
    directory.mkdir()
    return Attempt(directory)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return attempt_in(tmp_path / "attempt")


def take(size_mib: int) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", TAKE, str(size_mib))


@needs_groups
def test_job_within_its_limit(attempt: Attempt, token: str) -> None:
    """It runs in a group of its own with that limit; at its end the group is gone, its peak kept."""
    attempt.order(
        "sh", "-c", "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done",
        token=token, memory_limit=LIMIT,
    )  # fmt: skip
    process = attempt.spawn()
    job = attempt.pid_in("pid")
    about = attempt.started()["cage"]
    group = Path(about["path"])
    assert about["kind"] in ("cgroup1", "cgroup2")
    assert group.name == cage.PREFIX + token
    assert f"/{group.name}\n" in Path(f"/proc/{job}/cgroup").read_text()
    assert group.name not in Path(f"/proc/{process.pid}/cgroup").read_text()
    limits = [group / "memory.limit_in_bytes", group / "memory.max"]
    assert [int(path.read_text()) for path in limits if path.exists()] == [LIMIT]
    (attempt.directory / "go").touch()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert not group.exists()
    end = attempt.end()
    assert (end["exit_code"], end["oom_kills"]) == (0, 0)
    assert 0 < end["cage"]["peak_bytes"] <= LIMIT
    assert attempt.log == ""


@needs_groups
def test_job_beyond_its_limit_is_killed(attempt: Attempt, token: str) -> None:
    """The kernel kills it at the limit; the cage's own count and peak say so."""
    end = attempt.run(*take(300), token=token, memory_limit=LIMIT)
    assert (end["signal"], end["oom_kills"]) == (signal.SIGKILL, 1)
    assert LIMIT * 0.9 < end["cage"]["peak_bytes"] <= LIMIT * 1.1
    assert groups_of(token) == []


@needs_groups
def test_all_processes_of_a_job_share_its_limit(attempt: Attempt, token: str) -> None:
    """Of two that are within the limit each, and beyond it together, at least one is killed.

    The kernel may choose either, and a second one before the first one's memory has come back.
    """
    end = attempt.run(sys.executable, "-S", "-c", TWO, token=token, memory_limit=LIMIT)
    assert end["exit_code"] == signal.SIGKILL
    assert end["oom_kills"] in (1, 2)
    assert end["cage"]["peak_bytes"] <= LIMIT * 1.1


@needs_groups
def test_kill_of_a_neighbour_is_not_ours(tmp_path: Path, token: str) -> None:
    """While one job is killed for memory, another's count stays at none, though it is killed too."""
    waits, grows = attempt_in(tmp_path / "waits"), attempt_in(tmp_path / "grows")
    waits.order("sh", "-c", "echo $$ > pid; exec sleep 1000", token=token, memory_limit=LIMIT)
    process = waits.spawn()
    job = waits.pid_in("pid")
    waits.started()
    before = shim.count_oom_kills()
    assert grows.run(*take(300), token=token + "-b", memory_limit=LIMIT)["oom_kills"] == 1
    assert shim.count_oom_kills() > before
    os.kill(job, signal.SIGKILL)
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert (waits.end()["signal"], waits.end()["oom_kills"]) == (signal.SIGKILL, 0)


@needs_groups
def test_group_of_that_name_that_is_in_use(attempt: Attempt, token: str) -> None:
    """A shim that finds one with a process inside makes another, and touches neither."""
    parent = parent_of_groups()
    assert parent is not None
    taken = parent / (cage.PREFIX + token)
    taken.mkdir()
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        (taken / "cgroup.procs").write_text(str(stranger.pid))
        end = attempt.run("true", token=token, memory_limit=LIMIT)
        assert end["cage"]["path"] == f"{taken}-2"
        assert alive(stranger.pid)
        assert groups_of(token) == [taken]
    finally:
        stranger.kill()
        stranger.wait()
        wait_until(lambda: not (taken / "cgroup.procs").read_text())
        taken.rmdir()


@needs_groups
def test_group_that_was_left_empty(attempt: Attempt, token: str) -> None:
    """One that nobody is in is made anew."""
    parent = parent_of_groups()
    assert parent is not None
    left = parent / (cage.PREFIX + token)
    left.mkdir()
    end = attempt.run("true", token=token, memory_limit=LIMIT)
    assert (end["exit_code"], end["cage"]["path"]) == (0, str(left))
    assert not left.exists()


def test_job_without_a_limit(attempt: Attempt, token: str) -> None:
    """No cage is made, and both documents say so."""
    end = attempt.run("cat", "/proc/self/cgroup", token=token, memory_limit=None)
    assert attempt.log == Path("/proc/self/cgroup").read_text()
    assert (attempt.started()["cage"], end["cage"]) == (None, None)


def test_limit_that_cannot_be_set(attempt: Attempt, token: str) -> None:
    """It is said in the log, and the job runs."""
    end = attempt.run("echo", "ran", token=token, memory_limit="much")
    assert end["exit_code"] == 0
    assert "rmixer: the job has no memory limit: " in attempt.log
    assert attempt.log.endswith("ran\n")


ALONE = ["unshare", "--mount", "sh", "-c", 'umount -l /sys/fs/cgroup && exec "$@"', "sh"]


def test_data_limit_where_there_are_no_groups(attempt: Attempt, token: str) -> None:
    """The program is refused what is beyond it, and its own words tell; nothing is left behind."""
    if subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("control groups cannot be hidden here")
    attempt.order(*take(3000), token=token, memory_limit=LIMIT)
    words = [*ALONE, sys.executable, "-I", "-S", shim.__file__, str(attempt.directory)]
    with (attempt.directory / "log.txt").open("ab") as log:
        shown = subprocess.run(words, stdout=log, stderr=log, check=False, start_new_session=True)
    assert shown.returncode == shim.RAN
    assert json.loads((attempt.directory / shim.STARTED).read_text())["cage"] == {
        "kind": "rlimit", "path": None,
    }  # fmt: skip
    assert attempt.end()["exit_code"] == 1
    assert attempt.log.splitlines()[-1] == "MemoryError"
