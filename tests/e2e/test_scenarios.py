"""What users of crowded machines have met, end to end, on fake GPUs and with real processes.

T5 and T6, of clients of MPS, are in test_gpu_mps.py; the throughput of T8 is measured by
benchmarks/colocate.py; limits of control groups of version 2 (T7) are in test_machine.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace, alive, wait_until

from caging import needs_groups, parent_of_groups
from doubles.fake_gpus import FakeGpus, make_gpus
from rmixer import events as ev
from rmixer.model import Pending, StateName
from rmixer.resources import GIB, MIB
from rmixer.state import RunState

pytestmark = pytest.mark.e2e

#: A job on a GPU that is really full when it is full: it waits for a file, takes memory as far as
#: there is room, waits for another. Arguments: ``FILE:MIB ...``; a time in seconds for a file.
CARD = """
import fcntl, os, pathlib, sys, time
folder = pathlib.Path(os.environ["FAKE_NVML"])
cards = [line.split()[:2] for line in (folder / "gpus").read_text().splitlines()]
index = [card[0] for card in cards].index(os.environ["CUDA_VISIBLE_DEVICES"])
mine = folder / "held" / str(os.getpid())
def used():
    for file in (folder / "held").glob("[0-9]*"):
        if file != mine and os.path.exists("/proc/" + file.name):
            gpu, size = file.read_text().split()
            if int(gpu) == index:
                yield int(size)
for word in sys.argv[1:]:
    until, mib = word.split(":")
    size = int(mib) << 20
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if sum(used()) + size > int(cards[index][1]):
            sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s MiB." % mib)
        part = mine.with_name("." + mine.name)
        part.write_text("%d %d" % (index, size))
        part.replace(mine)
    if until[0].isdigit():
        time.sleep(float(until))
    while not until[0].isdigit() and not os.path.exists(until):
        time.sleep(0.02)
