"""GPUs that are not there: a fake driver library, and jobs that hold memory of its GPUs."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "nvml.c"
HEADER = "nvidia-nvml-dev-cu12"

#: Errors of ``nvml.h``: of one GPU, and of the library, which has lost the driver.
GPU_IS_LOST, UNKNOWN = 15, 999

#: A job: holds so many MiB of its GPU for so many seconds each, or until there is a file of that
#: name, then lets go: ``SECONDS:MIB FILE:MIB ...``. The GPU is the one that ``CUDA_VISIBLE_DEVICES``
#: names; with ``gpu=INDEX`` it picks another itself. On a GPU that is sick it ends with that error,
#: and with one of MPS once its daemon is gone.
JOB = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["FAKE_NVML"])
uuids = [line.split()[0] for line in (folder / "gpus").read_text().splitlines()]
picks = [int(word[4:]) for word in sys.argv[1:] if word.startswith("gpu=")]
index = picks[0] if picks else uuids.index(os.environ["CUDA_VISIBLE_DEVICES"])
sick = folder / f"sick.{index}"
if sick.exists():
    sys.exit(sick.read_text())
pipe = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent"))
if pipe.is_dir():
    (pipe / "clients" / str(os.getpid())).touch()
    daemon = (pipe / "nvidia-cuda-mps-control.pid").read_text()
mine = folder / "held" / str(os.getpid())
for word in sys.argv[1:]:
    if ":" not in word:
        continue
    until, mib = word.split(":")
    part = mine.with_name("." + mine.name)
    part.write_text(f"{index} {int(mib) << 20}\\n")
    part.replace(mine)
    if until[0].isdigit():
        time.sleep(float(until))
    while not until[0].isdigit() and not os.path.exists(until):
        if pipe.is_dir() and not os.path.exists("/proc/" + daemon + "/cmdline"):
            sys.exit("cudaErrorMpsRpcFailure: the MPS client failed")
        time.sleep(0.02)
mine.unlink()
"""


@dataclass(frozen=True)
class FakeGpus:
    """A fake driver with its GPUs.

    Attributes:
        folder: what the library answers, see ``nvml.c``.
        environment: what a process needs to load the library instead of the driver's.
        job: the path of `JOB`.
    """

    folder: Path
    environment: dict[str, str]
    job: Path

    @property
    def uuids(self) -> list[str]:
        return [line.split()[0] for line in (self.folder / "gpus").read_text().splitlines()]

    def hold(self, pid: int, size: int, index: int = 0) -> None:
        """Let a process hold memory of a GPU, bytes."""
        (self.folder / "held" / str(pid)).write_text(f"{index} {size}\n")

    def tell(self, *lines: str, index: int = 0) -> None:
        """What a GPU tells of its work, see ``nvml.c``; the rest it does not support."""
        folder = self.folder / "metrics"
        folder.mkdir(exist_ok=True)
        (folder / str(index)).write_text("".join(f"{line}\n" for line in lines))

    def lose(self, index: int | None = None, error: int = GPU_IS_LOST) -> None:
        """The GPU, or all of them, answer no more."""
        self._broken(index).write_text(f"{error}\n")

    def find(self, index: int | None = None) -> None:
        """They answer again."""
        self._broken(index).unlink()

    def sicken(self, index: int, error: str) -> None:
        """Every job that comes to the GPU ends with that error."""
        (self.folder / f"sick.{index}").write_text(error)

    def _broken(self, index: int | None) -> Path:
        return self.folder / ("broken" if index is None else f"broken.{index}")


def build_library(folder: Path) -> Path:
    """Compile the library; the folder that it is in. Skips where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to build the fake driver library")
    try:
        files = importlib.metadata.files(HEADER) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{HEADER} is needed to build the fake driver library")
    header = next(Path(str(file.locate())) for file in files if file.name == "nvml.h")
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-I{header.parent}",
         "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)],
        check=True,
    )  # fmt: skip
    return folder


def make_gpus(folder: Path, library: Path, *sizes: int, kind: str = "Fake T4") -> FakeGpus:
    """GPUs of so many bytes each."""
    (folder / "held").mkdir(parents=True)
    lines = [
        f"GPU-{i:08d}-0000-0000-0000-000000000000 {size} {kind}" for i, size in enumerate(sizes)
    ]
    (folder / "gpus").write_text("".join(f"{line}\n" for line in lines))
    job = folder / "gpu_job.py"
    job.write_text(JOB)
    environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(folder)}
    return FakeGpus(folder, environment, job)
