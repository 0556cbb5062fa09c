"""Faults of CUDA: which one it was, whom they cost a try, and which GPU is given up for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import OK, Driver, job, kinds

from rmixer import events as ev
from rmixer.execute.outcome import classify
from rmixer.faults import FAULTS, find_fault
from rmixer.model import Active, Device, Final, JobSpec, Node, Outcome, StateName
from rmixer.policies.baselines import AllAtOnce

GPUS = tuple(Device(id=f"GPU-{i}", kind="T4", index=i, memory=100) for i in range(2))
TWO = Node(cores=tuple(range(16)), memory=1000, devices=(Device(), *GPUS))
ONE = replace(TWO, devices=TWO.devices[:2])
MPS = replace(TWO, devices=(Device(), *(replace(gpu, sharing="mps") for gpu in GPUS)))


def gpu_job(name: str, family: str = "", **keys: object) -> JobSpec:
    return job(name, device="gpu", gpu_memory=30, family=family or name, **keys)  # type: ignore[arg-type]


def met(fault: str) -> Outcome:
    return Outcome(state=StateName.FAILED, reason=f"CUDA fault ({fault})", fault=fault)


ECC, ILLEGAL, ASSERT = (
    met("uncorrectable ECC error"),
    met("illegal memory access"),
    met("device-side assert"),
)


def drive(*jobs: JobSpec, node: Node = TWO) -> Driver:
    from rmixer.model import Estimate  # noqa: PLC0415

    known = {spec.id: Estimate(memory=10, device_memory=30) for spec in jobs}
    return Driver(*jobs, policy=AllAtOnce(), node=node, estimates=known)


def device(driver: Driver, name: str) -> str:
    state = driver.core.state.jobs[name].state
    assert isinstance(state, Active), f"{name} is {state.name}"
    return state.attempt.placement.device


@pytest.mark.parametrize(("line", "name"), [
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access"),
    ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error"),
    ("RuntimeError: CUDA error: device-side assert triggered", "device-side assert"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.", "GPU lost"),
    ("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling", "library failure"),
    ("cudaErrorMpsRpcFailure: MPS client failed", "MPS failure"),
    ("RuntimeError: MPS backend out of memory (MPS allocated: 1 GB)", ""),
    ("ValueError: access to memory", ""),
])  # fmt: skip
def test_a_fault_is_known_by_its_words(line: str, name: str) -> None:
    """Those of CUDA and its libraries; Apple's Metal is none of ours."""
    assert find_fault(["Traceback", line, ""]) == name
    assert not name or name in {fault.name for fault in FAULTS}


def test_a_program_that_asks_for_another_gpu_is_told_so() -> None:
    """It sees one GPU, whatever its number in the machine; that is no fault of the GPU."""
    tail = ["Traceback", "RuntimeError: CUDA error: invalid device ordinal"]
    outcome = classify({"exit_code": 1}, tail)
    assert outcome.reason == "exit 1: it picks a GPU that it does not see"
    assert not outcome.fault


def test_a_hardware_fault_of_two_jobs_drains_the_gpu() -> None:
    """All that ran or failed there goes to the other, whoever had no retries; the count is zero."""
    driver = drive(*(gpu_job(name) for name in "abcd"))
    first = [name for name in "abcd" if device(driver, name) == "GPU-0"]
    assert len(first) == 2
    driver.ends(first[0], ECC)
    assert driver.core.state.node.devices[1].closed == ""
    driver.ends(first[1], ECC)
    (drained,) = kinds(driver.said, ev.DeviceDrained)
    assert (drained.device, set(drained.jobs)) == ("GPU-0", set(first))
    for name in set("abcd") - set(first):
        driver.ends(name, OK)
    assert {device(driver, name) for name in first} == {"GPU-1"}
    assert {driver.core.state.jobs[name].tries_used for name in first} == {0}


