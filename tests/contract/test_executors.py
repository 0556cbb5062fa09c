"""What every executor does, whatever it runs attempts on."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmixer.execute.base import End, Executor, LostEnd
from rmixer.execute.inline import FakeClock, InlineExecutor, Script
from rmixer.execute.process import ProcessExecutor
from rmixer.model import JobSpec, Node, Outcome, Placement, StateName
from rmixer.paths import RunPaths

LIMIT_SECONDS = 30.0
CANCELLED = Outcome(state=StateName.CANCELLED, reason="asked for")
TIMEOUT = Outcome(state=StateName.TIMEOUT, reason="timeout")


class ProcessHarness:
    """Shell scripts under the real executor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.executor: Executor = ProcessExecutor(
            RunPaths(directory / "run"), Node(cores=(0,)), grace_seconds=20.0
        )

    def job(self, name: str, does: str) -> JobSpec:
        script = {
            "succeed": "exit 0",
            "fail": "echo boom; exit 3",
            "stay": "sleep 1000",
            "pause": "sleep 0.6",
        }[does]
        payload = {"argv": ["sh", "-c", script], "workdir": str(self.directory)}
        return JobSpec(id=name, name=name, kind="command", payload=payload)

    def wait(self, count: int = 1) -> list[End | LostEnd]:
        ends: list[End | LostEnd] = []
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(ends) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{count} ends expected, {ends} seen"
            select.select(self.executor.filenos(), [], [], left)
            ends += self.executor.poll()
        return ends


class InlineHarness:
    """The same scripts on a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.executor: Executor = InlineExecutor(self._script, self.clock)

    def job(self, name: str, does: str) -> JobSpec:
        return JobSpec(id=name, name=name, kind="command", payload={"does": does})

    def wait(self, count: int = 1) -> list[End | LostEnd]:
        ends: list[End | LostEnd] = []
        assert isinstance(self.executor, InlineExecutor)
        while len(ends) < count:
            ends += self.executor.poll()
            following = self.executor.next_end()
            if len(ends) < count:
                assert following is not None, f"{count} ends expected, {ends} seen"
                self.clock.now = following
        return ends

    def _script(self, spec: JobSpec, number: int) -> Script:
        failed = Outcome(state=StateName.FAILED, reason="exit 3", message="boom", exit_code=3)
        return {
            "succeed": Script(),
            "fail": Script(outcome=failed),
            "stay": Script(seconds=1000.0),
            "pause": Script(seconds=2.0),
        }[spec.payload["does"]]


Harness = ProcessHarness | InlineHarness


@pytest.fixture(params=["process", "inline"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = ProcessHarness(tmp_path) if request.param == "process" else InlineHarness()
    yield made
    made.executor.close()


def wait_for_pids(executor: Executor, token: str) -> list[int]:
    """The processes of an attempt, once it has any."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (pids := executor.pids(token)):
        assert time.monotonic() < deadline, f"{token} has no process"
        time.sleep(0.005)
    return pids


def test_success_is_told_once(harness: Harness) -> None:
    """A program that ends with 0 has SUCCEEDED, and no later call says it again."""
    harness.executor.start(harness.job("a", "succeed"), 1, "t1", Placement())
    (end,) = harness.wait()
    assert isinstance(end, End)
    assert (end.token, end.outcome.state, end.outcome.exit_code) == ("t1", StateName.SUCCEEDED, 0)
    assert harness.executor.poll() == []


def test_failure_has_code_and_words(harness: Harness) -> None:
    """A program that ends with another code has FAILED, with the code and what it said."""
    harness.executor.start(harness.job("a", "fail"), 1, "t1", Placement())
    (end,) = harness.wait()
    assert isinstance(end, End)
    assert end.outcome.state == StateName.FAILED
    assert (end.outcome.reason, end.outcome.exit_code) == ("exit 3", 3)
    assert "boom" in end.outcome.message


@pytest.mark.parametrize("force", [False, True])
def test_stopped_counts_as_ordered(harness: Harness, force: bool) -> None:
    """What an attempt that was told to stop counts as was said with the order."""
    harness.executor.start(harness.job("a", "stay"), 1, "t1", Placement())
    harness.executor.stop("t1", force=force, outcome=TIMEOUT)
    (end,) = harness.wait()
    assert isinstance(end, End)
    assert (end.outcome.state, end.outcome.reason) == (StateName.TIMEOUT, "timeout")


def test_stop_ends_one_attempt_only(harness: Harness) -> None:
    """The others go on."""
    for name in ("a", "b"):
        harness.executor.start(harness.job(name, "stay"), 1, name, Placement())
    harness.executor.stop("a", force=True, outcome=CANCELLED)
    assert [end.token for end in harness.wait()] == ["a"]
    assert wait_for_pids(harness.executor, "b")
    harness.executor.stop("b", force=True, outcome=CANCELLED)
    assert [end.token for end in harness.wait()] == ["b"]


def test_a_suspended_attempt_ends_only_once_it_goes_on(harness: Harness) -> None:
    """Another one that began later ends meanwhile; one that was not suspended may be told too."""
    for name in ("a", "b"):
        harness.executor.start(harness.job(name, "pause"), 1, name, Placement())
        if name == "a":
            wait_for_pids(harness.executor, "a")
            harness.executor.suspend("a")
    harness.executor.go_on("b")
    assert [end.token for end in harness.wait()] == ["b"]
    harness.executor.suspend("a")
    harness.executor.go_on("a")
    (end,) = harness.wait()
    assert isinstance(end, End)
    assert (end.token, end.outcome.state) == ("a", StateName.SUCCEEDED)


def test_a_suspended_attempt_can_be_stopped(harness: Harness) -> None:
    """It counts as was ordered."""
    harness.executor.start(harness.job("a", "stay"), 1, "t1", Placement())
    wait_for_pids(harness.executor, "t1")
    harness.executor.suspend("t1")
    harness.executor.stop("t1", force=False, outcome=TIMEOUT)
    (end,) = harness.wait()
    assert isinstance(end, End)
    assert end.outcome.state == StateName.TIMEOUT


def test_attempts_of_one_job_are_apart(harness: Harness) -> None:
    """Two attempts of a job, one after the other, each have their own end."""
    job = harness.job("a", "fail")
    for number in (1, 2):
        harness.executor.start(job, number, f"t{number}", Placement())
        assert [end.token for end in harness.wait()] == [f"t{number}"]


def test_unknown_token_is_a_key_error(harness: Harness) -> None:
    """Orders for what does not run are faults of the caller."""
    with pytest.raises(KeyError):
        harness.executor.stop("nobody", force=False)
    with pytest.raises(KeyError):
        harness.executor.rebook("nobody", Placement())
    for order in (harness.executor.suspend, harness.executor.go_on):
        with pytest.raises(KeyError):
            order("nobody")
    with pytest.raises(KeyError):
        harness.executor.pids("nobody")


def test_adopting_what_never_ran_is_a_loss(harness: Harness) -> None:
    """An attempt that was decided and not started before a crash is told as lost, once."""
    assert harness.executor.adopt(harness.job("a", "succeed"), 1, "t1") is None
    (end,) = harness.wait()
    assert isinstance(end, LostEnd)
    assert [end.token] == ["t1"]
    assert harness.executor.poll() == []
