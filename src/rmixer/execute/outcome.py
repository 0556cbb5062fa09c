"""How an attempt ended: from what the shim wrote, the end of the log, and what we had ordered."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rmixer.faults import find_fault
from rmixer.model import Outcome, StateName

MESSAGE_LINES = 15
#: Words for memory are looked for in so many last lines: a traceback, and what is printed after it.
SEARCHED_LINES = 100
#: Shells and our shim report a signal as 128 + its number.
SIGNAL_BASE = 128

Memory = Literal["gpu", "host", "shm"]

#: What programs print when memory runs out, most specific first. Apple's Metal is also called MPS,
#: and its message is none of ours. Sources: the messages of CUDA, cuBLAS, cuDNN, PyTorch, Paddle,
#: TensorFlow, numpy, the C++ and Python runtimes.
MEMORY_WORDS: tuple[tuple[Memory, re.Pattern[str]], ...] = (
    (
        "shm",
        re.compile(
            r"out of shared memory|unable to (?:allocate|open) shared memory", re.IGNORECASE
        ),
    ),
    ("shm", re.compile(r"No space left on device.*/dev/shm|/dev/shm.*No space left on device")),
    ("shm", re.compile(r"shared memory \(?shm\)?.*(?:Bus error|No space left)|Bus error.*\bshm\b")),
    ("gpu", re.compile(r"CUDA(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY", re.IGNORECASE)),
    ("gpu", re.compile(r"(?:CUBLAS|CUDNN|CUFFT|CUSPARSE|CUSOLVER)_STATUS_ALLOC_FAILED")),
    ("gpu", re.compile(r"cudaErrorMemoryAllocation|Out of memory error on GPU", re.IGNORECASE)),
    ("gpu", re.compile(r"OOM when allocating tensor.*GPU:", re.IGNORECASE)),
    # cuDNN 9; XLA's allocator, as JAX and TensorFlow show it
    ("gpu", re.compile(r"CUDNN_STATUS_INTERNAL_ERROR_\w+_ALLOCATION_FAILED")),
    (
        "gpu",
        re.compile(r"RESOURCE_EXHAUSTED: Out of memory|Failed to allocate .* on device ordinal"),
    ),
    ("host", re.compile(r"^(?:[\w.]*\.)?_?(?:Array)?MemoryError\b")),
    ("host", re.compile(r"std::bad_alloc|[Cc]an(?:'t|not) allocate memory")),
    ("host", re.compile(r"not enough memory: you tried to allocate|^OOM when allocating tensor")),
)
#: A program that asks for a GPU by its number, other than 0: it is shown the one that it was given.
OWN_CHOICE = re.compile(
    r"CUDA error: invalid device ordinal|CUDA_ERROR_INVALID_DEVICE|Invalid device id\b"
)
#: A worker that the kernel killed; only the kernel's own count tells whether it was for memory.
KILLED_WORKER = re.compile(
    r"killed by signal: Killed|worker.*(?:SIGKILL|signal 9)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """What one exit code of our own trainer means."""

    reason: str
    state: StateName = StateName.FAILED
    retryable: bool = True


#: Exit codes of ``rmixer.train.worker``, after sysexits.h.
WORKER_EXITS = {
    65: WorkerExit("data", retryable=False),
    70: WorkerExit("diverged", retryable=False),
    71: WorkerExit("host", state=StateName.OUT_OF_MEMORY),
    74: WorkerExit("disk full"),
}


def classify(
    ended: Mapping[str, Any],
    tail: Sequence[str],
    stopping: Outcome | None = None,
    *,
    ours: bool = False,
) -> Outcome:
    """How an attempt ended.

    Args:
        ended: what ``exit.json`` says.
        tail: the last lines of the log, as `rmixer.execute.logtail.read_tail` gives them.
        stopping: what the attempt was to count as when it was told to stop; None if it was not.
            Programs end with -15, 15, 1, 143 or 0 when told to, so the code decides nothing then.
        ours: the program is our trainer, whose exit codes are known.
    """
    facts = Outcome(
        state=StateName.FAILED,
        reason=describe(ended),
        message="\n".join(tail[-MESSAGE_LINES:]),
        exit_code=ended.get("exit_code"),
        signal=ended.get("signal"),
        memory_peak_bytes=int(ended.get("max_rss_bytes") or 0),
    )
    succeeded = ended.get("exit_code") == 0
    if succeeded and (ours or not ended.get("stopped")):  # ours says 143 where it stopped for us
        return replace(facts, state=StateName.SUCCEEDED, reason="", message="")
    if stopping is not None:
        return _as_ordered(stopping, facts)
    if ended.get("stopped"):
        return replace(facts, state=StateName.PREEMPTED, reason="stopped from outside")
    if ended.get("error"):
        return replace(facts, message=str(ended["error"]), retryable=False)
    return _failed(facts, ended, tail, ours=ours)


def describe(ended: Mapping[str, Any]) -> str:
    """An end in a word or two: ``exit 3``, ``SIGSEGV``, ``exit 139 (SIGSEGV)``."""
    number, code = ended.get("signal"), ended.get("exit_code")
    if number is not None:
        return _signal_name(number)
    if code is not None and code > SIGNAL_BASE and _signal_name(code - SIGNAL_BASE):
        return f"exit {code} ({_signal_name(code - SIGNAL_BASE)})"
    return f"exit {code}"


def memory_words(tail: Sequence[str]) -> Memory | None:
    """Which memory ran out, by the words in the last lines of a log; None if they do not say."""
    lines = tail[-SEARCHED_LINES:]
    for memory, pattern in MEMORY_WORDS:
        if any(pattern.search(line) for line in lines):
            return memory
    return None


def cage_peak(ended: Mapping[str, Any]) -> int:
    """The most memory that the attempt's cage has counted, bytes; 0 where there was none.

    Page cache is in it, so it is the job's own only where the cage was full: the kernel takes the
    cache back before it kills.
    """
    return int((ended.get("cage") or {}).get("peak_bytes") or 0)


def _as_ordered(stopping: Outcome, facts: Outcome) -> Outcome:
    return replace(
        stopping,
        message=stopping.message or facts.message,
        exit_code=facts.exit_code,
        signal=facts.signal,
        memory_peak_bytes=max(stopping.memory_peak_bytes, facts.memory_peak_bytes),
    )


def _failed(
    facts: Outcome, ended: Mapping[str, Any], tail: Sequence[str], *, ours: bool
) -> Outcome:
    memory = memory_words(tail) or _killed_for_memory(ended, tail)
    if memory == "host":
        facts = replace(facts, memory_peak_bytes=cage_peak(ended) or facts.memory_peak_bytes)
    meaning = WORKER_EXITS.get(facts.exit_code or 0) if ours else None
    if meaning is not None and (memory is None or meaning.state == StateName.FAILED):
        message = next((line for line in reversed(tail) if line.strip()), facts.message)
        return replace(
            facts,
            state=meaning.state,
            reason=meaning.reason,
            message=message,
            retryable=meaning.retryable,
        )
    if memory is not None:
        return replace(facts, state=StateName.OUT_OF_MEMORY, reason=memory)
    if any(OWN_CHOICE.search(line) for line in tail[-SEARCHED_LINES:]):
        return replace(facts, reason=f"{facts.reason}: it picks a GPU that it does not see")
    fault = find_fault(tail[-SEARCHED_LINES:])
    return replace(facts, reason=f"CUDA fault ({fault})", fault=fault) if fault else facts


def _killed_for_memory(ended: Mapping[str, Any], tail: Sequence[str]) -> Memory | None:
    """SIGKILL that we did not send, while the kernel counts a kill for memory.

    Of kills in the job's own cage it is enough that there was one: whatever a program says when
    one of its processes is gone, that is why it failed.
    """
    if not ended.get("oom_kills"):
        return None
    if (ended.get("cage") or {}).get("oom_kills"):
        return "host"
    killed = ended.get("signal") == signal.SIGKILL or (
        ended.get("exit_code") == SIGNAL_BASE + signal.SIGKILL
    )
    worker = any(KILLED_WORKER.search(line) for line in tail[-SEARCHED_LINES:])
    return "host" if killed or worker else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
