"""Jobs that outgrow their reservation: each fails alone, is retried with more, and is remembered."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace, alive, wait_until

from caging import needs_groups
from rmixer import events as ev
from rmixer.execute.attempt import cage_of, read_document
from rmixer.model import Active, Attempt, Pending, StateName
from rmixer.paths import AttemptPaths
from rmixer.resources import GIB, MIB
from rmixer.state import MEMORY_MARGIN, RunState

pytestmark = pytest.mark.e2e

#: Takes so many MiB, as a file of its name says if there is one, and holds them until a file is
#: there; then checks that nobody has touched them.
TAKE = """
import os, sys, time
name, size, until = sys.argv[1], int(sys.argv[2]), sys.argv[3]
block = b""
while not os.path.exists(until):
    wanted = int(open(name + ".size").read()) if os.path.exists(name + ".size") else size
    if wanted << 20 != len(block):
        block = name[:1].encode() * (wanted << 20)
    time.sleep(0.01)
assert block.count(name[:1].encode()) == len(block)
"""
NEIGHBOURS = ("north", "east", "west")


def take(name: str, size_mib: int, until: str, **keys: Any) -> dict[str, Any]:
    """A job that takes memory and holds it."""
    words = [PYTHON, "-S", "take.py", name, str(size_mib), until]
    return {"name": name, "command": words, **keys}


@pytest.fixture(autouse=True)
def program(place: Workplace) -> None:
    (place.directory / "take.py").write_text(TAKE)


def touch(place: Workplace, name: str) -> None:
    (place.directory / name).touch()


def attempts(state: RunState, name: str) -> tuple[Attempt, ...]:
    (found,) = [job.attempts for job in state.jobs.values() if job.spec.name == name]
    return found


def words_of(place: Workplace, name: str) -> list[str]:
    """The states that a job went through, with the reasons for which it waited."""
    state, words = RunState(), [""]
    for event in place.events():
        state.apply(event)
        for job in state.jobs.values():
            if job.spec.name != name:
                continue
            match job.state:
                case Pending(reason=reason):
                    word = f"PENDING {reason.code}"
                case Active():  # PROFILING at first
                    word = "RUNNING"
                case _:
                    word = str(job.state.name)
            words += [word] if words[-1] != word else []
    return words[1:]


def running(place: Workplace, name: str, number: int, run: str = "jobs") -> AttemptPaths:
    """The attempt of that number, once its program runs."""
    paths = place.paths(run).job(name).attempt(number)
    wait_until(lambda: "job_pid" in (read_document(paths.started) or {}), f"for {name} {number}")
    return paths


def seen(place: Workplace, name: str, size: int) -> bool:
    """Whether telemetry has seen a job hold so much."""
    path = place.paths().samples
    lines = path.read_text().splitlines() if path.exists() else []
    return any(size <= json.loads(line)["jobs"].get(name, {}).get("rss_bytes", 0) for line in lines)


def has_ended(place: Workplace, name: str, number: int) -> bool:
    return any(
        isinstance(event, ev.Requeued) and len(attempts(place.state(), name)) >= number
        for event in place.events()
    )


@needs_groups
def test_wrong_declaration_is_learned_from(place: Workplace) -> None:
    """Declared 200 MiB, needs 600, beside three others: killed alone, retried with more, learned.

    The neighbours end in one attempt with their memory as it was; the next run of the same program
    starts from what it was seen to need.
    """
    others = [take(name, 40, "enough", memory="100MiB") for name in NEIGHBOURS]
    place.write(take("big", 600, "done", memory="200MiB"), *others)
    runner = place.start("run", "jobs.yaml", "--policy", "all-at-once")
    wait_until(lambda: has_ended(place, "big", 1))
    assert {job.id for job in place.state().active} >= set(NEIGHBOURS)
    wait_until(lambda: seen(place, "big", 600 * MIB))
    touch(place, "done")
    touch(place, "enough")
    assert place.wait(runner).returncode == 0

    first, second = attempts(place.state(), "big")
    assert first.outcome is not None
    assert (first.outcome.state, first.outcome.reason) == (StateName.OUT_OF_MEMORY, "host")
    assert first.placement.memory_limit == 200 * MIB
    assert first.outcome.memory_peak_bytes == pytest.approx(200 * MIB, rel=0.05)
    assert second.placement.memory >= max(2 * first.placement.memory, 200 * MIB * MEMORY_MARGIN)
    assert words_of(place, "big") == [
        "PENDING Submitted", "RUNNING", "PENDING Backoff", "RUNNING", "SUCCEEDED",
    ]  # fmt: skip
    for name in NEIGHBOURS:
        (only,) = attempts(place.state(), name)
        assert only.outcome is not None
        assert only.outcome.state == StateName.SUCCEEDED
    check_nothing_is_left(place)

    place.write(take("big", 600, "done", memory="200MiB"))
    assert place.run("run", "jobs.yaml", "--name", "again").returncode == 0
    (again,) = attempts(place.state("again"), "big")
    assert again.placement.memory >= 600 * MIB
    assert again.placement.memory_limit >= again.placement.memory + GIB


def check_nothing_is_left(place: Workplace) -> None:
    """No control group of any attempt is there any more."""
    for path in place.paths().root.glob("jobs/*/attempts/*"):
        cage = cage_of(AttemptPaths(path))
        group = cage.document()["path"] if cage is not None else None
        assert group is None or not Path(group).exists(), path


@needs_groups
def test_job_that_is_over_before_it_is_looked_at(place: Workplace) -> None:
    """It is remembered by the kernel's own mark, not by the little that was seen of it."""
    script = "import os; block = b'x' * (600 << 20); os._exit(0)"
    quick = {"name": "quick", "command": [PYTHON, "-S", "-c", script]}
    place.write({**quick, "memory": "200MiB"})
    assert place.run("run", "jobs.yaml").returncode == 0
    assert place.run("run", "jobs.yaml", "--name", "again").returncode == 0
    (again,) = attempts(place.state("again"), "quick")
    assert 600 * MIB <= again.placement.memory <= 900 * MIB


