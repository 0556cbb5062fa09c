"""How an attempt ended, from what is on disk."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from rmixer.execute.outcome import classify, describe, memory_words
from rmixer.model import Outcome, StateName

ENDED: dict[str, Any] = {
    "exit_code": 1, "signal": None, "stopped": False, "error": None, "max_rss_bytes": 7, "oom_kills": 0,
}  # fmt: skip
KILLED: dict[str, Any] = {"exit_code": None, "signal": int(signal.SIGKILL)}
CANCELLED = Outcome(state=StateName.CANCELLED, reason="asked for")


def end(*tail: str, stopping: Outcome | None = None, ours: bool = False, **changes: Any) -> Outcome:
    return classify({**ENDED, **changes}, tail, stopping, ours=ours)


def test_zero_is_success() -> None:
    """Exit code 0 is SUCCEEDED, whatever words about memory were logged on the way."""
    outcome = end("CUDA out of memory, trying a smaller batch", exit_code=0)
    assert (outcome.state, outcome.memory_peak_bytes) == (StateName.SUCCEEDED, 7)


def test_failure_shows_the_last_lines() -> None:
    """The message is the last fifteen lines of the log."""
    outcome = end(*[f"line {n}" for n in range(40)], exit_code=3)
    assert (outcome.state, outcome.reason) == (StateName.FAILED, "exit 3")
    assert outcome.message.splitlines() == [f"line {n}" for n in range(25, 40)]
    assert outcome.retryable


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": 3}, "exit 3"),
        ({"exit_code": None, "signal": 11}, "SIGSEGV"),
        ({"exit_code": 139}, "exit 139 (SIGSEGV)"),
        ({"exit_code": 255}, "exit 255"),
    ],
)
def test_description(changes: dict[str, Any], words: str) -> None:
    """Codes and signals are told by the words that people know."""
    assert describe({**ENDED, **changes}) == words


GPU = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "ResourceExhaustedError: OOM when allocating tensor with shape[8,9] on /job:localhost/device:GPU:0",
    "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 1.0GB memory on GPU 0",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.",
    "Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
]
HOST = [
    "MemoryError",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 10. GiB for an array",
    "numpy.core._exceptions.MemoryError: Unable to allocate 10. GiB for an array",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "OSError: [Errno 12] Cannot allocate memory",
    "ResourceExhaustedError: DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.",
]
SHM = [
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm). Bus error",
    "RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    "OSError: [Errno 28] No space left on device: '/dev/shm/torch_1'",
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)",
    "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files",
]


@pytest.mark.parametrize(
    ("memory", "line"),
    [("gpu", line) for line in GPU]
    + [("host", line) for line in HOST]
    + [("shm", line) for line in SHM],
)
def test_words_of_memory(memory: str, line: str) -> None:
    """The messages of the libraries are known for which memory they are about."""
    outcome = end("Traceback (most recent call last):", line, "done")
    assert (outcome.state, outcome.reason) == (StateName.OUT_OF_MEMORY, memory)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: MPS backend out of memory (MPS allocated: 18.05 GB)",
        "OSError: [Errno 28] No space left on device: '/data/out'",
        "except MemoryError as error:",
        "ValueError: CUDA is not available",
    ],
)
def test_words_that_are_not_about_our_memory(line: str) -> None:
    """Apple's Metal, a full disk and source lines in a traceback are plain failures."""
    assert end(line).state == StateName.FAILED


def test_words_far_up_are_not_the_reason() -> None:
    """Memory that ran out hundreds of lines before the end was not the end."""
    assert memory_words(["MemoryError", *["went on"] * 500]) is None


def test_sigkill_needs_the_kernels_count() -> None:
    """SIGKILL is for memory if the kernel counted a kill for memory meanwhile, and only then."""
    assert end(**KILLED, oom_kills=1).state == StateName.OUT_OF_MEMORY
    assert end(exit_code=137, oom_kills=1).state == StateName.OUT_OF_MEMORY
    outcome = end(**KILLED)
    assert (outcome.state, outcome.reason) == (StateName.FAILED, "SIGKILL")


def test_kill_in_the_own_cage_is_enough() -> None:
    """Whatever a program says once the kernel has killed a part of it, memory was the reason."""
    cage = {"kind": "cgroup1", "oom_kills": 1, "peak_bytes": 900}
    outcome = end("ValueError: no", oom_kills=1, cage=cage)
    assert (outcome.state, outcome.reason) == (StateName.OUT_OF_MEMORY, "host")
    assert outcome.memory_peak_bytes == 900
    assert end("went on without it", exit_code=0, oom_kills=1, cage=cage).memory_peak_bytes == 7


def test_full_cage_does_not_hide_what_else_ran_out() -> None:
    """A job in a cage whose GPU ran out of memory is told so; a failure without a kill is one."""
    cage = {"kind": "cgroup2", "oom_kills": 0, "peak_bytes": 900}
    assert end("RuntimeError: CUDA error: out of memory", cage=cage).reason == "gpu"
    assert end(**KILLED, cage=cage).state == StateName.FAILED
    assert end("ValueError: no", cage={**cage, "oom_kills": None}).state == StateName.FAILED


def test_killed_worker_needs_the_kernels_count() -> None:
    """A job that fails because its worker was killed is out of memory by the same count."""
    line = "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed."
    assert end(line, oom_kills=1).state == StateName.OUT_OF_MEMORY
    assert end(line).state == StateName.FAILED
    assert end("ValueError: no", oom_kills=1).state == StateName.FAILED


@pytest.mark.parametrize(
    "changes",
    [{"exit_code": -0, "signal": None}, {"exit_code": 15}, {"exit_code": 1}, {"exit_code": None, "signal": 15}, KILLED],
)  # fmt: skip
def test_order_decides_not_the_code(changes: dict[str, Any]) -> None:
    """A job that was told to stop counts as ordered, whatever it ended with."""
    outcome = end("MemoryError", stopping=CANCELLED, stopped=True, **changes)
    assert (outcome.state, outcome.reason) == (StateName.CANCELLED, "asked for")
    assert outcome.memory_peak_bytes == 7


def test_success_before_the_order_came() -> None:
    """A job that had ended well before its shim saw the order has succeeded."""
    assert end(stopping=CANCELLED, exit_code=0).state == StateName.SUCCEEDED
    assert end(stopping=CANCELLED, exit_code=1).state == StateName.CANCELLED


def test_stop_by_somebody_else() -> None:
    """A shim that was told to stop, but not by us, is no failure of the job."""
    outcome = end(stopped=True, exit_code=None, signal=15)
    assert (outcome.state, outcome.retryable) == (StateName.PREEMPTED, True)


def test_program_that_cannot_start_will_not_start_later() -> None:
    """The message says why, and another attempt is no help."""
    outcome = end("log", exit_code=127, error="cannot start x: No such file or directory")
    assert (outcome.state, outcome.retryable) == (StateName.FAILED, False)
    assert outcome.message == "cannot start x: No such file or directory"


def test_exit_codes_of_our_trainer() -> None:
    """Bad data is not tried again and told in one line; memory is memory; of others 65 is 65."""
    data = end("reading", "a.tsv:3: 7 columns, 40 expected", "", exit_code=65, ours=True)
    assert (data.state, data.reason, data.retryable) == (StateName.FAILED, "data", False)
    assert data.message == "a.tsv:3: 7 columns, 40 expected"
    assert end("x", exit_code=71, ours=True).state == StateName.OUT_OF_MEMORY
    assert end("disk full: /cache", exit_code=74, ours=True).reason == "disk full"
    assert end("x", exit_code=65).retryable