mine.unlink()
"""

MakeGpus = Callable[..., FakeGpus]


@pytest.fixture
def make(place: Workplace, gpu_library: Path) -> MakeGpus:
    """Makes the GPUs of the workplace."""

    def make_them(*sizes: int) -> FakeGpus:
        fake = make_gpus(place.directory / "gpus", gpu_library, *sizes)
        place.environment |= fake.environment
        (place.directory / "card.py").write_text(CARD)
        return fake

    return make_them


def on_card(name: str, *curve: str, **keys: Any) -> dict[str, Any]:
    """A job on a GPU; a shell, so that it is not traced before it runs."""
    command = " ".join([PYTHON, "-S", "card.py", *curve])
    return {"name": name, "command": ["sh", "-c", f"{command}; exit $?"], "device": "gpu", **keys}


def replayed(place: Workplace) -> Iterator[tuple[ev.Event, RunState]]:
    """Each event of the log with the state behind it."""
    state = RunState()
    for event in place.events():
        state.apply(event)
        yield event, state


def booked(state: RunState, device: str) -> int:
    """Memory of a GPU that is booked, bytes."""
    held = [job.state.attempt.placement for job in state.active]  # type: ignore[union-attr]
    return sum(one.device_memory for one in held if one.device == device)


def touch(place: Workplace, name: str) -> None:
    (place.directory / name).touch()


def test_t1_crowded_card_no_oom(place: Workplace, make: MakeGpus) -> None:
    """24 jobs of 1 to 9 GiB on a card of 24, half of which take theirs late: none runs out.

    Reservations stay below the card, at least three share it on average, and the order is kept.
    """
    fake = make(24 * GIB)
    sizes = [1 + (i * 5) % 9 for i in range(24)]
    curves = [["0.3:100", f"0.3:{size * 1024}"][i % 2 :] for i, size in enumerate(sizes)]
    jobs = [
        on_card(f"j{i:02}", *curve, gpu_memory=f"{size}GiB", retries=0)
        for i, (size, curve) in enumerate(zip(sizes, curves, strict=True))
    ]
    place.write(*jobs)
    done = place.run("run", "jobs.yaml", "--json", "--policy", "fixed:k=8,threads=1")
    assert done.returncode == 0, done.stderr
    starts, together = [], []
    for event, state in replayed(place):
        assert booked(state, fake.uuids[0]) <= 24 * GIB
        if isinstance(event, ev.Placed):
            starts.append(state.jobs[event.job].spec.name)
            together.append(len(state.active))
    assert len(starts) == 24, "each ran once"
    assert sum(together) / len(together) >= 3
    for job in json.loads(done.stdout)["jobs"]:
        assert [attempt["state"] for attempt in job["attempts"]] == ["SUCCEEDED"]
    waits = {e.reason.code for e in place.events() if isinstance(e, ev.Waiting)}
    assert "GpuMemory" in waits


def test_t2_wrong_estimate_is_learned(place: Workplace, make: MakeGpus) -> None:
    """Declared 2 GiB, takes 6 beside three others: OUT_OF_MEMORY, more room, success; learned."""
    make(10 * GIB)
    others = [on_card(f"n{i}", "enough:2048", gpu_memory="2GiB") for i in range(3)]
    grows = on_card("big", "0.2:100", "0.2:6144", gpu_memory="2GiB", retries=0)
    place.write(*others, grows)
    runner = place.start("run", "jobs.yaml", "--json", "--policy", "all-at-once")
    wait_until(lambda: [e for e in place.events() if isinstance(e, ev.Requeued)], "to be requeued")
    touch(place, "enough")
    done = place.wait(runner)
    assert done.returncode == 0, done.stderr
    by_name = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}
    first, second = by_name.pop("big")["attempts"]
    assert (first["state"], first["reason"]) == ("OUT_OF_MEMORY", "gpu")
    assert first["counted"] is False
    assert second["state"] == "SUCCEEDED"
    for job in by_name.values():
        assert [attempt["state"] for attempt in job["attempts"]] == ["SUCCEEDED"], "untouched"
    again = [e for e in place.events() if isinstance(e, ev.Placed) and e.attempt == 2]
    assert again[0].placement.device_memory >= 6 * GIB
    (backoff,) = [e for e in place.events() if isinstance(e, ev.Requeued)]
    assert backoff.not_before > backoff.at, "it waits for a while"


TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note():
    with open("pids", "a") as file:
        file.write("%d\\n" % os.getpid())
for i in range(8):
    if os.fork() == 0:
        if i == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            mine = os.path.join(os.environ["FAKE_NVML"], "held", str(os.getpid()))
            open(mine, "w").write("0 %d" % (1 << 30))
        note()
        time.sleep(1000)
        os._exit(0)
note()
time.sleep(1000)
"""
CANCEL = """
import os, sys, threading, time
import rmixer
def on_event(run, event):
    if event.type == "spawned" and event.job == "a":
        def cancel():
            while not os.path.exists("cancel"):
                time.sleep(0.01)
            run.cancel("a")
        threading.Thread(target=cancel, daemon=True).start()
jobs = [rmixer.Job("a", command=["sh", "-c", sys.argv[1]], device="gpu", gpu_memory="2GiB"),
        rmixer.Job("b", command=["sh", "-c", "until test -e go; do sleep 0.02; done"])]
done = rmixer.run(jobs, on_event=on_event, policy="all-at-once", grace_seconds=0.3)
print(*(job["state"] for job in done.document["jobs"]))
"""


def test_t4_cancel_means_gone(place: Workplace, make: MakeGpus) -> None:
    """Eight workers that ignore SIGTERM, one daemonised and on the GPU: none is left.

    The GPU's memory is back, the neighbour and the runner go on.
    """
    fake = make(4 * GIB)
    (place.directory / "tree.py").write_text(TREE)
    program = place.start(
        f"{PYTHON} -S tree.py", program=CANCEL.replace("sys.argv[1]", "sys.argv[-1]")
    )
    pids = place.directory / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 9, "for workers")
    wait_until(lambda: place.names(place.state("run")).get("b") in (
        StateName.RUNNING, StateName.PROFILING,
    ))  # fmt: skip
    touch(place, "cancel")
    tree = [int(line) for line in pids.read_text().split()]
    wait_until(lambda: not any(map(alive, tree)), "for all to be gone", seconds=6.0)
    wait_until(lambda: place.names(place.state("run"))["a"] == StateName.CANCELLED)
    assert program.poll() is None
    held = [int(file.name) for file in (fake.folder / "held").glob("[0-9]*")]
    assert not any(map(alive, held)), "no one holds memory of the GPU"
    touch(place, "go")
    done = place.wait(program)
    assert done.stdout == "CANCELLED SUCCEEDED\n", done.stderr


