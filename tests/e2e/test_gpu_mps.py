"""GPUs shared under MPS: the daemons, what clients get, how they end. Driver and daemon are fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace, wait_until

from doubles.fake_gpus import FakeGpus, make_gpus
from doubles.fake_mps import install
from rmixer import events as ev
from rmixer.execute.mps import own_daemons
from rmixer.model import StateName
from rmixer.resources import GIB

pytestmark = pytest.mark.e2e


@pytest.fixture
def gpus(place: Workplace, gpu_library: Path) -> FakeGpus:
    """Two GPUs of 4 GiB, and the control program of MPS."""
    fake = make_gpus(place.directory / "gpus", gpu_library, 4 * GIB, 4 * GIB)
    bin_folder = place.directory / "bin"
    bin_folder.mkdir()
    install(bin_folder)
    temporary = place.directory / "t"
    temporary.mkdir()
    place.environment |= fake.environment
    place.environment["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    place.environment["TMPDIR"] = str(temporary)
    return fake


def holds(fake: FakeGpus, name: str, *words: str, **keys: Any) -> dict[str, Any]:
    """A job on a GPU that writes its environment down; a shell, so that it is not traced before."""
    command = " ".join([PYTHON, "-S", str(fake.job), *words])
    script = f"env >{name}.env; {command}; exit $?"
    return {
        "name": name,
        "command": ["sh", "-c", script],
        "device": "gpu",
        "gpu_memory": "1GiB",
        **keys,
    }


def environment(place: Workplace, name: str) -> dict[str, str]:
    lines = (place.directory / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def said(place: Workplace, index: int) -> list[str]:
    """The commands that the daemon of a GPU was given."""
    path = place.paths().mps_log(index) / "commands"
    return path.read_text().splitlines() if path.exists() else []


def clients(place: Workplace) -> list[Path]:
    return list((place.directory / "t").glob("rmixer-mps-*/clients/*"))


def clients_alive(place: Workplace) -> list[Path]:
    return [path for path in clients(place) if Path("/proc", path.name, "cmdline").exists()]


def test_each_gpu_has_a_daemon_and_nothing_is_left(place: Workplace, gpus: FakeGpus) -> None:
    """Started with its GPU alone; a client gets a limit by index and a share; its own value wins."""
    place.write(
        *(holds(gpus, name, "0.5:200") for name in "ab"),
        holds(gpus, "c", "0.1:200", env={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7"}),
        holds(gpus, "d", "0.1:200", env={"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"}),
    )
    done = place.run("run", "jobs.yaml", "--json", "--policy", "all-at-once", "--sharing", "mps:4")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [d.get("sharing") for d in document["devices"]] == [None, "mps", "mps"]
    for index, uuid in enumerate(gpus.uuids):
        assert said(place, index)[0] == f"start {uuid}"
    got = environment(place, "a")
    assert got["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"
    assert got["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert got["CUDA_VISIBLE_DEVICES"] in gpus.uuids
    assert environment(place, "c")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "7"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in environment(place, "d")
    assert not list((place.directory / "t").glob("rmixer-mps-*"))


def test_a_client_is_taken_off_before_it_is_killed(place: Workplace, gpus: FakeGpus) -> None:
    """The one that ignores SIGTERM, by its server and pid; its neighbour goes on. Then its runner
    is killed: the next one finds the same daemon. Killed too, it leaves it to `rmixer clean`.
    """
    stubborn = holds(gpus, "a", "go:200", device=gpus.uuids[0], timeout="2s")
    stubborn["command"][2] = "trap '' TERM; " + stubborn["command"][2]
    place.write(stubborn, holds(gpus, "b", "go:300", device=gpus.uuids[0]))
    words = ("run", "jobs.yaml", "--policy", "all-at-once", "--sharing", "mps")
    runner = place.start(*words)
    wait_until(lambda: len(clients(place)) == 2, "for both clients")
    (daemon,) = [
        p
        for p in own_daemons(place.directory / "t")
        if (p / "clients").glob("*") and any((p / "clients").iterdir())
    ]
    pid = (daemon / "nvidia-cuda-mps-control.pid").read_text()
    server = (daemon / "server").read_text()
    wait_until(lambda: place.names().get("a") == StateName.TIMEOUT, "for a to be ended")
    taken = [line for line in said(place, 0) if line.startswith("terminate_client")]
    assert len(taken) == 1
    assert taken[0].split()[1] == server
    assert place.names()["b"] in (StateName.RUNNING, StateName.PROFILING)
    place.kill(runner)
    again = place.start(*words)
    wait_until(lambda: [e for e in place.events() if isinstance(e, ev.Adopted)], "to be adopted")
    assert (daemon / "nvidia-cuda-mps-control.pid").read_text() == pid
    place.kill(again)
    (place.directory / "go").touch()
    wait_until(lambda: not clients_alive(place), "for b to end")
    assert daemon.exists()
    assert wait_until(lambda: place.run("clean", "jobs", "--unfinished").returncode == 0)
    assert not daemon.exists(), "given up, the run leaves nothing"


def test_a_dead_daemon_costs_its_clients_nothing(place: Workplace, gpus: FakeGpus) -> None:
    """Both clients are COLLATERAL, and run again under a new daemon."""
    first = gpus.uuids[0]
    place.write(*(holds(gpus, name, "go:200", device=first) for name in "ab"))
    runner = place.start(
        "run", "jobs.yaml", "--json", "--policy", "all-at-once", "--sharing", "0=mps,1=exclusive"
    )
    wait_until(lambda: len(clients(place)) == 2, "for both clients")
    (daemon,) = own_daemons(place.directory / "t")
    os.kill(int((daemon / "server").read_text()), signal.SIGKILL)  # and the daemon after it
    wait_until(lambda: not own_daemons(place.directory / "t"), "for the daemon to die")
    wait_until(lambda: len([e for e in place.events() if isinstance(e, ev.Requeued)]) == 2)
    wait_until(lambda: set(place.names().values()) & {StateName.RUNNING, StateName.PROFILING})
    (place.directory / "go").touch()
    done = place.wait(runner)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    lost = [job["attempts"][0] for job in document["jobs"]]
    assert {(one["reason"], one["counted"]) for one in lost} == {("COLLATERAL", False)}
    assert said(place, 0).count(f"start {first}") == 2
    assert [d.get("sharing") for d in document["devices"]] == [None, "mps", "exclusive"]


def test_who_faults_runs_alone_and_its_neighbours_again(place: Workplace, gpus: FakeGpus) -> None:
    """The fault ends the server: the neighbour is stopped, and the next daemon serves one at a time."""
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered"
    script = (
        f"test -e b.env || exit 3; test -e once || {{ touch once; echo '{fault}' >&2; exit 1; }}"
    )
    bad = holds(gpus, "e", "0.1:200", device=gpus.uuids[0], after=[])
    bad["command"][2] = f"until test -e b.env; do sleep 0.02; done; {script}; " + bad["command"][2]
    place.write(holds(gpus, "b", "1.5:300", device=gpus.uuids[0]), bad)
    done = place.run("run", "jobs.yaml", "--json", "--policy", "all-at-once", "--sharing", "mps")
    assert done.returncode == 0, done.stderr
    b, e = json.loads(done.stdout)["jobs"]
    assert [a["reason"] for a in b["attempts"]] == ["COLLATERAL", ""]
    assert [a["reason"] for a in e["attempts"]] == ["CUDA fault (illegal memory access)", ""]
    assert not any(a["counted"] for a in (b["attempts"][0], e["attempts"][0]))
    assert e["device_memory"]["reserved_bytes"] == 4 * GIB
    assert said(place, 0).count(f"start {gpus.uuids[0]}") == 2


def test_without_mps_jobs_take_turns_and_it_is_said(place: Workplace, gpus: FakeGpus) -> None:
    """Where it refuses, with its words; where another's runs, which is left alone; asked for: exit 2."""
    (gpus.folder / "mps_refuses").write_text("Failed to start: insufficient privileges\n")
    place.write(*(holds(gpus, name, "0.1:200") for name in "ab"))
    done = place.run("run", "jobs.yaml", "--name", "x")
    assert done.returncode == 0
    assert "jobs take turns on GPU 0: MPS on GPU 0 cannot be started" in done.stderr
    assert "insufficient privileges" in done.stderr
    refused = place.run("run", "jobs.yaml", "--name", "y", "--sharing", "mps")
    assert refused.returncode == 2, refused.stderr
    assert not place.events("y")
    (gpus.folder / "mps_refuses").unlink()
    theirs = place.directory / "theirs"
    theirs.mkdir()
    place.environment |= {
        "CUDA_MPS_PIPE_DIRECTORY": str(theirs),
        "CUDA_MPS_LOG_DIRECTORY": str(theirs),
    }
    subprocess.run(
        ["nvidia-cuda-mps-control", "-d"],
        env={**place.environment, "CUDA_VISIBLE_DEVICES": "0"},
        check=True,
    )
    pid = int(
        wait_until(
            lambda: (
                (theirs / "nvidia-cuda-mps-control.pid").exists()
                and (theirs / "nvidia-cuda-mps-control.pid").read_text()
            )
        )
    )
    try:
        done = place.run("run", "jobs.yaml", "--name", "z")
        assert done.returncode == 0
        assert f"an MPS daemon of somebody else's (pid {pid}, {theirs}) runs" in done.stderr
        checks = json.loads(place.run("doctor", "--json").stdout)["checks"]
        (mps,) = [check for check in checks if check["name"] == "MPS"]
        assert str(pid) in mps["found"]
        assert (theirs / "commands").read_text().splitlines() == ["start 0"]
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGTERM)
