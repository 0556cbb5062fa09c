"""`rmixer.job()`: what a program says of itself, and how it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmixer
from rmixer import launch
from rmixer.launch import rmixer_job
from rmixer.launch.page import read_progress

LAUNCH = Path(launch.__file__).parent
NAMES = (rmixer_job.PROGRESS, rmixer_job.RESULT, rmixer_job.CHECKPOINT, "RMIXER_ATTEMPT")


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment that a job has; its folder."""
    monkeypatch.setenv(rmixer_job.PROGRESS, str(tmp_path / "progress"))
    monkeypatch.setenv(rmixer_job.RESULT, str(tmp_path / "result.json"))
    monkeypatch.setenv(rmixer_job.CHECKPOINT, str(tmp_path / "kept" / "checkpoint"))
    monkeypatch.setenv("RMIXER_ATTEMPT", "2")
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    assert signal.getsignal(signal.SIGTERM) == before, "the program's own handler is back"


def test_outside_of_rmixer_it_does_nothing(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, no handler; the program runs as without it."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with rmixer.job() as job:
        job.report(1, samples=10, loss=0.5, auc=0.7)
        assert signal.getsignal(signal.SIGTERM) == before
        with job.saving() as path:
            assert path is None
        assert (job.should_stop, job.checkpoint_path, job.attempt) == (False, None, 0)
    assert list(tmp_path.iterdir()) == []


def test_what_is_reported_is_on_the_page_and_in_the_result(inside: Path) -> None:
    """Steps, samples and loss while it runs; the newest value of each metric at its end."""
    with rmixer.job() as job:
        assert job.attempt == 2
        job.report(3, 300, total_steps=9, loss=0.5, auc=0.6)
        page = read_progress(str(inside / "progress"))
        assert page is not None
        seen = [page[name] for name in ("step", "samples", "total_steps", "loss")]
        assert seen == [3, 300, 9, 0.5]
        job.report(4, 400, auc=0.7, recall=float("nan"))
    result = json.loads((inside / "result.json").read_text())
    assert result["steps"] == 4
    assert result["samples"] == 400
    assert result["metrics"] == {"train_loss": 0.5, "auc": 0.7, "recall": None}
    page = read_progress(str(inside / "progress"))
    assert page is not None
    assert page["step"] == 4, "the last report is there although it came right after another"


def test_a_second_process_does_not_write_over_the_first(inside: Path) -> None:
    """Like the counter of the launcher: the first process that reports has the page."""
    with rmixer.job() as first, rmixer.job() as second:
        first.report(7)
        second.report(1)
    page = read_progress(str(inside / "progress"))
    assert page is not None
    assert page["step"] == 7


def test_values_that_are_no_numbers_are_errors(inside: Path) -> None:
    """They are told where they are given, not swallowed."""
    with rmixer.job() as job:
        with pytest.raises(ValueError, match="samples must not be negative: -1"):
            job.report(1, -1)
        with pytest.raises(ValueError, match="could not convert"):
            job.report(1, auc="high")


def test_sigterm_is_a_wish_to_stop(inside: Path) -> None:
    """The program goes on and sees it; a handler that it had itself is still called."""
    called = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    try:
        with rmixer.job() as job:
            assert not job.should_stop
            os.kill(os.getpid(), signal.SIGTERM)
            assert job.should_stop
        assert called == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_checkpoint_is_replaced_when_the_new_one_is_whole(inside: Path) -> None:
    """An error while it is written leaves the last one, and nothing beside it."""
    with rmixer.job() as job:
        assert job.checkpoint_path is not None
        with job.saving() as path:
            assert path is not None
            path.write_text("first")
        with pytest.raises(IsADirectoryError):
            half_written(job)
        assert job.checkpoint_path.read_text() == "first"
        assert [path.name for path in job.checkpoint_path.parent.iterdir()] == ["checkpoint"]


def half_written(job: rmixer_job.Job) -> None:
    with job.saving() as path:
        assert path is not None
        path.write_text("half")
        raise IsADirectoryError


TOGETHER = """
import torch
{how}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
step()
with job() as mine:
    for number in (1, 2):
        step()
        mine.report(10 * number, 100 * number)
"""


@pytest.mark.parametrize(
    "how", ["from rmixer import job", "from rmixer_job import job"], ids=["rmixer", "alone"]
)
def test_what_the_program_says_counts_and_not_what_was_counted(inside: Path, how: str) -> None:
    """With the launcher in the same process: one page, and the program's own figures on it."""
    environment = {**os.environ, "PYTHONPATH": str(LAUNCH), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER.format(how=how)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    page = read_progress(str(inside / "progress"))
    assert page is not None
    assert (page["step"], page["samples"]) == (20, 200)
    assert sorted(path.name for path in inside.glob("progress*")) == ["progress", "progress.claim"]