def test_what_still_runs_on_a_drained_gpu_is_taken_away_for_free() -> None:
    """It is stopped, and goes on elsewhere."""
    driver = drive(*(gpu_job(name) for name in "abcdef"))
    a, b, c = (name for name in "abcdef" if device(driver, name) == "GPU-0")
    driver.ends(a, ECC)
    driver.ends(b, ECC)
    (stopping,) = kinds(driver.said, ev.Stopping)
    assert (stopping.job, stopping.outcome.reason) == (c, "DeviceDrained")
    driver.ends(c, Outcome(state=StateName.FAILED, reason="SIGTERM"))
    assert driver.states()[c] == StateName.PENDING
    assert driver.core.state.jobs[c].tries_used == 0


def test_a_doubtful_fault_is_tried_once_elsewhere() -> None:
    """There it is the program's own; the GPU stays."""
    driver = drive(gpu_job("a"))
    there = device(driver, "a")
    driver.ends("a", ILLEGAL)
    assert device(driver, "a") != there
    driver.ends("a", ILLEGAL)
    assert driver.states()["a"] == StateName.FAILED
    assert not kinds(driver.said, ev.DeviceDrained)


def test_one_program_of_many_jobs_condemns_no_gpu() -> None:
    """A sweep with a bug fails everywhere; from then on without a second try."""
    driver = drive(*(gpu_job(name, "sweep") for name in "abcd"))
    for _ in range(8):
        running = [j.id for j in driver.core.state.active]
        for name in running:
            driver.ends(name, ILLEGAL)
        if not driver.core.state.active:
            break
    assert set(driver.states().values()) == {StateName.FAILED}
    assert not kinds(driver.said, ev.DeviceDrained)


@pytest.mark.parametrize("outcome", [ASSERT, ILLEGAL])
def test_on_a_single_gpu_a_fault_is_a_failure(outcome: Outcome) -> None:
    """There is nowhere to try it again; an assertion is the program's own in any case."""
    driver = drive(gpu_job("a"), node=ONE if outcome is ILLEGAL else TWO)
    driver.ends("a", outcome)
    assert driver.states()["a"] == StateName.FAILED


def test_without_another_gpu_waiting_jobs_are_told() -> None:
    """They end with the reason, instead of waiting for ever."""
    driver = drive(*(gpu_job(name) for name in "abcd"), node=ONE)
    driver.ends("a", ECC)
    driver.ends("b", ECC)
    driver.ends("c", OK)
    for one in driver.core.state.active:
        driver.ends(one.id, met("launch failure"))
    states = {name: one.state for name, one in driver.core.state.jobs.items()}
    assert states.pop("c").name == StateName.SUCCEEDED
    for state in states.values():
        assert isinstance(state, Final)
        assert (state.name, state.outcome.reason) == (StateName.FAILED, "DeviceDrained")
        assert "uncorrectable ECC error" in state.outcome.message


def test_under_mps_a_fault_takes_its_neighbours_with_it_at_no_cost() -> None:
    """They are COLLATERAL, the GPU rests until they are gone; who faulted runs alone from then on."""
    driver = drive(*(gpu_job(name) for name in "abcde"), node=MPS)
    e, *beside = (name for name in "abcde" if device(driver, name) == "GPU-0")
    others = [name for name in "abcde" if name not in (e, *beside)]
    driver.ends(e, ILLEGAL)
    stopped = {s.job: s.outcome.reason for s in kinds(driver.said, ev.Stopping)}
    assert stopped == dict.fromkeys(beside, "COLLATERAL")
    assert "started anew" in driver.core.state.node.devices[1].closed
    for name in beside:
        driver.ends(name, Outcome(state=StateName.FAILED, reason="exit 1", fault="launch failure"))
    assert driver.core.state.node.devices[1].closed == ""
    assert {driver.core.state.jobs[name].tries_used for name in (e, *beside)} == {0}
    assert {device(driver, name) for name in beside} <= {"GPU-0", "GPU-1"}
    assert driver.states()[e] == StateName.PENDING, "it waits for a GPU of its own"
    for name in (*others, *beside):
        driver.ends(name, OK)
    assert device(driver, e) == "GPU-1"
    driver.ends(e, ILLEGAL)
    assert driver.states()[e] == StateName.FAILED
