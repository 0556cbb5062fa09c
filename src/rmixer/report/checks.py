"""What ``rmixer doctor`` checks: what is there, what follows for jobs, and how a lack is mended."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rmixer.launch import cage
from rmixer.model import JobSpec, Node
from rmixer.report.check import Check
from rmixer.report.gpu_checks import gpu_checks
from rmixer.resources import KIB, MIB, format_bytes

#: Containers often have 64 MiB, which one batch of a loader's worker can fill.
SMALL_SHM = 512 * MIB
#: Each job takes some tens of descriptors of the runner and its shim.
FEW_FILES = 1024
LIMIT_SECONDS = 60.0
_ABOUT = """
import importlib.util, json, re, sys
found = {"python": sys.version.split()[0], "torch": None, "cuda": None}
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    text = open(spec.origin.replace("__init__.py", "version.py")).read()
    version = re.search(r"__version__\\s*=\\s*'([^']*)'", text)
    cuda = re.search(r"^cuda[^=]*=\\s*'([^']*)'", text, re.M)
    found["torch"] = version.group(1) if version else "unknown"
    found["cuda"] = cuda.group(1) if cuda else None
print(json.dumps(found))
"""


def all_checks(node: Node, jobs: Sequence[JobSpec] = ()) -> list[Check]:
    """Everything, and the interpreters of these jobs."""
    checks: list[Callable[[], Check]] = [
        driver, lambda: cores(node), lambda: memory(node), hierarchy, memory_cage, processes,
        shared_memory, open_files,
    ]  # fmt: skip
    return [*(check() for check in checks), *gpu_checks(node), *interpreters(jobs)]


def driver() -> Check:
    """NVIDIA's driver."""
    import pynvml  # noqa: PLC0415 - only where a machine is looked at

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check(
            name="NVIDIA driver",
            state="missing",
            found=f"none ({error})",
            follows="jobs train on the CPU; one with `device: gpu` is refused",
            mend="to use a GPU install NVIDIA's driver; `nvidia-smi` must list the GPU",
        )
    try:
        version, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return Check(
            name="NVIDIA driver",
            state="problem",
            found=f"it does not answer: {error}",
            follows="no GPU is used",
            mend="see `nvidia-smi` and the kernel's log (`dmesg | grep -i nvrm`)",
        )
    finally:
        pynvml.nvmlShutdown()
    text = version.decode() if isinstance(version, bytes) else version
    return Check(name="NVIDIA driver", state="ok", found=f"{text}, {count} GPUs")


def cores(node: Node) -> Check:
    """How many of the machine's cores jobs may use."""
    usable, there = len(node.cores), os.cpu_count() or len(node.cores)
    found = f"{usable} of {there} for jobs"
    if usable == there:
        return Check(name="cores", state="ok", found=found)
    return Check(
        name="cores",
        state="ok",
        found=found,
        follows="affinity or the container's limit forbids the others",
    )


