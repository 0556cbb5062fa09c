"""Estimates of commands in processes of their own: side by side, and gone when nobody asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmixer.estimate.estimator import job_like_environment
from rmixer.estimate.programs import Conditions, estimate_commands
from rmixer.model import JobSpec
from waiting import alive, wait_until

#: Says who it is, then waits for ever.
WAITS = "import os, time; open('{name}', 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"


def command(folder: Path, name: str, script: str) -> JobSpec:
    argv = [sys.executable, "-S", "-c", script]
    payload = {"argv": argv, "workdir": str(folder), "env": {}}
    return JobSpec(id=name, name=name, kind="command", payload=payload)


def conditions(seconds: float = 60.0) -> Conditions:
    return Conditions(gpu=True, environment=job_like_environment(), limit_seconds=seconds)


def pid_in(path: Path) -> int | None:
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


def test_programs_run_side_by_side_until_they_are_stopped(tmp_path: Path) -> None:
    """Both have begun before one has ended; stopped, nothing is left and each has an error."""
    jobs = [command(tmp_path, name, WAITS.format(name=name)) for name in "ab"]
    pids: list[int] = []

    def both_run() -> bool:
        pids[:] = [pid for name in "ab" if (pid := pid_in(tmp_path / name))]
        return len(pids) == 2

    answers = estimate_commands(jobs, conditions(), at_once=2, should_stop=both_run)
    assert [list(answers[name]) for name in "ab"] == [["error"], ["error"]]
    assert not any(alive(pid) for pid in pids)


def test_a_program_that_is_over_answers_and_makes_room(tmp_path: Path) -> None:
    """One after the other; why there is no trace is said of each."""
    said: list[str] = []
    jobs = [command(tmp_path, name, "print('done')") for name in "ab"]
    answers = estimate_commands(jobs, conditions(), say=said.append)
    assert said == [f"{name}: running it for a few steps" for name in "ab"]
    for answer in answers.values():
        assert "cannot be instrumented" in answer["error"]
        assert answer["seconds"] > 0


ASKS = """
import sys
from test_programs import WAITS, command, conditions
from pathlib import Path
from rmixer.estimate.programs import estimate_commands
folder = Path(sys.argv[1])
estimate_commands([command(folder, "a", WAITS.format(name="a"))], conditions())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_asked(tmp_path: Path, number: signal.Signals) -> None:
    """Killed in whatever way, the asking process leaves no program behind."""
    here = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": here}
    asking = subprocess.Popen([sys.executable, "-c", ASKS, str(tmp_path)], env=environment)
    pid = wait_until(lambda: pid_in(tmp_path / "a"))
    asking.send_signal(number)
    asking.wait()
    wait_until(lambda: not alive(pid))
