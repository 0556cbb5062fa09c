"""The shim by itself: real processes, no rmixer around them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shim_attempt import LIMIT_SECONDS, Attempt

from rmixer.launch import shim
from rmixer.monitor import descendants
from waiting import alive, wait_until


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    directory = tmp_path / "attempt"
    directory.mkdir()
    return Attempt(directory)


# --- how it ended -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, None), ("exit 3", 3, None), ("kill -SEGV $$", None, signal.SIGSEGV)],
)
def test_end_is_on_disk(
    attempt: Attempt, script: str, code: int | None, number: int | None
) -> None:
    """The program's own code, or the signal that ended it, is in exit.json."""
    end = attempt.run("sh", "-c", script)
    assert (end["exit_code"], end["signal"], end["stopped"], end["error"]) == (
        code,
        number,
        False,
        None,
    )
    assert [end["token"]] == ["t"]
    assert end["ended_at"] <= time.time()
    assert end["seconds"] > 0
    assert end["max_rss_bytes"] > 2**20


def test_usage_counts_the_children(attempt: Attempt) -> None:
    """Processor time of the job is in exit.json."""
    end = attempt.run(sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass")
    assert end["user_seconds"] + end["system_seconds"] >= 0.3


def test_started_names_the_shim_for_good(attempt: Attempt) -> None:
    """Pid, start time and boot id name the shim, and job_pid the program."""
    attempt.order("sh", "-c", "echo $$ > pid; exec sleep 1000")
    process = attempt.spawn()
    job = attempt.pid_in("pid")
    started = wait_until(
        lambda: (
            (found := json.loads((attempt.directory / shim.STARTED).read_text())).get("job_pid")
            and found
        )
    )
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    assert (started["pid"], started["start_time"]) == (process.pid, int(stat[19]))
    assert started["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert started["job_pid"] == job
    process.send_signal(signal.SIGQUIT)
    assert process.wait(LIMIT_SECONDS) == shim.RAN


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda where: str(where / "nowhere"), 127, "No such file"),
        (str, 126, "Permission denied"),
        (lambda where: "no-such-program-at-all", 127, "No such file"),
    ],
)
def test_program_that_cannot_start(
    attempt: Attempt, make: Callable[[Path], str], code: int, words: str
) -> None:
    """Not found is 127, not executable 126, with the program's name in exit.json and the log."""
    program = make(attempt.directory)
    end = attempt.run(program)
    assert end["exit_code"] == code
    assert words in end["error"]
    assert program in end["error"]
    assert program in attempt.log


def test_script_without_an_interpreter_line(attempt: Attempt) -> None:
    """An executable file that is no program is 126, and the message says what it lacks."""
    script = attempt.directory / "script"
    script.write_text("echo hi\n")
    script.chmod(0o755)
    end = attempt.run(str(script))
    assert end["exit_code"] == 126
    assert "#!" in end["error"]


def test_missing_directory_is_named(attempt: Attempt) -> None:
    """A working directory that is gone is what the message names."""
    end = attempt.run("true", cwd=str(attempt.directory / "gone"))
    assert end["exit_code"] == 127
    assert "gone" in end["error"]


# --- once -------------------------------------------------------------------------------------------


def test_two_shims_on_one_attempt(attempt: Attempt) -> None:
    """Of two shims that start together exactly one runs the job."""
    for _ in range(5):
        for name in (shim.STARTED, shim.EXIT):
            (attempt.directory / name).unlink(missing_ok=True)
        (attempt.directory / "runs").unlink(missing_ok=True)
        attempt.order("sh", "-c", "echo ran >> runs")
        codes = sorted(
            process.wait(LIMIT_SECONDS) for process in [attempt.spawn(), attempt.spawn()]
        )
        assert codes == [shim.RAN, shim.REFUSED]
        assert (attempt.directory / "runs").read_text() == "ran\n"


@pytest.mark.parametrize("name", [shim.REVOKED, shim.STARTED, shim.EXIT])
def test_taken_attempt_is_refused(attempt: Attempt, name: str) -> None:
    """A revoked, started or ended attempt never runs, and its files stay as they are."""
    attempt.order("touch", "ran")
    (attempt.directory / name).write_text("{}")
    assert attempt.spawn().wait(LIMIT_SECONDS) == shim.REFUSED
    assert not (attempt.directory / "ran").exists()
    assert (attempt.directory / name).read_text() == "{}"