def memory(node: Node, proc: str = "/proc") -> Check:
    """Memory for jobs, of all that is there."""
    total = 0
    for line in Path(proc, "meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * KIB
    found = f"{format_bytes(node.memory)} for jobs, {format_bytes(total)} in the machine"
    return Check(name="memory", state="ok", found=found)


def hierarchy(proc: str = "/proc", sys: str = "/sys") -> Check:
    """Which version of control groups there is."""
    kinds = {controllers is None for _, _, controllers in cage.mounts(proc, sys)}
    unified = Path(sys, "fs/cgroup/cgroup.controllers")
    if kinds == {True}:
        return Check(name="control groups", state="ok", found="version 2")
    if kinds == {False}:
        return Check(name="control groups", state="ok", found="version 1")
    if kinds:
        controllers = cage.read(str(unified)).split() if unified.exists() else []
        has = "with" if "memory" in controllers else "without"
        found = f"version 1, and version 2 {has} the memory controller (hybrid)"
        return Check(name="control groups", state="ok", found=found)
    return Check(
        name="control groups",
        state="missing",
        found="none are mounted",
        follows="limits of a container cannot be read, and memory is limited per process",
    )


def memory_cage(proc: str = "/proc", sys: str = "/sys") -> Check:
    """What holds a job to its memory: made once, and removed again."""
    try:
        made = cage.make(64 * MIB, f"doctor-{os.getpid()}", proc=proc, sys=sys)
    except OSError as error:
        return Check(
            name="memory limit of a job",
            state="missing",
            found=f"none can be set ({error})",
            follows="a job that outgrows its reservation can take its neighbours with it",
            mend="allow control groups (version 2 with the memory controller delegated), or root",
        )
    document = made.document()
    made.clear()
    if document["path"] is None:
        return Check(
            name="memory limit of a job",
            state="ok",
            found="on the data of each process (RLIMIT_DATA)",
            follows="a job of several processes can take its limit several times",
            mend="delegate the memory controller: "
            "`systemd-run --user --scope -p Delegate=yes bash`",
        )
    parent = Path(str(document["path"])).parent
    version = 2 if document["kind"] == cage.V2.kind else 1
    return Check(
        name="memory limit of a job",
        state="ok",
        found=f"a control group of version {version} in {parent}",
        follows="a job that outgrows its reservation ends alone, with all its processes",
    )


def processes() -> Check:
    """How everything that a job has started is found at its end."""
    return Check(
        name="processes of a job",
        state="ok",
        found="a session of its own, its descendants, and an environment tag",
        follows="workers that were re-parented are ended too; a memory limit's control group "
        "(version 2, else 1) holds all of a job; without one, once its shim is killed, one that "
        "clears its environment and leaves its session is not found (no PID namespace is used)",
    )


def shared_memory(path: str = "/dev/shm") -> Check:  # noqa: S108 - that is what is looked at
    """Through it workers of data loaders pass batches."""
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError as error:
        return Check(
            name="shared memory",
            state="missing",
            found=f"{path}: {error.strerror}",
            follows="data loaders with workers fail",
            mend=f"mount a tmpfs on {path}",
        )
    found = f"{format_bytes(free)} of {format_bytes(total)} free in {path}"
    if total >= SMALL_SHM:
        return Check(name="shared memory", state="ok", found=found)
    return Check(
        name="shared memory",
        state="problem",
        found=found,
        follows="data loaders with workers can die of SIGBUS",
        mend="start the container with `--shm-size=8g` (or `--ipc=host`)",
    )


def open_files() -> Check:
    """Descriptors that a process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["unlimited" if n == resource.RLIM_INFINITY else str(n) for n in (soft, hard)]
    found = f"{shown[0]} of at most {shown[1]}"
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        return Check(name="open files", state="ok", found=found)
    return Check(
        name="open files",
        state="problem",
        found=found,
        follows="a run of many jobs can run out of them",
        mend=f"`ulimit -n {FEW_FILES}`, or more",
    )


def interpreters(jobs: Iterable[JobSpec]) -> list[Check]:
    """The Python of each job that has one: its version, and the torch that it would import."""
    wanted: dict[str, bool] = {}
    for job in jobs:
        ours = job.kind == "model"
        python = _python_of(job)
        if python is not None:
            wanted[python] = wanted.get(python, False) or ours
    return [_interpreter(python, ours=ours) for python, ours in wanted.items()]


def _python_of(job: JobSpec) -> str | None:
    if job.kind == "model":
        return str(job.payload.get("python") or sys.executable)
    argv = [str(word) for word in job.payload.get("argv") or ()]
    if argv and re.fullmatch(r"python[0-9.]*", Path(argv[0]).name):
        return shutil.which(argv[0]) or argv[0]
    return None


def _interpreter(python: str, *, ours: bool) -> Check:
    name = f"interpreter {python}"
    try:
        done = subprocess.run(
            [python, "-c", _ABOUT], capture_output=True, timeout=LIMIT_SECONDS, check=True
        )
        about = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Check(
            name=name, state="problem", found=f"it does not run: {error}", follows="its jobs fail"
        )
    torch = about["torch"]
    if torch is None:
        return Check(
            name=name,
            state="problem" if ours else "ok",
            found=f"Python {about['python']}, no torch",
            follows="built-in models cannot be trained with it" if ours else "",
            mend="pip install 'rmixer[train]'" if ours else "",
        )
    cuda = f"CUDA {about['cuda']}" if about["cuda"] else "a build for the CPU"
    follows = "" if about["cuda"] else "its jobs cannot use a GPU"
    found = f"Python {about['python']}, torch {torch} ({cuda})"
    return Check(name=name, state="ok", found=found, follows=follows)