def test_last_attempt_is_alone(place: Workplace) -> None:
    """A job that runs out of memory twice has the node to itself the third time."""
    script = '[ "$RMIXER_ATTEMPT" = 3 ] || { echo MemoryError; exit 1; }'
    place.write(place.shell("big", script, memory="50MiB"), take("north", 20, "enough"))
    runner = place.start("run", "jobs.yaml", "--policy", "all-at-once")
    wait_until(lambda: has_ended(place, "big", 2))
    touch(place, "enough")
    assert place.wait(runner).returncode == 0
    state = place.state()
    reserved = [attempt.placement.memory for attempt in attempts(state, "big")]
    assert reserved == [50 * MIB, 200 * MIB, state.node.memory]
    (other,) = attempts(state, "north")
    assert other.ended_at is not None
    assert attempts(state, "big")[-1].started_at >= other.ended_at
    check_nothing_is_left(place)


def test_job_of_which_nothing_is_known(place: Workplace) -> None:
    """It is in no cage, and may grow."""
    place.write(take("free", 20, "done"))
    runner = place.start("run", "jobs.yaml")
    paths = running(place, "free", 1)
    (job,) = place.state().active
    assert isinstance(job.state, Active)
    assert job.state.attempt.placement.memory_limit == 0
    started = read_document(paths.started) or {}
    assert started["cage"] is None
    ours = Path("/proc/self/cgroup").read_text()
    assert Path(f"/proc/{started['job_pid']}/cgroup").read_text() == ours
    touch(place, "done")
    assert place.wait(runner).returncode == 0


@needs_groups
def test_limit_follows_a_job_that_outgrows_its_history(place: Workplace) -> None:
    """What a running job is booked more, its control group allows it too."""
    place.write(take("grows", 60, "done"))
    runner = place.start("run", "jobs.yaml")
    wait_until(lambda: seen(place, "grows", 60 * MIB))
    touch(place, "done")
    assert place.wait(runner).returncode == 0
    (place.directory / "done").unlink()

    (place.directory / "grows.size").write_text("400")
    runner = place.start("run", "jobs.yaml", "--name", "again")
    cage = cage_of(running(place, "grows", 1, "again"))
    assert cage is not None
    (placed,) = [event for event in place.events("again") if isinstance(event, ev.Placed)]
    assert placed.placement.memory_limit > placed.placement.memory
    wait_until(lambda: limit_now(place) > placed.placement.memory_limit, "for more room")
    group = Path(cage.document()["path"])
    (file,) = [p for n in ("memory.limit_in_bytes", "memory.max") if (p := group / n).exists()]
    wait_until(lambda: in_pages(int(file.read_text())) == in_pages(limit_now(place)))
    touch(place, "done")
    assert place.wait(runner).returncode == 0


def in_pages(size: int) -> int:
    """As the kernel keeps a limit."""
    return size // resource.getpagesize()


def limit_now(place: Workplace) -> int:
    """The limit of the one job that runs."""
    (job,) = place.state("again").active
    assert isinstance(job.state, Active)
    return job.state.attempt.placement.memory_limit


@needs_groups
@pytest.mark.parametrize("runner_too", [False, True], ids=["shim", "shim and runner"])
def test_shim_that_is_killed_leaves_no_group(place: Workplace, runner_too: bool) -> None:
    """Killed with -9, its job goes, and so does the cage: at once, or when the run is taken up."""
    place.write(take("a", 20, "done", memory="200MiB"))
    runner = place.start("run", "jobs.yaml")
    paths = running(place, "a", 1)
    started = read_document(paths.started) or {}
    group = Path(started["cage"]["path"])
    assert group.is_dir()
    if runner_too:
        place.kill(runner)
    os.kill(started["pid"], signal.SIGKILL)
    if runner_too:
        wait_until(lambda: not alive(started["pid"]))
        assert group.is_dir()
        runner = place.start("run", "jobs.yaml")
    running(place, "a", 2)
    assert not group.exists()
    assert not alive(started["job_pid"])
    touch(place, "done")
    assert place.wait(runner).returncode == 0
    check_nothing_is_left(place)


@pytest.fixture
def without_groups() -> Sequence[str]:
    """What to put before a command so that it sees no control groups."""
    words = ["unshare", "--mount", "sh", "-c", 'umount -l /sys/fs/cgroup && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("control groups cannot be hidden here")
    return words


def test_machine_without_groups(place: Workplace, without_groups: Sequence[str]) -> None:
    """A limit on data: the program is refused memory, says so, and is retried with more."""
    place.write(take("big", 900, "done", memory="300MiB"))
    runner = place.start("run", "jobs.yaml", wrapper=without_groups)
    wait_until(lambda: seen(place, "big", 900 * MIB))
    touch(place, "done")
    assert place.wait(runner).returncode == 0
    first, _ = attempts(place.state(), "big")
    assert first.outcome is not None
    assert (first.outcome.state, first.outcome.reason) == (StateName.OUT_OF_MEMORY, "host")
    assert "MemoryError" in first.outcome.message
    started = read_document(place.paths().job("big").attempt(1).started) or {}
    assert started["cage"] == {"kind": "rlimit", "path": None}
