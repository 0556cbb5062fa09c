"""Attempts as real processes, from their start to what is left of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmixer.errors import StorageError
from rmixer.execute.base import End, ExecutionError, LostEnd
from rmixer.execute.process import ProcessExecutor
from rmixer.execute.tagged import find_tagged, kill_tagged
from rmixer.model import JobSpec, Node, Outcome, Placement, StateName
from rmixer.paths import AttemptPaths, RunPaths
from waiting import alive, wait_until

pytestmark = pytest.mark.e2e

LIMIT_SECONDS = 30.0
CANCELLED = Outcome(state=StateName.CANCELLED, reason="asked for")
CORES = tuple(sorted(os.sched_getaffinity(0)))


class Run:
    """One run's directory and an executor for it."""

    def __init__(self, directory: Path, token: str, grace_seconds: float = 20.0) -> None:
        self.directory, self.token = directory, token
        self.paths = RunPaths(directory / "run")
        self.executor = ProcessExecutor(self.paths, Node(cores=CORES), grace_seconds=grace_seconds)

    def job(self, *argv: str, **payload: Any) -> JobSpec:
        payload = {"argv": argv, "workdir": str(self.directory), **payload}
        return JobSpec(id="a", name="A", kind="command", payload=payload)

    def start(self, *argv: str, placement: Placement | None = None, **payload: Any) -> int:
        job = self.job(*argv, **payload)
        return self.executor.start(job, 1, self.token, placement or Placement())

    def wait(self) -> End | LostEnd:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (ends := self.executor.poll()):
            left = deadline - time.monotonic()
            assert left > 0, "nothing ended"
            select.select(self.executor.filenos(), [], [], left)
        (end,) = ends
        return end

    def ended(self) -> End:
        end = self.wait()
        assert isinstance(end, End), end
        return end

    def lost(self) -> LostEnd:
        end = self.wait()
        assert isinstance(end, LostEnd), end
        return end

    @property
    def attempt(self) -> AttemptPaths:
        return self.paths.job("a").attempt(1)

    @property
    def log(self) -> str:
        return self.attempt.log.read_text()

    def number_in(self, name: str) -> int:
        """A number that the job has written to a file, once it is whole."""
        path = self.directory / name
        return int(
            wait_until(
                lambda: path.exists() and path.read_text().endswith("\n") and path.read_text()
            )
        )


@pytest.fixture
def token() -> Iterator[str]:
    """A token, and the certainty that nothing of it is left after the test."""
    value = os.urandom(16).hex()
    yield value
    left = find_tagged(value)
    kill_tagged(value)
    assert left == [], "processes outlived their job"


@pytest.fixture
def run(tmp_path: Path, token: str) -> Iterator[Run]:
    made = Run(tmp_path, token, grace_seconds=0.3)
    yield made
    made.executor.close()


WAIT = "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done"
DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open("daemon", "w") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""


# --- what a job is given ----------------------------------------------------------------------------


