"""A run's directory: one runner at a time; resumed, reported, or kept under another name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmixer import events as ev
from rmixer.errors import RunConflictError, StorageError, UsageError
from rmixer.log import EventLog
from rmixer.model import Estimate, JobSpec, Node, Outcome, StateName
from rmixer.paths import RunPaths
from rmixer.runner.folder import keep, open_folder, open_for_replacement

SUCCEEDED = Outcome(state=StateName.SUCCEEDED)
FAILED = Outcome(state=StateName.FAILED, reason="exit 1")


def log(root: Path, *outcomes: Outcome | None, finished: bool, policy: str = "sequential") -> None:
    """A run with a job per outcome; None has not ended."""
    root.mkdir(parents=True)
    lines: list[ev.Event] = [
        ev.Began(wall=0.0, run="r", name=root.name, node=Node(), policy=policy, jobs_digest="d")
    ]
    for number, outcome in enumerate(outcomes):
        spec = JobSpec(id=f"j{number}", name=f"j{number}", kind="command")
        lines.append(ev.Submitted(at=0.0, wall=0.0, spec=spec, estimate=Estimate(memory=1)))
        if outcome is not None:
            lines.append(ev.Ended(at=1.0, wall=1.0, job=spec.id, outcome=outcome))
    if finished:
        lines.append(ev.Finished(at=1.0, wall=1.0, interrupted=None in outcomes))
    file = EventLog(RunPaths(root).events)
    file.append(lines)
    file.close()


def mark_reported(root: Path) -> None:
    folder = open_for_replacement(root)
    folder.mark(reported=True)
    folder.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "jobs"


def test_new_directory(root: Path) -> None:
    """It is made, locked, and has nothing to go on with; the lock names its holder."""
    folder = open_folder(root, digest="d")
    assert not folder.past
    assert RunPaths(root).lock.read_text() == str(os.getpid())
    folder.close()
    folder.close()


def test_second_runner_is_refused(root: Path) -> None:
    """While one holds the directory nobody else gets it; afterwards they do."""
    folder = open_folder(root, digest="d")
    with pytest.raises(RunConflictError, match=f"process {os.getpid()} runs it"):
        open_folder(root, digest="d")
    folder.close()
    open_folder(root, digest="d").close()


def test_unfinished_run_is_resumed(root: Path) -> None:
    """Its events and their replay are there to go on with."""
    log(root, SUCCEEDED, None, finished=False)
    folder = open_folder(root, digest="d")
    assert len(folder.past) == 4
    assert [job.state.name for job in folder.state.jobs.values()] == ["SUCCEEDED", "PENDING"]
    assert not folder.only_report
    folder.close()


def test_interrupted_run_is_resumed_though_it_was_reported(root: Path) -> None:
    """Ctrl-C leaves a finished log with jobs that wait: that is not the end of the run."""
    log(root, SUCCEEDED, None, finished=True)
    mark_reported(root)
    folder = open_folder(root, digest="d")
    assert folder.past
    assert not folder.only_report
    assert not folder.reported, "from now on it has to be reported again"
    folder.close()


def test_reported_run_is_kept(root: Path) -> None:
    """A run that came to its end gets the next free number, and a new one begins."""
    log(root, SUCCEEDED, finished=True)
    mark_reported(root)
    root.with_name("jobs.1").mkdir()
    folder = open_folder(root, digest="d")
    assert not folder.past
    assert RunPaths(root.with_name("jobs.2")).events.exists()
    folder.close()


def test_run_whose_runner_died_before_the_report(root: Path) -> None:
    """It is not begun anew: only the report is left to do. Other jobs do not get its report."""
    log(root, SUCCEEDED, FAILED, finished=True)
    folder = open_folder(root, digest="d")
    assert folder.only_report
    folder.close()
    folder = open_folder(root, digest="other")
    assert not folder.past
    folder.close()


def test_runner_that_dies_before_a_new_run_begins(root: Path) -> None:
    """That a run was reported is not forgotten by a runner that only looked at it."""
    log(root, SUCCEEDED, finished=True)
    mark_reported(root)
    open_for_replacement(root).close()
    assert RunPaths(root).lock.read_text().endswith("\nreported")


@pytest.mark.parametrize(("outcome", "resumed"), [(FAILED, True), (SUCCEEDED, False)])
def test_retry_failed(root: Path, outcome: Outcome, resumed: bool) -> None:
    """A finished run is gone on with only where a job of it did not succeed."""
    log(root, outcome, finished=True)
    mark_reported(root)
    folder = open_folder(root, digest="d", retry_failed=True)
    assert bool(folder.past) is resumed
    folder.close()


def test_other_jobs_and_other_policy(root: Path) -> None:
    """What differs is named, and the directory is free again."""
    log(root, None, finished=False)
    RunPaths(root).jobs_file.write_text("jobs: [{name: a, command: 'true'}]\n")
    with pytest.raises(RunConflictError, match="retries"):
        open_folder(root, digest="x", text="jobs: [{name: a, command: 'true', retries: 2}]\n")
    with pytest.raises(RunConflictError, match="policy sequential, not fixed:k=2"):
        open_folder(root, digest="d", policy="fixed:k=2")
    open_folder(root, digest="d", policy="sequential").close()


def test_damaged_log(root: Path) -> None:
    """A damaged line is told by its number, and the directory is free again."""
    log(root, None, finished=False)
    path = RunPaths(root).events
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    for _ in range(2):
        with pytest.raises(StorageError, match=r"events\.jsonl:1: damaged event"):
            open_folder(root, digest="d")


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """The path is named, and the option that chooses another."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match="--runs-dir"):
        open_folder(tmp_path / "runs" / "jobs", digest="d")


HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(descriptor, fcntl.LOCK_EX)
os.write(descriptor, sys.argv[2].encode())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("lives", [True, False])
def test_lock_whose_holder_has_died(
    root: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """A dead runner's child is waited for; a runner that lives is not."""
    root.mkdir(parents=True)
    gone = subprocess.Popen(["true"])
    gone.wait()
    pid = os.getpid() if lives else gone.pid
    words = [sys.executable, "-c", HOLD, str(RunPaths(root).lock), str(pid)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        holder.communicate()

    monkeypatch.setattr("rmixer.runner.folder.time.sleep", sleep)
    open_now: Callable[[], None] = lambda: open_folder(root, digest="d").close()  # noqa: E731
    if lives:
        with pytest.raises(RunConflictError):
            open_now()
    else:
        open_now()
    assert bool(waited) is not lives
    holder.communicate()


def test_keep(root: Path) -> None:
    """The directory is moved whole, its lock included."""
    log(root, SUCCEEDED, finished=True)
    kept = keep(open_for_replacement(root))
    assert kept.name == "jobs.1"
    assert not root.exists()
    open_for_replacement(kept).close()