@contextmanager
def limited_groups(limit: int) -> Iterator[list[Path]]:
    """Control groups of version 1: a limit of memory on a parent, and one core."""
    name = f"rmixer-test-{os.getpid()}"
    memory = parent_of_groups()
    assert memory is not None
    cpu = Path("/sys/fs/cgroup/cpu")
    if not (cpu / "cpu.cfs_quota_us").exists() or not (memory / "memory.limit_in_bytes").exists():
        pytest.skip("needs control groups of version 1")
    outer, leaf, quota = memory / name, memory / name / "leaf", cpu / name
    try:
        for folder in (outer, leaf, quota):
            folder.mkdir()
        (outer / "memory.limit_in_bytes").write_text(str(limit))
        (quota / "cpu.cfs_quota_us").write_text("100000")
        yield [leaf, quota]
    finally:
        for folder in (leaf, outer, quota):
            if folder.exists():
                folder.rmdir()


@needs_groups
def test_t7_inside_a_container(place: Workplace) -> None:
    """A limit on a parent group, none on the leaf: capacity is the limit, and one core."""
    place.write(place.work("small", memory="100MiB"))
    with limited_groups(1536 * MIB) as groups:
        joins = "".join(f"echo $$ >{group}/cgroup.procs; " for group in groups)
        wrapper = ["sh", "-c", f'{joins}exec "$@"', "sh"]
        done = place.wait(place.start("run", "jobs.yaml", "--json", wrapper=wrapper))
        assert done.returncode == 0, done.stderr
        node = place.state().node
        assert len(node.cores) == 1
        assert 1024 * MIB < node.memory < 1536 * MIB
        place.write(place.work("large", memory="1600MiB"))
        refused = place.wait(place.start("run", "jobs.yaml", "--fresh", wrapper=wrapper))
        assert refused.returncode == 4, refused.stderr
        assert "1.6 GiB" in refused.stderr
        wait_until(lambda: not place.left())


THREADS = """
import json, os, sys
before = sorted(os.sched_getaffinity(0))
import torch
names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"]
told = [os.environ.get(name) for name in names]
found = [before, sorted(os.sched_getaffinity(0)), torch.get_num_threads(), told]
json.dump(found, open(sys.argv[1] + ".json", "w"))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_t8_threads(place: Workplace) -> None:
    """Threads are those of the placement; the user's own are kept and charged.

    Importing torch changes no affinity, and no more cores are booked than there are.
    """
    (place.directory / "threads.py").write_text(THREADS)
    jobs = [{"name": name, "command": [PYTHON, "threads.py", name]} for name in "ab"]
    own = {"name": "own", "command": [PYTHON, "threads.py", "own"], "env": {"OMP_NUM_THREADS": 2}}
    place.write(*jobs, own)
    done = place.run("run", "jobs.yaml", "--cores", "2")
    assert done.returncode == 0, done.stderr
    placed = {}
    for event, state in replayed(place):
        cpu = sum(job.state.attempt.placement.cpu for job in state.active)  # type: ignore[union-attr]
        assert cpu <= 2
        if isinstance(event, ev.Placed):
            placed[event.job] = event.placement
    for name in ("a", "b", "own"):
        before, after, threads, told = json.loads((place.directory / f"{name}.json").read_text())
        assert before == after
        assert threads == placed[name].threads
        assert told == [str(placed[name].threads)] * 4
    assert placed["own"].threads == 2


COUNTER = """
import os, sys, time
name = sys.argv[1]
open(name + ".starts", "a").write("x")
i = 0
while not os.path.exists(name + ".go") and not os.path.exists("go"):
    print("line", i, flush=True)
    i += 1
    time.sleep(0.01)
