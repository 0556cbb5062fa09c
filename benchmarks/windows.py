"""Work done in a window of steady state, from the logs that jobs write, whoever started them."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmixer.launch.page import read_progress
from runners import OURS, RUNNERS, Queue, running

PLAIN = str(Path(__file__).resolve().parent / "plain_script.py")
_PATIENCE_SECONDS = 240.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Step:
    """A line of a plain script's log."""

    at: float
    number: int
    loss: float


@dataclass(frozen=True)
class Window:
    """What a runner did.

    Attributes:
        startup_seconds: from its start to the first finished step of any job.
        seconds: of the window after that; shorter if all work was done before.
        done: steps of each job in the window.
        losses: of each job by step, where the jobs log them.
        cpu_seconds: of the runner's own process, in the window.
    """

    startup_seconds: float
    seconds: float
    done: Mapping[str, float]
    losses: Mapping[str, Mapping[int, float]]
    cpu_seconds: float


def plain(kind: str, name: str, *, steps: int, **options: Any) -> list[str]:
    """The command of a plain script; its log is in the folder in which the runner is started."""
    words = [sys.executable, PLAIN, kind, "--log", f"{{folder}}/{name}.log", "--steps", str(steps)]
    for key, value in options.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def measure(runner: str, queue: Queue, seconds: float, work: Path, *, least: int = 1) -> Window:
    """Start a runner, wait for the first step, watch it for a while, end it.

    The window is longer where there were not yet ``least`` steps in it.

    Raises:
        SystemExit: the runner fails, or too little happens.
    """
    folder = Path(tempfile.mkdtemp(prefix="w", dir=work))
    placed = {
        name: [word.replace("{folder}", str(folder)) for word in command]
        for name, command in queue.commands.items()
    }
    began = time.time()
    with running(RUNNERS[runner], Queue(placed, queue.jobs), folder) as process:
        follow = _Pages(folder) if runner == OURS and queue.jobs else _Logs(folder, placed)
        started = _first_step(follow, process, folder, began)
        cpu = _cpu_seconds(process.pid)
        before = follow.counts()
        ended = started + seconds
        while time.time() < ended and process.poll() is None:
            time.sleep(_LOOK_SECONDS)
            follow.look()
            few = sum(follow.between(started, ended, before).values()) < least
            if few and ended - _LOOK_SECONDS < time.time() < started + _PATIENCE_SECONDS:
                ended = time.time() + 2 * _LOOK_SECONDS
        now = time.time()  # a page says what is, a log what was
        ended = now if isinstance(follow, _Pages) else min(now, ended)
        cpu = _cpu_seconds(process.pid) - cpu if process.poll() is None else 0.0
        done = follow.between(started, ended, before)
    _check_end(process.returncode, process.args, folder, sum(done.values()))
    return Window(started - began, ended - started, done, follow.losses(), max(0.0, cpu))


def _first_step(follow: Any, process: Any, folder: Path, began: float) -> float:
    while not follow.look():
        if time.time() > began + _PATIENCE_SECONDS or process.poll() is not None:
            log = (folder / "runner.log").read_text(errors="replace")[-2000:]
            raise SystemExit(f"{process.args}: no job has made a step\n{log}")
        time.sleep(_LOOK_SECONDS / 4)
    return time.time()


def _check_end(code: int | None, command: Any, folder: Path, done: float) -> None:
    if done <= 0:
        log = (folder / "runner.log").read_text(errors="replace")[-2000:]
        raise SystemExit(f"{command} ended with {code} and no work done\n{log}")


class _Logs:
    """Follows the logs of plain scripts: a step counts when its line was written."""

    def __init__(self, folder: Path, names: Sequence[str] | Mapping[str, Any]) -> None:
        self.folder, self.names = folder, list(names)

    def look(self) -> bool:
        return any((path := self.folder / f"{n}.log").exists() and path.stat().st_size
                   for n in self.names)  # fmt: skip

    def counts(self) -> Mapping[str, float]:
        return {}

    def between(self, start: float, end: float, _before: Mapping[str, float]) -> dict[str, float]:
        return {
            name: float(sum(start < step.at <= end for step in self._steps(name)))
            for name in self.names
        }

    def losses(self) -> dict[str, dict[int, float]]:
        return {n: {step.number: step.loss for step in self._steps(n)} for n in self.names}

    def _steps(self, name: str) -> list[Step]:
        path = self.folder / f"{name}.log"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [Step(float(at), int(number), float(loss)) for at, number, loss in whole]


class _Pages:
    """Follows the progress pages of our trainer's jobs."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.steps: dict[str, float] = {}

    def look(self) -> bool:
        for page in self.runs.glob("*/jobs/*/attempts/*/progress"):
            found = read_progress(str(page))
            if found and found["step"]:
                self.steps[str(page)] = float(found["step"])
        return bool(self.steps)

    def counts(self) -> Mapping[str, float]:
        return dict(self.steps)

    def between(self, start: float, end: float, before: Mapping[str, float]) -> dict[str, float]:
        del start, end
        self.look()
        return {page: steps - before.get(page, 0.0) for page, steps in self.steps.items()}

    def losses(self) -> dict[str, dict[int, float]]:
        return {}


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / 100