def test_locked_attempt_is_refused(attempt: Attempt) -> None:
    """While another holds the lock, an attempt does not run, even with nothing else to show it."""
    attempt.order("touch", "ran")
    with (attempt.directory / shim.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert attempt.spawn().wait(LIMIT_SECONDS) == shim.REFUSED
    assert not (attempt.directory / "ran").exists()
    assert not (attempt.directory / shim.STARTED).exists()


# --- nothing outlives it ------------------------------------------------------------------------------


def test_stop_is_recorded(attempt: Attempt) -> None:
    """A stopped job's end says so, whatever code the program chose."""
    attempt.order("sh", "-c", "trap 'exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done")
    process = attempt.spawn()
    attempt.pid_in("pid")
    process.terminate()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert (attempt.end()["stopped"], attempt.end()["exit_code"]) == (True, 0)


def test_job_that_ignores_sigterm(attempt: Attempt) -> None:
    """After the grace it is killed."""
    attempt.order(
        "sh", "-c", "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done", grace_seconds=0.2
    )
    process = attempt.spawn()
    job = attempt.pid_in("pid")
    process.terminate()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert not alive(job)
    assert (attempt.end()["stopped"], attempt.end()["signal"]) == (True, signal.SIGKILL)


def test_force_skips_the_grace(attempt: Attempt) -> None:
    """SIGQUIT kills a job in the middle of a long grace."""
    attempt.order(
        "sh",
        "-c",
        "trap 'echo > told' TERM; echo $$ > pid; while :; do sleep 0.01; done",
        grace_seconds=3600,
    )
    process = attempt.spawn()
    attempt.pid_in("pid")
    process.terminate()
    wait_until((attempt.directory / "told").exists)
    process.send_signal(signal.SIGQUIT)
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert attempt.end()["signal"] == signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGPIPE])
def test_other_signals_to_the_shim_do_nothing(attempt: Attempt, number: int) -> None:
    """Ctrl-C and a closed terminal are the runner's business."""
    attempt.order("sh", "-c", "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done")
    process = attempt.spawn()
    attempt.pid_in("pid")
    process.send_signal(number)
    (attempt.directory / "go").touch()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert (attempt.end()["exit_code"], attempt.end()["stopped"]) == (0, False)


FAMILY = "echo $$ > pid; sleep 1000 & echo $! > child; while [ ! -e go ]; do sleep 0.01; done"


def state(pid: int) -> str:
    """One letter: T is a process that stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def standing(attempt: Attempt) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A job of two processes that was told to stand still, and does."""
    attempt.order("sh", "-c", FAMILY)
    process = attempt.spawn()
    pids = [attempt.pid_in("pid"), attempt.pid_in("child")]

    def stands() -> bool:
        process.send_signal(signal.SIGUSR1)  # again and again, as who wants it does
        return {state(pid) for pid in pids} == {"T"}

    wait_until(stands)
    return process, pids