print("end", i, flush=True)
"""


def shims(place: Workplace) -> list[int]:
    return [event.pid for event in place.events() if isinstance(event, ev.Spawned)]


def test_t9_runner_dies_then_the_machine_restarts(place: Workplace) -> None:
    """6 run and 20 wait: adopted after a kill, their logs without a gap, none begun twice.

    After a restart of the machine the 6 are NODE_FAIL, cost no try, and run again.
    """
    (place.directory / "counter.py").write_text(COUNTER)
    words = [PYTHON, "-S", "counter.py"]
    place.write(
        *({"name": f"j{i:02}", "command": [*words, f"j{i:02}"], "retries": 0} for i in range(26))
    )
    first = [f"j{i:02}" for i in range(6)]
    policy = ["--policy", "fixed:k=6,threads=1"]
    runner = place.start("run", "jobs.yaml", *policy)
    wait_until(lambda: all((place.directory / f"{n}.starts").exists() for n in first), "to run")
    wait_until(lambda: len(shims(place)) == 6)
    place.kill(runner)
    logs = [place.paths().job(name).attempt(1).log for name in first]
    sizes = [log.stat().st_size for log in logs]
    wait_until(lambda: all(log.stat().st_size > s for log, s in zip(logs, sizes, strict=True)))
    runner = place.start("run", "jobs.yaml", *policy)
    wait_until(lambda: sum(isinstance(e, ev.Adopted) for e in place.events()) == 6, "to adopt")
    touch(place, "j00.go")
    wait_until(lambda: place.names()["j00"] == StateName.SUCCEEDED)
    lines = logs[0].read_text().splitlines()
    assert lines == [*(f"line {i}" for i in range(len(lines) - 1)), f"end {len(lines) - 1}"]
    wait_until((place.directory / "j06.starts").exists, "for the queue to go on")
    wait_until(lambda: len(shims(place)) == 7)

    place.kill(runner)
    lost = restart_machine(place)
    touch(place, "go")
    done = place.run("run", "jobs.yaml", *policy)
    assert done.returncode == 0, done.stderr
    for job in place.state().jobs.values():
        ends = [(a.outcome.state, a.counted) for a in job.attempts if a.outcome]
        name = job.spec.name
        again = [(StateName.NODE_FAIL, False)] if name in lost else []
        assert ends == [*again, (StateName.SUCCEEDED, True)], name
        starts = len((place.directory / f"{name}.starts").read_text())
        assert starts == len(ends), "one process per attempt"


def restart_machine(place: Workplace) -> set[str]:
    """All processes are gone, and the boot id is another; the names of the jobs that ran."""
    active = place.state().active
    for line in place.left():
        os.kill(int(line.split()[0]), signal.SIGKILL)
    wait_until(lambda: not place.left())
    for job in active:
        path = place.paths().job(job.id).attempt(len(job.attempts) + 1).started
        path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "before"}))
    return {job.spec.name for job in active}


BARS = r"for i in 10 50 100; do printf '\r%s%%|####' $i; done; echo; echo done; exit 3"


def test_t10_says_why_and_keeps_logs_apart(place: Workplace, make: MakeGpus) -> None:
    """Each that waits has a reason with numbers; bars are collapsed; stdout is the document."""
    make(4 * GIB)
    place.write(
        on_card("first", "go:3000", gpu_memory="3000MiB"),
        on_card("second", "0.01:3000", gpu_memory="3000MiB"),
        place.work("behind", after=["first"]),
        place.shell("bars", BARS, retries=1),
    )
    runner = place.start("run", "jobs.yaml", "--json", "--policy", "all-at-once")
    wait_until(lambda: place.names().get("bars") == StateName.FAILED, "for two tries of bars")
    pending = {
        job.spec.name: job.state.reason
        for job in place.state().pending
        if isinstance(job.state, Pending)
    }
    second = pending["second"]
    assert str(second).startswith("GpuMemory(2.9 GiB>")
    assert second.have is not None
    assert second.have <= 4 * GIB - 3000 * MIB
    assert (pending["behind"].code, pending["behind"].detail) == ("Dependency", "first")
    touch(place, "go")
    done = place.wait(runner)
    assert done.returncode == 1
    bars = next(job for job in json.loads(done.stdout)["jobs"] if job["name"] == "bars")
    assert bars["error"].splitlines()[-2:] == ["100%|####", "done"]
    assert "10%" not in bars["error"]
    logs = [place.paths().job("bars").attempt(k).log.read_bytes() for k in (1, 2)]
    assert logs[0] == logs[1]
    assert logs[0].endswith(b"done\n")
    assert "bars" in done.stderr


def test_t10_impossible_is_refused_at_once(place: Workplace) -> None:
    """A job that asks for 96 threads on a small machine is refused with both numbers."""
    place.write(place.work("huge", threads=960), place.work("small"))
    done = place.run("run", "jobs.yaml")
    assert done.returncode == 4, done.stderr
    assert "960" in done.stderr
    assert str(len(os.sched_getaffinity(0))) in done.stderr
    assert place.diary == [], "nothing has been started"
