"""Faults of CUDA: which one a job met, whose it may be, and when it speaks against a GPU.

A *hardware* fault is the GPU's. A *doubtful* one, an illegal access say, is mostly the program's,
but a damaged GPU makes them too: the job is tried once more elsewhere, at no cost. An *own* one is
the program's. Kinds after NVIDIA's list of Xid errors and the error codes of the CUDA runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rmixer.model import CPU, Attempt, Job, Node, Outcome
from rmixer.policies.base import eligible_devices

Kind = Literal["hardware", "doubtful", "own"]

#: What an attempt counts as whose MPS server another one's fault took away, and one whose GPU was
#: given up under it.
COLLATERAL, DRAINED = "COLLATERAL", "DeviceDrained"
#: Jobs with the same hardware fault that drain a GPU; likewise of a doubtful one, from so many
#: families, or of one family where others of it ran elsewhere.
FEW, FAMILIES, MANY = 2, 2, 3
#: Hardware faults of one job that cost it nothing.
FREE_FAULTS = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of end.

    Attributes:
        name: as CUDA calls it.
        kind: whose it may be.
        words: what programs, libraries and the driver print for it.
    """

    name: str
    kind: Kind
    words: re.Pattern[str]


def _fault(name: str, kind: Kind, words: str) -> Fault:
    return Fault(name, kind, re.compile(words, re.IGNORECASE))


FAULTS = (
    _fault(
        "uncorrectable ECC error",
        "hardware",
        r"uncorrectable (?:ECC|NVLink) error|ECC_UNCORRECTABLE|ECCUncorrectable"
        r"|\bXid\b.*: (?:48|63|64|92|94|95)\b",
    ),
    _fault(
        "GPU lost",
        "hardware",
        r"GPU is lost|fallen off the bus|\bXid\b.*: (?:74|79|119|120)\b"
        r"|CUDA_ERROR_DEVICE_UNAVAILABLE|no CUDA-capable device is detected"
        r"|devices?(?:\(s\) is/are| is) busy or unavailable",
    ),
    _fault("hardware stack error", "hardware", r"hardware stack error|HARDWARE_STACK_ERROR"),
    _fault("unknown error", "hardware", r"CUDA (?:driver )?error: unknown|CUDA_ERROR_UNKNOWN"),
    _fault("device-side assert", "own", r"device-side assert|CUDA_ERROR_ASSERT"),
    _fault(
        "illegal memory access",
        "doubtful",
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|\bXid\b.*: (?:13|31)\b",
    ),
    _fault(
        "illegal instruction", "doubtful", r"CUDA.*illegal instruction|ILLEGAL_INSTRUCTION"
    ),
    _fault("misaligned address", "doubtful", r"CUDA.*misaligned address|MISALIGNED_ADDRESS"),
    _fault(
        "launch failure",
        "doubtful",
        r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure",
    ),
    _fault("launch timeout", "doubtful", r"the launch timed out|CUDA_ERROR_LAUNCH_TIMEOUT"),
    _fault(
        "MPS failure",
        "doubtful",
        r"CUDA_ERROR_MPS_|cudaErrorMps|MPS server is not ready|MPS client (?:failed|terminated)"
        r"|between the MPS server and the MPS client",
    ),
    _fault(
        "library failure",
        "doubtful",
        r"(?:CUBLAS|CUDNN|CUSPARSE)_STATUS_(?:EXECUTION_FAILED|INTERNAL)",
    ),
)  # fmt: skip
_KINDS: Mapping[str, Kind] = {fault.name: fault.kind for fault in FAULTS}


def find_fault(lines: Iterable[str]) -> str:
    """The name of the fault that these lines of a log tell of; empty where they tell of none."""
    kept = [line for line in lines if line.strip()]
    for fault in FAULTS:
        if any(fault.words.search(line) for line in kept):
            return fault.name
    return ""


def is_free(outcome: Outcome) -> bool:
    """Whether an attempt was ended for what another job or the GPU did."""
    return outcome.reason in (COLLATERAL, DRAINED)


def is_excused(job: Job, attempt: Attempt, fault: str, node: Node, family: Iterable[Job]) -> bool:
    """Whether an attempt that ends with a fault costs its job no try.

    Args:
        job: whose attempt it is, with those before.
        attempt: the one that has ended.
        fault: how.
        node: the machine.
        family: the members of the job's family.
    """
    here, before = attempt.placement.device, job.faulted_on(fault)
    if _KINDS[fault] == "own" or here == CPU:
        return False
    if _KINDS[fault] == "hardware":
        return len([a for a in job.attempts[job.forgiven :] if _met(a)]) < FREE_FAULTS
    if before:  # it has met it twice
        return False
    elsewhere: set[str] = set().union(*(one.faulted_on(fault) for one in family))
    if elsewhere - {here}:
        return False
    under_mps = node.device(here).sharing == "mps"  # perhaps it was a neighbour's
    others = [d for d in eligible_devices(job.spec, node) if d.kind != CPU and d.id != here]
    return under_mps or any(not device.closed for device in others)


def speaks_against(device: str, fault: str, jobs: Iterable[Job], gpus: int) -> tuple[str, ...]:
    """The names of the jobs whose ends make a GPU sick; none where it is not.

    Args:
        device: the GPU.
        fault: the one that a job has just met there.
        jobs: all of the run, their ended attempts included.
        gpus: how many the machine has.
    """
    kind = _KINDS[fault]
    if kind == "own":
        return ()
    met = [(job, job.faulted_on(fault)) for job in jobs]
    here = [job for job, where in met if device in where]
    if kind == "hardware":
        return _names(here) if len(here) >= FEW else ()
    programs = {_program(job) for job, where in met if where - {device}}
    left = [job for job in here if _program(job) not in programs]
    families = {_program(job) for job in left}
    enough = len(families) >= FAMILIES or (len(left) >= MANY and gpus > 1)
    return _names(left) if enough else ()


def _names(jobs: Sequence[Job]) -> tuple[str, ...]:
    return tuple(job.spec.name for job in jobs)


def _program(job: Job) -> str:
    return job.spec.family or job.id


def _met(attempt: Attempt) -> bool:
    return attempt.outcome is not None and bool(attempt.outcome.fault)
