"""What a job finds in its environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmixer import launch
from rmixer.execute.environment import (
    THREAD_VARIABLES,
    TOKEN,
    allocator_settings,
    declared_threads,
    free_port,
    job_environment,
)
from rmixer.model import JobSpec, Placement
from rmixer.resources import MIB


def environment(
    *,
    env: dict[str, Any] | None = None,
    inherited: dict[str, str] | None = None,
    kind: Any = "command",
    **placement: Any,
) -> dict[str, str | None]:
    return job_environment(
        JobSpec(id="a", name="A", kind=kind, payload={"env": env or {}}),
        2,
        "secret",
        Placement(**placement),
        run_dir=Path("/runs/r"),
        temporary="/scratch",
        progress="/attempt/progress",
        checkpoint="/job/checkpoints/checkpoint",
        result="/attempt/result.json",
        inherited=inherited or {},
    )


def test_threads_are_those_of_the_placement() -> None:
    """Every library is told the number of threads that was placed."""
    given = environment(threads=3)
    assert {given[name] for name in THREAD_VARIABLES} == {"3"}


def test_no_threads_leaves_the_programs_default() -> None:
    """A placement without threads sets none."""
    assert not set(THREAD_VARIABLES) & environment(threads=None).keys()


def test_users_own_threads_win() -> None:
    """A value in the job's env or in our environment is kept, and OMP's is meant for all."""
    assert environment(threads=3, env={"MKL_NUM_THREADS": 5})["MKL_NUM_THREADS"] == "5"
    assert environment(threads=3, env={"MKL_NUM_THREADS": 5})["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in environment(threads=3, inherited={"MKL_NUM_THREADS": "5"})
    given = environment(threads=3, env={"OMP_NUM_THREADS": "6"})
    assert {given[name] for name in THREAD_VARIABLES} == {"6"}
    given = environment(threads=3, inherited={"OMP_NUM_THREADS": "6,2"})
    assert {given[name] for name in THREAD_VARIABLES[1:]} == {"6"}


def test_declared_threads() -> None:
    """The first number of OMP_NUM_THREADS counts; what is no number counts for nothing."""
    assert declared_threads({"OMP_NUM_THREADS": " 4,2"}) == 4
    assert declared_threads({"OMP_NUM_THREADS": "many"}) is None
    assert declared_threads({"OMP_NUM_THREADS": "0"}) is None
    assert declared_threads({}) is None


@pytest.mark.parametrize(
    ("library", "threshold"),
    [("glibc 2.36", 256 * MIB), ("glibc 2.31", 32 * MIB), ("other", None), (None, None)],
)
def test_allocator_settings_are_those_that_the_library_takes(
    monkeypatch: pytest.MonkeyPatch, library: str | None, threshold: int | None
) -> None:
    """An older glibc ignores a large threshold, another library has none."""
    monkeypatch.setattr("os.confstr", lambda name: library)
    assert allocator_settings().get("MALLOC_MMAP_THRESHOLD_") == (threshold and str(threshold))


TOUCH = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    block = libc.malloc(SIZE)
    ctypes.memset(block, 1, SIZE)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_allocator_settings_keep_memory() -> None:
    """A large block that is taken and given back again and again is paged in once."""
    settings = allocator_settings()
    if not settings:
        pytest.skip("the C library here is not glibc")
    size = int(settings["MALLOC_MMAP_THRESHOLD_"]) * 3 // 4

    def faults(**environment: str) -> int:
        words = [sys.executable, "-c", TOUCH.replace("SIZE", str(size))]
        return int(subprocess.run(words, env=environment, capture_output=True, check=True).stdout)

    assert faults(**settings) * 4 < faults()


def test_allocator_gives_way_to_the_user() -> None:
    """Thresholds are raised unless the user has set them."""
    assert allocator_settings().items() <= environment().items()
    name = "MALLOC_TRIM_THRESHOLD_"
    assert name not in environment(inherited={name: "1"})
    assert environment(env={name: 1})[name] == "1"


def test_gpus_are_hidden_on_the_cpu() -> None:
    """A CPU placement shows no GPU, a GPU placement its own, the job's env wins."""
    name = "CUDA_VISIBLE_DEVICES"
    assert environment(inherited={name: "0,1"})[name] == ""
    assert environment(device="GPU-1")[name] == "GPU-1"
    assert environment(device="GPU-1", env={name: "3"})[name] == "3"


def test_master_port_is_each_jobs_own() -> None:
    """An exported port cannot be right for several jobs; one in the job's env is."""
    port = environment(inherited={"MASTER_PORT": "29500"})["MASTER_PORT"]
    assert port is not None
    assert port != "29500"
    assert 1024 <= int(port) < 65536
    assert environment(env={"MASTER_PORT": 29500})["MASTER_PORT"] == "29500"


def test_ports_are_free() -> None:
    """A port that was chosen can be bound."""
    import socket  # noqa: PLC0415

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_identity_cannot_be_overridden() -> None:
    """The tag that finds a job's processes is ours, also under another rmixer."""
    given = environment(env={TOKEN: "mine"}, inherited={TOKEN: "outer"})
    assert given[TOKEN] == "secret"
    assert (given["RMIXER_JOB_ID"], given["RMIXER_ATTEMPT"]) == ("a", "2")
    assert given["RMIXER_RUN_DIR"] == "/runs/r"
    assert given["TMPDIR"] == "/scratch"


def test_programs_of_others_are_instrumented() -> None:
    """The launcher comes first on their path, before the user's own; our trainer needs none."""
    launcher = str(Path(launch.__file__).parent)
    assert environment()["PYTHONPATH"] == launcher
    assert environment()["RMIXER_PROGRESS"] == "/attempt/progress"
    assert environment(inherited={"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == f"{launcher}:/a:/b"
    both = environment(inherited={"PYTHONPATH": "/a"}, env={"PYTHONPATH": "/own"})
    assert both["PYTHONPATH"] == f"{launcher}:/own"
    assert not {"PYTHONPATH", "RMIXER_PROGRESS"} & environment(kind="model").keys()


def test_a_user_may_forbid_it() -> None:
    """An empty page in the job's own environment; its path is then left alone."""
    given = environment(env={"RMIXER_PROGRESS": "", "PYTHONPATH": "/own"})
    assert (given["RMIXER_PROGRESS"], given["PYTHONPATH"]) == ("", "/own")
