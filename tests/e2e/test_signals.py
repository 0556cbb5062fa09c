"""Ctrl-C, SIGTERM, SIGHUP: gracefully first, at once then, and nothing outlives its job."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import PYTHON, Workplace, alive, wait_until, workplace

from rmixer.model import StateName

pytestmark = pytest.mark.e2e

INTERRUPTED = 130
#: Runs until it is told to go on, and says that it was asked to stop.
POLITE = "trap 'echo asked >> asked; exit 0' TERM; echo $$ >> {0}; while [ ! -e go ]; do sleep 0.02; done"
STUBBORN = "trap '' TERM; echo $$ >> {0}; while [ ! -e go ]; do sleep 0.02; done"
#: A grandchild in a session of its own that ignores SIGTERM, as a daemon does.
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
while not os.path.exists("daemon"):
    time.sleep(0.01)
if sys.argv[1] == "stay":
    time.sleep(1000)
"""
WORKERS = """
import os, time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.zeros(1)
loader = torch.utils.data.DataLoader(Slow(), num_workers=2)
for batch in loader:
    open("batch", "w").write(f"{os.getpid()}\\n")
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with workplace(tmp_path) as made:
        yield made


def all_running(place: Workplace, *names: str) -> list[int]:
    return [place.number_in(name) for name in names]


def interrupted_once(place: Workplace) -> subprocess.Popen[str]:
    """A runner with a finished and a running job and one that waits."""
    place.write(
        place.work("first"),
        place.shell("second", POLITE.format("pid"), after=["first"]),
        place.work("third", after=["second"]),
    )
    process = place.start("run", "jobs.yaml")
    place.number_in("pid")
    return process


def check_stopped_and_resumes(place: Workplace, process: subprocess.Popen[str]) -> None:
    """It says what was done, exits with 130, leaves nothing, and the next run does the rest."""
    ended = place.wait(process)
    assert ended.returncode == INTERRUPTED, ended.stderr
    assert "first" in ended.stdout
    assert "SUCCEEDED" in ended.stdout
    assert place.left() == []
    assert (place.directory / "asked").read_text() == "asked\n"
    assert list(place.names().values()) == [
        StateName.SUCCEEDED,
        StateName.PENDING,
        StateName.PENDING,
    ]
    (place.directory / "go").touch()
    again = place.run("run", "jobs.yaml")
    assert again.returncode == 0, again.stderr
    assert set(place.names().values()) == {StateName.SUCCEEDED}
    assert place.told("start", "first") == 1
    assert all(job.tries_used == 1 for job in place.state().jobs.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_gracefully(place: Workplace, number: signal.Signals) -> None:
    """Jobs are asked to stop; done work is reported and kept; the interrupted job loses no try."""
    process = interrupted_once(place)
    process.send_signal(number)
    check_stopped_and_resumes(place, process)


def test_ctrl_c_goes_to_the_whole_group(place: Workplace) -> None:
    """A terminal signals every process of the group; the jobs are in sessions of their own."""
    process = interrupted_once(place)
    os.killpg(process.pid, signal.SIGINT)
    check_stopped_and_resumes(place, process)


def test_second_ctrl_c_kills_at_once(place: Workplace) -> None:
    """Jobs that do not listen to SIGTERM are gone long before their grace is over."""
    place.write(*(place.shell(f"s{i}", STUBBORN.format(f"pid{i}")) for i in range(2)))
    process = place.start("run", "jobs.yaml")
    pids = all_running(place, "pid0", "pid1")
    process.send_signal(signal.SIGINT)
    wait_until(
        lambda: all(job.state.name == StateName.COMPLETING for job in place.state().jobs.values())
    )
    assert all(alive(pid) for pid in pids)
    process.send_signal(signal.SIGINT)
    ended = place.wait(process)
    assert ended.returncode == INTERRUPTED
    assert "killing all jobs" in ended.stderr
    assert place.left() == []
    state = place.state()
    assert state.finished is not None
    stopped = min(job.attempts[-1].ended_at or 0.0 for job in state.jobs.values())
    assert state.began is not None
    assert stopped < state.began.grace_seconds
    assert set(place.names().values()) == {StateName.PENDING}


def test_signal_before_anything_runs(place: Workplace) -> None:
    """A runner that is still reading its file exits with 130 and starts nothing."""
    os.mkfifo(place.directory / "slow.yaml")
    process = place.start("run", "slow.yaml")
    writer = os.open(place.directory / "slow.yaml", os.O_WRONLY)  # opens once it is being read
    process.send_signal(signal.SIGTERM)
    ended = place.wait(process)
    os.close(writer)
    assert ended.returncode == INTERRUPTED
    assert not (place.directory / "runs").exists()


def test_jobs_of_a_background_runner_hear_ctrl_c(place: Workplace) -> None:
    """A shell's ``&`` ignores SIGINT for the runner; its jobs have the default all the same."""
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    place.write({"name": "a", "command": [PYTHON, "-c", show]})
    process = place.start("run", "jobs.yaml", wrapper=["sh", "-c", '"$@" & wait $!', "sh"])
    ended = place.wait(process)
    assert ended.returncode == 0, ended.stderr
    (job,) = place.state().jobs
    assert place.paths().job(job).attempt(1).log.read_text() == "True\n"