def test_a_job_stands_still_and_goes_on(attempt: Attempt) -> None:
    """All of its processes; the time is counted, and its end is its own."""
    process, pids = standing(attempt)
    process.send_signal(signal.SIGUSR2)
    wait_until(lambda: "T" not in {state(pid) for pid in pids})
    (attempt.directory / "go").touch()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert (attempt.end()["exit_code"], attempt.end()["stopped"]) == (0, False)
    assert 0 < attempt.end()["suspended_seconds"] < attempt.end()["seconds"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_job_that_stands_still_can_be_stopped(attempt: Attempt, number: int) -> None:
    """At once, without its grace, and with nothing left standing."""
    process, pids = standing(attempt)
    process.send_signal(number)
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert attempt.end()["stopped"]
    assert not any(alive(pid) for pid in pids)


def test_a_job_goes_on_when_nobody_says_that_it_is_to_stand_still(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the death of its runner: by itself, after a while."""
    quick = "import sys; sys.path[:0] = [sys.argv[1]]; import shim; shim.STAND_SECONDS = 0.5"
    program = [sys.executable, "-c", f"{quick}; sys.exit(shim.main(sys.argv[2]))"]
    monkeypatch.setattr(
        attempt, "program", [*program, str(Path(shim.__file__).parent), str(attempt.directory)]
    )
    process, pids = standing(attempt)
    wait_until(lambda: "T" not in {state(pid) for pid in pids})
    assert "it goes on" in attempt.log
    process.send_signal(signal.SIGQUIT)
    assert process.wait(LIMIT_SECONDS) == shim.RAN


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open("daemon", "w") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(1000)
    os._exit(0)
os.wait()
while not (os.path.exists("daemon") and open("daemon").read().endswith("\\n")):
    time.sleep(0.005)
"""


def test_daemon_does_not_outlive_its_job(attempt: Attempt) -> None:
    """A grandchild in a session of its own that ignores SIGTERM ends with the job's success."""
    end = attempt.run(sys.executable, "-c", DAEMON)
    assert not alive(attempt.pid_in("daemon"))
    assert (end["exit_code"], end["survivors_killed"]) == (0, 1)


def test_daemon_does_not_outlive_a_stop(attempt: Attempt) -> None:
    """Told to stop, the same grandchild goes too, after the grace."""
    attempt.order(sys.executable, "-c", DAEMON + "\ntime.sleep(1000)", grace_seconds=0.2)
    process = attempt.spawn()
    daemon = attempt.pid_in("daemon")
    process.terminate()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert not alive(daemon)


def test_stopped_process_is_woken_to_end(attempt: Attempt) -> None:
    """A job that was paused gets SIGTERM at once, not after its grace."""
    attempt.order(
        "sh",
        "-c",
        "trap 'exit 7' TERM; echo $$ > pid; while :; do sleep 0.01; done",
        grace_seconds=3600,
    )
    process = attempt.spawn()
    os.kill(attempt.pid_in("pid"), signal.SIGSTOP)
    process.terminate()
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert attempt.end()["exit_code"] == 7


def test_tree_that_keeps_forking_is_killed(attempt: Attempt) -> None:
    """Processes that make new ones while they are killed do not get away."""
    forks = "import os, time\nopen('pid', 'w').write('1\\n')\nwhile True:\n    if os.fork(): time.sleep(0.003); os._exit(0)"
    attempt.order(sys.executable, "-c", forks)
    process = attempt.spawn()
    attempt.pid_in("pid")
    process.send_signal(signal.SIGQUIT)
    assert process.wait(LIMIT_SECONDS) == shim.RAN
    assert descendants(process.pid) == []


# --- what the job is given --------------------------------------------------------------------------


SHOW_SESSION = """
import json, os
files = [number for number in range(256) if os.path.lexists(f"/proc/self/fd/{number}")]
print(json.dumps([os.getsid(0), os.getpid(), files, os.readlink("/proc/self/fd/0")]))
"""
SHOW_SIGNALS = """
import json, signal
ignored = [s for s in range(1, 32) if s not in (9, 19) and signal.getsignal(s) == signal.SIG_IGN]
print(json.dumps([ignored, [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])]]))
"""


def test_signals_are_default_whatever_the_parent_ignored(attempt: Attempt) -> None:
    """A runner started with ``&`` ignores SIGINT; its jobs do not, and block nothing."""
    attempt.order(sys.executable, "-c", SHOW_SIGNALS)

    def ignoring() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert attempt.spawn(preexec_fn=ignoring).wait(LIMIT_SECONDS) == shim.RAN
    ignored, blocked = json.loads(attempt.log)
    # Python itself ignores these two from its start on.
    assert set(ignored) <= {signal.SIGPIPE, signal.SIGXFSZ}
    assert blocked == []
    assert attempt.end()["exit_code"] == 0


def test_environment_is_changed_not_replaced(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are set and removed; the rest is inherited."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GONE", "1")
    attempt.run("sh", "-c", "echo $KEPT,$GONE,$MINE", env={"GONE": None, "MINE": "é"})
    assert attempt.log == "1,,é\n"


def test_affinity_is_in_force(attempt: Attempt) -> None:
    """The job runs on the cores of its order."""
    core = max(os.sched_getaffinity(0))
    attempt.run(sys.executable, "-c", "import os; print(os.sched_getaffinity(0))", cores=[core])
    assert attempt.log == f"{{{core}}}\n"


def test_impossible_affinity_is_said_and_the_job_runs(attempt: Attempt) -> None:
    """Cores that went away since the order leave the job unpinned."""
    end = attempt.run("true", cores=[9999])
    assert end["exit_code"] == 0
    assert "sched_setaffinity" in attempt.log


def test_job_has_its_own_session_and_no_files_of_ours(attempt: Attempt) -> None:
    """A job leads its session, and has standard input, output and error only."""
    attempt.run(sys.executable, "-c", SHOW_SESSION)
    session, pid, files, stdin = json.loads(attempt.log)
    assert (session, files, stdin) == (pid, [0, 1, 2], "/dev/null")


def test_job_goes_before_us_where_memory_runs_out(attempt: Attempt) -> None:
    """The kernel's score of the job is raised, that of the shim is not."""
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    attempt.run("cat", "/proc/self/oom_score_adj")
    assert int(attempt.log) == min(1000, ours + shim.OOM_SCORE_RAISE)


def test_log_is_appended_in_order(attempt: Attempt) -> None:
    """What is in the log stays, and output and errors come in the order of their writing."""
    (attempt.directory / "log.txt").write_text("before\n")
    attempt.run("sh", "-c", "echo 1; echo 2 >&2; echo 3; printf end")
    assert attempt.log == "before\n1\n2\n3\nend"


def test_scratch_is_removed(attempt: Attempt) -> None:
    """Temporary files of the job and the short name that led to them are gone at its end."""
    link = attempt.directory / "short"
    link.symlink_to(attempt.directory / shim.SCRATCH)
    attempt.run("sh", "-c", "mkdir -p short/deep && touch short/deep/file", temporary=str(link))
    assert not link.is_symlink()
    assert not (attempt.directory / shim.SCRATCH).exists()


def test_end_waits_for_space_on_a_full_disk(tmp_path: Path) -> None:
    """Without space kept for it, the end is written as soon as there is some."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        attempt = Attempt(disk)
        attempt.order("sh", "-c", "cat /dev/zero > big; exit 4")
        process = attempt.spawn()
        wait_until(lambda: (disk / "big").exists() and not descendants(process.pid))
        assert not (disk / shim.EXIT).exists()
        assert process.poll() is None
        (disk / "big").unlink()
        assert process.wait(LIMIT_SECONDS) == shim.RAN
        assert attempt.end()["exit_code"] == 4
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_directory_that_is_deleted_meanwhile_ends_the_shim(attempt: Attempt) -> None:
    """Who removes a run's folder does not leave a shim that waits for ever."""
    attempt.order("sh", "-c", f"rm -rf {attempt.directory}")
    assert attempt.spawn().wait(LIMIT_SECONDS) == shim.RAN