def test_environment_of_a_job(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the placement, the user's own values, the tag, a scratch directory that exists."""
    show = "import json, os; print(json.dumps([dict(os.environ), os.path.isdir(os.environ['TMPDIR'])]))"
    run.start(
        sys.executable, "-c", show, placement=Placement(threads=1), env={"MKL_NUM_THREADS": 7}
    )
    assert run.ended().outcome.state == StateName.SUCCEEDED
    environment, scratch_is_there = json.loads(run.log)
    assert environment["OPENBLAS_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "1"
    assert environment["MKL_NUM_THREADS"] == "7"
    assert environment["RMIXER_TOKEN"] == run.token
    assert environment["RMIXER_RUN_DIR"] == str(run.paths.root)
    assert scratch_is_there
    assert not run.attempt.scratch.exists()


@pytest.mark.parametrize("cores", [(CORES[-1],), ()])
def test_cores_of_a_job(run: Run, cores: tuple[int, ...]) -> None:
    """A job runs on the cores of its placement, without any on the node's."""
    show = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    run.start(sys.executable, "-c", show, placement=Placement(cores=cores))
    run.ended()
    assert json.loads(run.log) == list(cores or CORES)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_rebooking_moves_every_thread(run: Run) -> None:
    """Processes and threads that run already are pinned to the new cores."""
    threads = (
        "import os, threading, time\nos.fork()\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "open(f'{os.getpid()}.ready', 'w').close()\ntime.sleep(1000)"
    )
    run.start(sys.executable, "-W", "ignore", "-c", threads, placement=Placement(cores=CORES[:1]))
    wait_until(lambda: len(list(run.directory.glob("*.ready"))) == 2)
    run.executor.rebook(run.token, Placement(cores=CORES[1:2]))
    pids = run.executor.pids(run.token)
    tasks = [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    assert len(tasks) == 4
    assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset(CORES[1:2])}
    run.executor.stop(run.token, force=True)
    run.ended()


def test_result_of_a_job(run: Run) -> None:
    """What a job wrote about itself comes with its end; half a file does not."""
    run.start("sh", "-c", f"echo '{{\"steps\": 3}}' > {run.attempt.result}")
    assert run.ended().result == {"steps": 3}


def test_sixteen_at_once(tmp_path: Path, token: str) -> None:
    """Many attempts end one by one, each told once."""
    run = Run(tmp_path, token)
    for number in range(16):
        run.executor.start(
            run.job("sh", "-c", f"exit {number}"), number, f"{token}{number}", Placement()
        )
    codes: dict[str, int | None] = {}
    while len(codes) < 16:
        select.select(run.executor.filenos(), [], [], LIMIT_SECONDS)
        for end in run.executor.poll():
            assert isinstance(end, End)
            assert end.token not in codes
            codes[end.token] = end.outcome.exit_code
    assert codes == {f"{token}{number}": number for number in range(16)}
    run.executor.close()


# --- stopping ---------------------------------------------------------------------------------------


def test_stop_right_after_start(run: Run) -> None:
    """An order that comes before the shim has set itself up is neither lost nor deadly to it."""
    for number in range(1, 6):
        run.executor.start(run.job("sleep", "1000"), number, run.token, Placement())
        run.executor.stop(run.token, force=bool(number % 2), outcome=CANCELLED)
        assert run.ended().outcome.state == StateName.CANCELLED


def test_stop_takes_all_that_a_job_has_spawned(run: Run) -> None:
    """A daemon in a session of its own that ignores SIGTERM goes with its job."""
    run.start(sys.executable, "-c", DAEMON)
    daemon = run.number_in("daemon")
    assert daemon in run.executor.pids(run.token)
    run.executor.stop(run.token, force=False, outcome=CANCELLED)
    end = run.ended()
    assert (end.outcome.state, end.usage["stopped"]) == (StateName.CANCELLED, True)
    assert not alive(daemon)


def test_shim_that_is_killed_leaves_nothing(run: Run) -> None:
    """With its shim gone, a job and its daemon are found by their tag, and the job is lost."""
    shim = run.start(sys.executable, "-c", DAEMON)
    daemon = run.number_in("daemon")
    temporary = json.loads(run.attempt.order.read_text())["env"]["TMPDIR"]
    assert Path(temporary).is_dir()
    os.kill(shim, signal.SIGKILL)
    end = run.lost()
    assert not os.path.lexists(temporary)
    assert not run.attempt.scratch.exists()
    assert "its shim was killed (SIGKILL)" in end.message
    assert not alive(daemon)
    assert find_tagged(run.token) == []


def test_pids_without_the_shim(run: Run) -> None:
    """A job's processes can still be listed when its shim is gone."""
    shim = run.start("sh", "-c", WAIT)
    job = run.number_in("pid")
    assert job in run.executor.pids(run.token)
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not alive(shim))
    assert job in run.executor.pids(run.token)
    run.lost()


# --- another runner takes over ------------------------------------------------------------------------


RUNNER = """
import json, sys, time
from pathlib import Path
from rmixer.execute.process import ProcessExecutor
from rmixer.model import JobSpec, Node, Placement
from rmixer.paths import RunPaths
directory, token, *argv = sys.argv[1:]
executor = ProcessExecutor(RunPaths(Path(directory) / "run"), Node(), grace_seconds=0.3)
payload = {"argv": argv, "workdir": directory}
print(executor.start(JobSpec(id="a", name="A", kind="command", payload=payload), 1, token, Placement()), flush=True)
time.sleep(1000)
"""


@contextmanager
def killed_runner(run: Run, *argv: str) -> Iterator[int]:
    """A runner in a process of its own that starts a job; killed with SIGKILL at the end."""
    words = [sys.executable, "-c", RUNNER, str(run.directory), run.token, *argv]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_running_attempt_is_adopted(run: Run) -> None:
    """A job outlives its runner; another one watches it to its end."""
    with killed_runner(run, "sh", "-c", WAIT + "; exit 5") as shim:
        job = run.number_in("pid")
    assert alive(job)
    assert run.executor.adopt(run.job(), 1, run.token) == shim
    assert run.executor.poll() == []
    assert run.executor.pids(run.token)[0] == job
    (run.directory / "go").touch()
    assert run.ended().outcome.exit_code == 5


def test_adopted_attempt_can_be_stopped(run: Run) -> None:
    """Orders reach a shim that is not our child, and its end counts as ordered."""
    with killed_runner(run, "sh", "-c", WAIT):
        job = run.number_in("pid")
    run.executor.adopt(run.job(), 1, run.token)
    run.executor.stop(run.token, force=False, outcome=CANCELLED)
    assert run.ended().outcome.state == StateName.CANCELLED
    assert not alive(job)


def test_runner_killed_right_after_the_start(run: Run) -> None:
    """Whoever is first, the shim or who adopts: the job runs under watch, or never."""
    with killed_runner(run, "sh", "-c", "echo ran >> runs") as shim:
        pass
    adopted = run.executor.adopt(run.job(), 1, run.token)
    assert adopted in (shim, None)
    end = run.wait()
    runs = run.directory / "runs"
    if isinstance(end, End):
        assert runs.read_text() == "ran\n"
    else:
        wait_until(lambda: not alive(shim))
        assert not runs.exists()


def test_end_that_nobody_saw_is_told(run: Run) -> None:
    """A job that ended without a runner has the end that its shim wrote."""
    with killed_runner(run, "sh", "-c", "exit 6") as shim:
        pass
    wait_until(lambda: run.attempt.exit.exists() and not alive(shim))
    assert run.executor.adopt(run.job(), 1, run.token) is None
    assert run.ended().outcome.exit_code == 6


def test_shim_and_runner_both_killed(run: Run) -> None:
    """What such a job has left running is ended, the attempt revoked, the job lost."""
    with killed_runner(run, "sh", "-c", WAIT) as shim:
        job = run.number_in("pid")
        os.kill(shim, signal.SIGKILL)
        wait_until(lambda: not alive(shim))
    assert alive(job)
    assert run.executor.adopt(run.job(), 1, run.token) is None
    assert "shim was killed" in run.lost().message
    assert not alive(job)
    assert run.attempt.revoked.exists()
    assert not run.attempt.scratch.exists()


def test_restart_of_the_machine_is_a_loss(run: Run) -> None:
    """A shim of another boot does not run, even if its pid does."""
    run.start("sh", "-c", "exit 0")
    run.ended()
    started = json.loads(run.attempt.started.read_text())
    run.attempt.started.write_text(
        json.dumps({**started, "boot_id": "another", "pid": os.getpid()})
    )
    run.attempt.exit.unlink()
    assert run.executor.adopt(run.job(), 1, run.token) is None
    assert run.lost().message == "the machine was restarted"


def test_pid_that_was_given_again_is_not_adopted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the right pid that began at another time is somebody else."""
    monkeypatch.setattr("rmixer.execute.process.ADOPT_SECONDS", 0.05)
    with killed_runner(run, "sh", "-c", WAIT) as shim:
        run.number_in("pid")
    started = wait_until(
        lambda: (now := json.loads(run.attempt.started.read_text())).get("job_pid") and now
    )
    other = {**started, "start_time": started["start_time"] - 1}
    run.attempt.started.write_text(json.dumps(other))
    with pytest.raises(ExecutionError, match="has not said who it is"):
        run.executor.adopt(run.job(), 1, run.token)
    run.attempt.started.write_text(json.dumps(started))
    assert run.executor.adopt(run.job(), 1, run.token) == shim
    run.executor.stop(run.token, force=True)
    run.ended()


def test_lock_of_a_stranger_is_not_guessed_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that is held by who does not say who it is neither runs again nor is lost."""
    run.start("true")
    run.ended()
    run.attempt.started.unlink()
    monkeypatch.setattr("rmixer.execute.process.ADOPT_SECONDS", 0.05)
    holder = subprocess.Popen(
        ["flock", str(run.attempt.lock), "sleep", "1000"], start_new_session=True
    )
    try:
        wait_until(
            lambda: (
                subprocess.run(
                    ["flock", "-n", str(run.attempt.lock), "true"], check=False
                ).returncode
            )
        )
        with pytest.raises(ExecutionError, match="has not said who it is"):
            run.executor.adopt(run.job(), 1, run.token)
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert run.executor.poll() == []


# --- where it cannot be done ------------------------------------------------------------------------


def test_directory_that_cannot_be_made(tmp_path: Path, token: str) -> None:
    """A file in the way of the run's directory is told by name; nothing is started."""
    (tmp_path / "run").write_text("")
    run = Run(tmp_path, token)
    with pytest.raises(StorageError, match="run/jobs/a/attempts/1: cannot be made"):
        run.start("true")
    assert run.executor.roots() == {}
    run.executor.close()


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A file system of that size."""
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Take all space that is left."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return filler
    raise AssertionError("the disk has no end")


def test_full_disk_at_the_start(tmp_path: Path, token: str) -> None:
    """Starting says that the disk is full, and leaves no half an attempt."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        run = Run(disk, token)
        fill(disk)
        with pytest.raises(StorageError, match="No space left on device"):
            run.start("true")
        assert not run.attempt.root.exists()
        assert run.executor.roots() == {}
        run.executor.close()


def test_disk_that_fills_up_meanwhile(tmp_path: Path, token: str) -> None:
    """A job's end is written although there is no space left, and its log tells the reason."""
    with small_disk(tmp_path / "disk", "512k") as disk:
        run = Run(disk, token)
        run.start("sh", "-c", WAIT + "; cat /dev/zero > big")
        run.number_in("pid")
        fill(disk)
        (disk / "go").touch()
        end = run.ended()
        assert (end.outcome.state, end.outcome.exit_code) == (StateName.FAILED, 1)
        assert end.usage["stopped"] is False
        run.executor.close()


def test_binary_log_without_a_line_end(run: Run) -> None:
    """Whatever a job prints, the end of it can be shown."""
    run.start("sh", "-c", r"printf 'one\n\377\000two'; exit 1")
    assert run.ended().outcome.message == "one\n\ufffdtwo"


@contextmanager
def memory_cage(limit_bytes: int) -> Iterator[Path]:
    """A control group with a memory limit; its ``cgroup.procs`` takes processes in."""
    own = {
        name: path
        for _, names, path in (
            line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        for name in names.split(",")
    }
    if "memory" in own:
        parent, limit = Path("/sys/fs/cgroup/memory" + own["memory"]), "memory.limit_in_bytes"
    else:
        parent, limit = Path("/sys/fs/cgroup" + own.get("", "/")), "memory.max"
    group = parent / f"rmixer-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError:
            pytest.skip("no memory limit can be set here")
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_kill_for_memory_is_told_from_other_kills(run: Run) -> None:
    """A job that the kernel kills for memory is OUT_OF_MEMORY; one killed by hand has FAILED."""
    with memory_cage(64 * 1024**2) as cage:
        grow = f"echo $$ > {cage}/cgroup.procs; exec {sys.executable} -c 'bytearray(2**30)'"
        run.start("sh", "-c", grow)
        end = run.ended()
        assert (end.outcome.state, end.outcome.reason) == (StateName.OUT_OF_MEMORY, "host")
        assert end.outcome.signal == signal.SIGKILL
        assert end.usage["oom_kills"] >= 1
    run.executor.start(run.job("sh", "-c", "kill -9 $$"), 2, run.token, Placement())
    end = run.ended()
    assert (end.outcome.state, end.outcome.reason) == (StateName.FAILED, "SIGKILL")
