"""What people start a queue of commands with, and RMixer: each a process that works through it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
CORES = len(os.sched_getaffinity(0))
#: An interpreter that has `ray[tune]`, which brings its own versions of much.
RAY_PYTHON = os.environ.get("RMIXER_BENCH_RAY", str(HERE.parent / ".venv-ray" / "bin" / "python"))
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class Queue:
    """Work for a runner.

    Attributes:
        commands: of the jobs, by their names.
        jobs: the jobs of RMixer's file, if they are not these commands.
    """

    commands: Mapping[str, Sequence[str]]
    jobs: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Runner:
    """One way to work through a queue.

    Attributes:
        start: makes the command line and the variables from a queue and an empty folder.
        end: what else is to be done at the end; given the folder.
        lack: why it cannot be measured on this machine, or None.
    """

    start: Callable[[Queue, Path], tuple[list[str], dict[str, str]]]
    end: Callable[[Path], None] = lambda _: None
    lack: Callable[[], str | None] = lambda: None


@contextlib.contextmanager
def running(runner: Runner, queue: Queue, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The runner at work in a session of its own; at the end all of it is stopped."""
    command, variables = runner.start(queue, folder)
    kept = {k: v for k, v in os.environ.items() if k not in ONE_THREAD}
    environment = kept | {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"} | variables
    with (folder / "runner.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd=folder,
        )  # fmt: skip
        try:
            yield process
        finally:
            _stop(process)
            runner.end(folder)
            _sweep(folder)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _sweep(folder: Path) -> None:
    """End what the runner has left: processes whose command line names a file in the folder."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while left := list(_mentioning(str(folder))):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SystemExit(f"processes {left} of {folder} do not end")
        time.sleep(0.1)


def _mentioning(text: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            said = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if alive and text.encode() in said:
                yield int(entry.name)


def _lines(queue: Queue, folder: Path) -> str:
    text = "".join(shlex.join(command) + "\n" for command in queue.commands.values())
    path = folder / "commands"
    path.write_text(text)
    return str(path)


def _shell(queue: Queue, folder: Path) -> tuple[list[str], dict[str, str]]:
    return ["bash", _lines(queue, folder)], {}


def _parallel(jobs: int, variables: Mapping[str, str]) -> Any:
    def start(queue: Queue, folder: Path) -> tuple[list[str], dict[str, str]]:
        home = folder / "home"
        (home / ".parallel").mkdir(parents=True)
        (home / ".parallel" / "will-cite").touch()
        found = ["parallel", "-j", str(jobs), "-a", _lines(queue, folder)]
        return found, {**variables, "HOME": str(home)}

    return start


def _spooler(queue: Queue, folder: Path) -> tuple[list[str], dict[str, str]]:
    script = [f"tsp -S {CORES}", *(f"tsp -n {shlex.join(c)}" for c in queue.commands.values())]
    path = folder / "spool"
    path.write_text("\n".join([*script, "sleep infinity"]) + "\n")
    return ["bash", str(path)], {**ONE_THREAD, "TS_SOCKET": str(folder / "s")}


def _end_spooler(folder: Path) -> None:
    subprocess.run(
        ["tsp", "-K"], env={**os.environ, "TS_SOCKET": str(folder / "s")}, check=False,
        capture_output=True,
    )  # fmt: skip


def _ray(queue: Queue, folder: Path) -> tuple[list[str], dict[str, str]]:
    variables = {"HOME": str(folder), "BENCH": str(folder)}
    return [RAY_PYTHON, str(HERE / "ray_side.py"), _lines(queue, folder), "0.5"], variables


def _rmixer(queue: Queue, folder: Path) -> tuple[list[str], dict[str, str]]:
    jobs = queue.jobs or [
        {"name": name, "command": list(command)} for name, command in queue.commands.items()
    ]
    YAML().dump({"jobs": [dict(job) for job in jobs]}, folder / "jobs.yaml")
    command = [sys.executable, "-m", "rmixer", "run", str(folder / "jobs.yaml")]
    variables = {"RMIXER_HOME": str(folder / "state"), "RMIXER_CACHE": str(folder.parent / "cache")}
    return [*command, "--runs-dir", str(folder / "runs")], variables


def _needs(program: str) -> Callable[[], str | None]:
    def lack() -> str | None:
        path = os.environ["PATH"].split(":")
        if any(os.access(f"{place}/{program}", os.X_OK) for place in path):
            return None
        return f"no {program} on the PATH"

    return lack


def _needs_ray() -> str | None:
    if Path(RAY_PYTHON).exists():
        return None
    return f"no {RAY_PYTHON}; `make bench-extra` makes it"


LOOP, CROWD, ONE_EACH, OURS = "shell loop", "parallel", "parallel, one thread", "rmixer"
RUNNERS: Mapping[str, Runner] = {
    LOOP: Runner(_shell),
    CROWD: Runner(_parallel(CORES, {}), lack=_needs("parallel")),
    ONE_EACH: Runner(_parallel(CORES, ONE_THREAD), lack=_needs("parallel")),
    "parallel, two a core": Runner(_parallel(2 * CORES, ONE_THREAD), lack=_needs("parallel")),
    "task-spooler, one thread": Runner(_spooler, _end_spooler, _needs("tsp")),
    "ray tune, half a core": Runner(_ray, lack=_needs_ray),
    OURS: Runner(_rmixer),
}