def test_nohup_outlives_the_terminal(place: Workplace) -> None:
    """Under nohup SIGHUP stops nothing."""
    place.write(place.work("a", "go"))
    process = place.start("run", "jobs.yaml", wrapper=["nohup"])
    wait_until(lambda: place.told("start"))
    process.send_signal(signal.SIGHUP)
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0


def test_reader_that_goes_away_stops_nothing(place: Workplace) -> None:
    """Where nobody reads the runner's output any more, its jobs go on to their end."""
    place.write(place.work("a", "go"), place.work("b", after=["a"]))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start"))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    (place.directory / "go").touch()
    assert process.wait(60) == 0
    assert set(place.names().values()) == {StateName.SUCCEEDED}


# --- nothing outlives its job -----------------------------------------------------------------------


def test_daemon_dies_with_a_job_that_ends(place: Workplace) -> None:
    """A double-forked grandchild of a job that succeeded does not stay."""
    (place.directory / "daemon.py").write_text(DAEMON)
    place.write({"name": "a", "command": [PYTHON, "-S", "daemon.py", "go"]})
    assert place.run("run", "jobs.yaml").returncode == 0
    assert not alive(place.number_in("daemon"))


def test_daemon_dies_by_ctrl_c(place: Workplace) -> None:
    """Nor does it when the run is stopped."""
    (place.directory / "daemon.py").write_text(DAEMON)
    place.write({"name": "a", "command": [PYTHON, "-S", "daemon.py", "stay"]})
    process = place.start("run", "jobs.yaml")
    daemon = place.number_in("daemon")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: any(j.state.name == "COMPLETING" for j in place.state().jobs.values()))
    process.send_signal(signal.SIGINT)
    assert place.wait(process).returncode == INTERRUPTED
    assert not alive(daemon)


CANCEL = """
import os, sys
import rmixer
def on_event(run, event):
    if event.type == "spawned":
        while not os.path.exists("daemon"):
            pass
        run.cancel("a")
done = rmixer.run([rmixer.Job("a", command=[sys.executable, "-S", "daemon.py", "stay"])],
                  on_event=on_event, grace_seconds=0.2)
print(done.exit_code, done.document["jobs"][0]["state"])
"""


def test_daemon_dies_by_cancel(place: Workplace) -> None:
    """Nor when its job is cancelled, here from Python."""
    (place.directory / "daemon.py").write_text(DAEMON)
    ended = place.run(program=CANCEL)
    assert ended.stdout == "1 CANCELLED\n", ended.stderr
    assert not alive(place.number_in("daemon"))


def test_workers_of_a_loader_die_with_their_job(place: Workplace) -> None:
    """The worker processes of a torch DataLoader go with Ctrl-C."""
    (place.directory / "loader.py").write_text(WORKERS)
    place.write({"name": "a", "command": [PYTHON, "loader.py"]})
    process = place.start("run", "jobs.yaml")
    place.number_in("batch")
    process.send_signal(signal.SIGINT)
    assert place.wait(process).returncode == INTERRUPTED
    assert place.left() == []
