"""GPUs that go blind, that others use, and that jobs pick for themselves. The GPUs are fakes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace, wait_until

from doubles.fake_gpus import UNKNOWN, FakeGpus, make_gpus
from rmixer import events as ev
from rmixer.model import StateName
from rmixer.resources import GIB, MIB

pytestmark = pytest.mark.e2e

MakeGpus = Callable[..., FakeGpus]


@pytest.fixture
def gpus(place: Workplace, gpu_library: Path) -> FakeGpus:
    """Two GPUs of 4 GiB for the runs of the workplace."""
    fake = make_gpus(place.directory / "gpus", gpu_library, 4 * GIB, 4 * GIB)
    place.environment |= fake.environment
    return fake


def holds(fake: FakeGpus, name: str, *words: str, **keys: Any) -> dict[str, Any]:
    """A job that holds memory of a GPU, and is no program that is traced before."""
    command = " ".join([PYTHON, "-S", str(fake.job), *words])
    return {"name": name, "command": ["sh", "-c", f"{command}; exit $?"], "device": "gpu", **keys}


def test_a_blind_gpu_takes_no_job_until_it_can_be_read(place: Workplace, gpus: FakeGpus) -> None:
    """The other GPU goes on meanwhile, its jobs are measured; then the waiting job gets its GPU."""
    gpus.lose(1)
    place.write(holds(gpus, "a", "go:300"), holds(gpus, "b", "go:200"))
    runner = place.start("run", "jobs.yaml", "--json", "--policy", "all-at-once")
    wait_until(lambda: place.names().get("a") == StateName.PROFILING, "for a to run")
    wait_until(lambda: list((gpus.folder / "held").glob("[0-9]*")), "for a to hold memory")
    gpus.lose(0, UNKNOWN)  # a goes on
    blind = "GPU 0 cannot be read: Unknown Error"
    wait_until(lambda: place.state().node.devices[1].closed == blind, "to be blind")
    assert place.names()["b"] == StateName.PENDING
    gpus.find(1)
    wait_until(lambda: place.names()["b"] != StateName.PENDING, "for b to run")
    gpus.find(0)
    wait_until(lambda: not place.state().node.devices[1].closed, "to see again")
    samples, held = place.paths().samples, f'"device_bytes": {200 * MIB}'
    wait_until(lambda: held in samples.read_text(), "for b to be measured")
    (place.directory / "go").touch()
    done = place.wait(runner)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [job["device"] for job in document["jobs"]] == gpus.uuids
    peaks = [job["device_memory"]["measured_peak_bytes"] for job in document["jobs"]]
    assert peaks == [300 * MIB, 200 * MIB]
    assert any(blind in warning for warning in document["warnings"])


def test_memory_of_others_is_booked_out_and_they_are_named(
    place: Workplace, gpus: FakeGpus
) -> None:
    """A job waits for it, with the numbers; it does not fail for it, and nobody is signalled."""
    other = subprocess.Popen(["sleep", "600"])
    try:
        gpus.hold(other.pid, 3 * GIB)
        place.write(holds(gpus, "a", "0.1:300", gpu_memory="2GiB", device=gpus.uuids[0]))
        runner = place.start("run", "jobs.yaml", "--json")
        waits = "GpuMemory(2.0 GiB>1.0 GiB; others hold 3.0 GiB)"
        wait_until(
            lambda: waits in [str(e.reason) for e in place.events() if isinstance(e, ev.Waiting)]
        )
        found = json.loads(place.run("doctor", "--json").stdout)
        (check,) = [c for c in found["checks"] if c["name"] == "others on GPUs"]
        assert f"sleep 600 (pid {other.pid}, 3.0 GiB)" in check["found"]
        gpus.hold(other.pid, GIB)
        done = place.wait(runner)
        assert done.returncode == 0, done.stderr
        warnings = json.loads(done.stdout)["warnings"]
        assert any(f"sleep 600 (pid {other.pid}, 3.0 GiB)" in warning for warning in warnings)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_job_that_picks_a_gpu_itself_is_noticed(place: Workplace, gpus: FakeGpus) -> None:
    """It is named with both GPUs; what it takes there is booked out for others."""
    place.write(
        holds(gpus, "a", "gpu=1", "go:2500", gpu_memory="2500MiB", device=gpus.uuids[0]),
        holds(gpus, "b", "0.1:2000", gpu_memory="2000MiB", device=gpus.uuids[1], after=["w"]),
        place.shell("w", "until test -e next; do sleep 0.02; done"),
    )
    runner = place.start("run", "jobs.yaml", "--json", "--policy", "all-at-once")
    wait_until(lambda: [e for e in place.events() if isinstance(e, ev.Strayed)], "to be noticed")
    wait_until(lambda: place.state().node.devices[2].foreign == 2500 * MIB, "to be booked out")
    (place.directory / "next").touch()
    wait_until(
        lambda: [
            e for e in place.events() if isinstance(e, ev.Waiting) and e.reason.code == "GpuMemory"
        ]
    )
    (place.directory / "go").touch()
    done = place.wait(runner)
    assert done.returncode == 0, done.stderr
    warnings = json.loads(done.stdout)["warnings"]
    assert (
        "job a holds 2.4 GiB of GPU 1, though it was placed on GPU 0: it picks a GPU itself"
        in warnings
    )


def test_a_sick_gpu_is_given_up_and_its_jobs_go_elsewhere(place: Workplace, gpus: FakeGpus) -> None:
    """At no cost in tries, though they have none to spare, and with one message."""
    gpus.sicken(0, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    place.write(*(holds(gpus, name, "0.01:200", gpu_memory="1GiB") for name in "abcd"))
    document = place.run("run", "jobs.yaml", "--json", "--policy", "all-at-once")
    assert document.returncode == 0, document.stderr
    report = json.loads(document.stdout)
    assert {job["device"] for job in report["jobs"]} == {gpus.uuids[1]}
    lost = [a for job in report["jobs"] for a in job["attempts"] if a["state"] != "SUCCEEDED"]
    assert len(lost) >= 2
    assert not any(attempt["counted"] for attempt in lost)
    assert lost[0]["reason"] == "CUDA fault (uncorrectable ECC error)"
    (warning,) = [text for text in report["warnings"] if "given up" in text]
    assert warning.startswith("GPU 0 is given up: uncorrectable ECC error in 2 jobs (")
    assert report["devices"][1]["closed"] in warning
    assert document.stderr.count("GPU 0 is given up") == 2, (
        "once as it happens, once in the summary"
    )


def test_a_growing_job_closes_its_gpu_before_it_is_full(place: Workplace, gpus: FakeGpus) -> None:
    """It said 1 GiB and comes to hold 3: another of 1.5 GiB waits, though it had room at first."""
    first = gpus.uuids[0]
    place.write(
        holds(gpus, "liar", "grown:1000", "go:3000", gpu_memory="1GiB", device=first),
        holds(gpus, "b", "0.1:1500", gpu_memory="1500MiB", device=first, after=["w"]),
        place.shell("w", "until test -e next; do sleep 0.02; done"),
    )
    runner = place.start("run", "jobs.yaml", "--json", "--policy", "all-at-once")
    wait_until(lambda: place.names().get("liar") == StateName.PROFILING, "for it to run")
    (place.directory / "grown").touch()
    wait_until(
        lambda: [
            e for e in place.events() if isinstance(e, ev.DeviceMemoryGrew) and e.memory > 2 * GIB
        ]
    )
    (place.directory / "next").touch()
    waits = "GpuMemory(1.5 GiB>"
    wait_until(
        lambda: any(
            str(e.reason).startswith(waits) for e in place.events() if isinstance(e, ev.Waiting)
        )
    )
    (place.directory / "go").touch()
    done = place.wait(runner)
    assert done.returncode == 0, done.stderr
    liar = next(j for j in json.loads(done.stdout)["jobs"] if j["name"] == "liar")
    assert liar["device_memory"]["reserved_bytes"] >= 3000 * MIB
