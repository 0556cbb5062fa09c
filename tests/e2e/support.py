"""A place of its own for real runs: jobs that keep a diary, and the certainty that nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import waiting
from rmixer import events as ev
from rmixer.log import read_events
from rmixer.model import StateName
from rmixer.paths import RunPaths
from rmixer.state import RunState
from waiting import alive

LIMIT_SECONDS = 60.0
LEAVE_SECONDS = 15.0
TAG = "RMIXER_TEST_TAG"
PYTHON = sys.executable
MAIN = "from rmixer.cli import main; main()"

#: A job that holds a lock as long as any process of it lives, and writes what happened in one file.
#: Arguments: its name, then what it does: seconds to sleep, or a file to wait for.
WORK = """
import fcntl, os, sys, time
name, until = sys.argv[1:3]
diary = os.open("diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
def note(word):
    os.write(diary, f"{word} {name} {os.getpid()}\\n".encode())
lock = open(name + ".running", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("overlap")
    sys.exit(9)
note("start")
if until[0].isdigit():
    time.sleep(float(until))
else:
    while not os.path.exists(until):
        time.sleep(0.01)
note("end")
"""


def wait_until(
    condition: Callable[[], object], what: str = "", seconds: float = LIMIT_SECONDS
) -> Any:
    """The first true answer; a whole run may take longer than one process."""
    return waiting.wait_until(condition, what, seconds=seconds)


class Workplace:
    """A directory with jobs, and runners that are started in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[subprocess.Popen[str]] = []
        self.tag = os.urandom(12).hex()
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "RMIXER_HOME": str(directory / "home"),
            "RMIXER_CACHE": str(directory / "cache"),
            TAG: self.tag,
        }
        (directory / "work.py").write_text(WORK)

    # --- jobs -----------------------------------------------------------------------------------

    def work(self, name: str, until: float | str = 0.01, **keys: Any) -> dict[str, Any]:
        """A job that writes into the diary."""
        return {"name": name, "command": [PYTHON, "-S", "work.py", name, str(until)], **keys}

    def shell(self, name: str, script: str, **keys: Any) -> dict[str, Any]:
        """A job that is a shell script."""
        return {"name": name, "command": ["sh", "-c", script], **keys}

    def write(self, *jobs: Mapping[str, Any], **top: Any) -> None:
        """The jobs file; YAML takes JSON."""
        document = {**top, "jobs": list(jobs)}
        (self.directory / "jobs.yaml").write_text(json.dumps(document))

    # --- runners --------------------------------------------------------------------------------

    def start(
        self,
        *arguments: str,
        program: str = MAIN,
        wrapper: Sequence[str] = (),
        output: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """``rmixer ARGUMENTS`` in a process group of its own."""
        words = [*wrapper, PYTHON, "-c", program, *arguments]
        process = subprocess.Popen(
            words,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            process_group=0,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, program: str = MAIN) -> subprocess.CompletedProcess[str]:
        """``rmixer ARGUMENTS`` to its end."""
        process = self.start(*arguments, program=program)
        return self.wait(process)

    def run_without_pipes(self, *arguments: str, program: str = MAIN) -> int:
        """The exit code of ``rmixer ARGUMENTS``, whatever its children hold open."""
        process = self.start(*arguments, program=program, output=subprocess.DEVNULL)
        return process.wait(LIMIT_SECONDS)

    def wait(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """The end of a runner, with what it wrote."""
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """``kill -9`` of a runner alone."""
        process.kill()
        process.communicate()

    # --- what is to be seen ---------------------------------------------------------------------

    def paths(self, name: str = "jobs") -> RunPaths:
        return RunPaths(self.directory / "runs" / name)

    def events(self, name: str = "jobs") -> list[ev.Event]:
        """The log so far; empty where there is none yet."""
        path = self.paths(name).events
        return list(read_events(path)) if path.exists() else []

    def state(self, name: str = "jobs") -> RunState:
        """The replay of the log."""
        state = RunState()
        for event in self.events(name):
            state.apply(event)
        return state

    def names(self, state: RunState | None = None) -> dict[str, StateName]:
        """The state of each job by its name."""
        jobs = (state or self.state()).jobs.values()
        return {job.spec.name: job.state.name for job in jobs}

    @property
    def diary(self) -> list[tuple[str, str, int]]:
        """What the jobs wrote: (word, job, pid)."""
        path = self.directory / "diary"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(word, job, int(pid)) for word, job, pid in map(str.split, lines)]

    def told(self, word: str, job: str | None = None) -> int:
        """How often the diary has a word, of one job or of any."""
        return sum(w == word and job in (None, j) for w, j, _ in self.diary)

    def number_in(self, name: str) -> int:
        """A number that a job has written to a file, once the line is whole."""
        path = self.directory / name
        return int(
            wait_until(
                lambda: path.exists() and path.read_text().endswith("\n") and path.read_text()
            )
        )

    def left(self) -> list[str]:
        """Processes that come from here and still run."""
        mark = f"{TAG}={self.tag}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or not alive(int(entry.name)):
                    continue
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{entry.name} {words.decode(errors='replace')}")
        return found

    def end_all(self) -> None:
        """Kill what a failed test has left."""
        for process in self.started:
            if process.poll() is None:
                self.kill(process)
        for line in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)


@contextmanager
def workplace(directory: Path) -> Iterator[Workplace]:
    """A workplace in which nothing may be left running at the end."""
    made = Workplace(directory)
    try:
        yield made
        wait_until(lambda: not made.left(), f"for {made.left()} to end", LEAVE_SECONDS)
    finally:
        made.end_all()
