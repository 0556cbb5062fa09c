"""kill -9 of a runner, of a shim, at any moment: nothing is lost, run twice, or left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import MAIN, Workplace, alive, wait_until, workplace

from rmixer import events as ev
from rmixer.model import StateName

pytestmark = pytest.mark.e2e

KILLS = 10
SEED = 20240711


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with workplace(tmp_path) as made:
        yield made


def run_and_kill(place: Workplace, seconds: float) -> bool:
    """A runner that is killed after so long; False if it came to its end before."""
    process = place.start("run", "jobs.yaml")
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        place.kill(process)
        return True
    assert process.returncode == 0
    return False


def check_each_ran_once(place: Workplace, names: set[str]) -> None:
    """Every job has succeeded once, never twice at a time, and not again after its end."""
    assert place.told("overlap") == 0
    words: dict[str, list[str]] = {name: [] for name in names}
    for word, name, _ in place.diary:
        words[name].append(word)
    for name, told in words.items():
        assert told[-1] == "end", name
        assert told.count("end") == 1, name
    ended = Counter(event.job for event in place.events() if isinstance(event, ev.Ended))
    state = place.state()
    assert ended == dict.fromkeys(state.jobs, 1)
    assert place.names(state) == dict.fromkeys(names, StateName.SUCCEEDED)
    assert state.finished is not None
    kept = [path.name for path in (place.directory / "runs").iterdir()]
    assert kept == ["jobs"], "a run was begun anew"


def test_ten_kills_in_a_row(place: Workplace) -> None:
    """Ten runners die at random moments, the first while it starts; the eleventh ends the run."""
    moments = random.Random(SEED)
    jobs = [place.work(f"j{i}", round(moments.uniform(0.2, 0.8), 2)) for i in range(12)]
    place.write(*jobs)
    killed = 0
    while killed < KILLS and run_and_kill(
        place, moments.uniform(0, 0.05) if not killed else moments.uniform(0.1, 1.0)
    ):
        killed += 1
    if place.state().finished is None or killed == KILLS:
        assert place.run("run", "jobs.yaml").returncode == 0
    check_each_ran_once(place, {job["name"] for job in jobs})
    assert killed >= KILLS // 2


def test_kills_while_models_train(place: Workplace) -> None:
    """The same with trainings of ours: each ends with a model and its metrics, and ends once."""
    data = {"format": "generated", "like": "criteo", "rows": 2000, "seed": 1}
    data["valid"] = {"fraction": 0.2}
    keys = {"model": "deepfm", "params": {"embedding_dim": 4, "mlp": [8]}, "batch_size": 64}
    jobs = [{"name": f"m{i}", "seed": i, "data": data, **keys} for i in range(2)]
    place.write(*jobs)
    moments = random.Random(SEED)
    for _ in range(2):
        assert run_and_kill(place, moments.uniform(0.8, 2.0))
    result = place.run("run", "jobs.yaml", "--json")
    assert result.returncode == 0, result.stderr
    state = place.state()
    assert place.names(state) == dict.fromkeys(("m0", "m1"), StateName.SUCCEEDED)
    for job in state.jobs:
        assert any(place.paths().job(job).model.iterdir())
    ended = Counter(event.job for event in place.events() if isinstance(event, ev.Ended))
    assert ended == dict.fromkeys(state.jobs, 1)


DIE = (
    "import os; from rmixer.execute import process, attempt; from rmixer.runner import loop, run\n"
)
DIE += "from rmixer.log import EventLog; import rmixer.report.write\n"
DIE += "def die(*a, **k): os.kill(os.getpid(), 9)\n"
#: How the runner dies, by where: a program that puts `die` there and then runs the command line.
PLACES = {
    "between log and spawn": "process.ProcessExecutor.start = die",
    "attempt half laid out": "attempt.write_private = die",
    "before the shim": "process.ProcessExecutor._spawn = die",
    "right after the shim": (
        "spawn = process.ProcessExecutor._spawn\n"
        "process.ProcessExecutor._spawn = lambda *a: (spawn(*a), die())"
    ),
    "an end seen, not logged": "loop.Loop._end_event = die",
    "before anything is logged": "EventLog.append = die",
    "the last event logged, no report": "run.write_report = die",
    "the report written, nobody told": "run.RunFolder.mark = lambda self, reported: reported and die()",
}


@pytest.mark.parametrize("where", PLACES)
def test_kill_at_a_chosen_place(place: Workplace, where: str) -> None:
    """Whatever a runner was about to do, the next one ends the run with each job done once."""
    place.write(place.work("a"), place.work("b"), place.work("c", after=["a"]))
    killed = place.run("run", "jobs.yaml", program=f"{DIE}{PLACES[where]}\n{MAIN}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = place.run("run", "jobs.yaml")
    assert again.returncode == 0, again.stderr
    check_each_ran_once(place, {"a", "b", "c"})
    assert place.paths().report_json.exists()


def test_line_that_was_cut_off(place: Workplace) -> None:
    """A log whose last line is cut anywhere replays, and the run goes on from there."""
    place.write(place.work("a"), place.work("b", "go", after=["a"]))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start", "b"))
    place.kill(process)
    log = place.paths().events
    log.write_bytes(log.read_bytes() + b'{"type":"ended","job":"b","outc')
    (place.directory / "go").touch()
    assert place.run("run", "jobs.yaml").returncode == 0
    check_each_ran_once(place, {"a", "b"})


def test_running_job_is_adopted_not_begun_again(place: Workplace) -> None:
    """A job that outlived its runner is watched by the next one: one start, one attempt."""
    place.write(place.work("a", "go"))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start"))
    place.kill(process)
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: any(isinstance(event, ev.Adopted) for event in place.events()))
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0
    assert [word for word, _, _ in place.diary] == ["start", "end"]
    (job,) = place.state().jobs.values()
    assert len(job.attempts) == 1


def test_killed_shim(place: Workplace) -> None:
    """Its job is gone with it; the attempt counts as NODE_FAIL, uses no try, and is made again."""
    place.write(place.work("a", "go", retries=0))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start"))
    first = place.diary[0][2]
    (spawned,) = (event for event in place.events() if isinstance(event, ev.Spawned))
    os.kill(spawned.pid, signal.SIGKILL)
    wait_until(lambda: place.told("start") == 2)
    assert not alive(first)
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0
    assert place.told("overlap") == 0
    (job,) = place.state().jobs.values()
    assert [attempt.outcome.state for attempt in job.attempts if attempt.outcome] == [
        StateName.NODE_FAIL,
        StateName.SUCCEEDED,
    ]
    assert [attempt.counted for attempt in job.attempts] == [False, True]


def test_killed_shim_and_killed_runner(place: Workplace) -> None:
    """Where both died, the next runner ends what they left before the job runs again."""
    place.write(place.work("a", "go"))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start"))
    (spawned,) = wait_until(
        lambda: [event for event in place.events() if isinstance(event, ev.Spawned)]
    )
    place.kill(process)
    os.kill(spawned.pid, signal.SIGKILL)
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start") == 2)
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0
    assert place.told("overlap") == 0
    assert place.told("end") == 1


def test_lock_that_a_dying_child_still_holds(place: Workplace) -> None:
    """Between fork and exec a killed runner's child has its lock: the next runner waits for that."""
    program = (
        "import os, time\n"
        "from rmixer.execute import process\n"
        "def start(*a, **k):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(0.5)\n"
        "        os._exit(0)\n"
        "    os.kill(os.getpid(), 9)\n"
        "process.ProcessExecutor.start = start\n"
    )
    place.write(place.work("a"))
    assert place.run_without_pipes("run", "jobs.yaml", program=program + MAIN) == -signal.SIGKILL
    assert place.left(), "the child is there"
    assert place.run("run", "jobs.yaml").returncode == 0
    check_each_ran_once(place, {"a"})


def test_two_runners_at_once(place: Workplace) -> None:
    """The second is refused with the pid of the first, and changes nothing."""
    place.write(place.work("a", "go"))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start"))
    second = place.run("run", "jobs.yaml")
    assert second.returncode == 2
    assert f"process {process.pid} runs it" in second.stderr
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0
    check_each_ran_once(place, {"a"})
