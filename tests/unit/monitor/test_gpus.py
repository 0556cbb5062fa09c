"""What the driver says of the memory of processes, and what is made of its silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from doubles.fake_gpus import FakeGpus, make_gpus
from rmixer.resources import GIB, MIB

ASK = """
import json, os, sys, time
from pathlib import Path
from rmixer.monitor import GpuMeter, discover_gpus
now = [0.0]
meter = GpuMeter(clock=lambda: now[0])
answers = []
for word in sys.argv[1:]:
    name, _, error = word.partition("=")
    if name.startswith("broken") and error:
        Path(os.environ["FAKE_NVML"], name).write_text(error)
    elif name.startswith("broken"):
        Path(os.environ["FAKE_NVML"], name).unlink()
        now[0] += 10.0
    else:
        said = meter.read(word)
        answers.append(said.problem or said.processes)
meter.close()
print(json.dumps([answers, [[gpu.id, gpu.kind, gpu.memory, gpu.foreign] for gpu in discover_gpus()]]))
"""


def ask(environment: dict[str, str], *words: str) -> tuple[list, list, str]:
    """The answers of a process of its own, since the library is loaded once in a process.

    Words are GPUs to read; ``broken=15`` and ``broken`` break the library and mend it again.
    """
    done = subprocess.run(
        [sys.executable, "-c", ASK, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    answers, gpus = json.loads(done.stdout)
    return answers, gpus, done.stderr


def gpus(tmp_path: Path, library: Path) -> FakeGpus:
    return make_gpus(tmp_path / "gpus", library, 4 * GIB, 2 * GIB)


def test_memory_by_process_and_gpu(tmp_path: Path, gpu_library: Path) -> None:
    """Each process on its GPU; one that is gone holds nothing; what is held is not free."""
    fake = gpus(tmp_path, gpu_library)
    fake.hold(os.getpid(), 300 * MIB)
    fake.hold(os.getppid(), 100 * MIB, index=1)
    ended = subprocess.Popen(["true"])
    ended.wait()
    fake.hold(ended.pid, 100 * MIB)
    answers, found, _ = ask(fake.environment, *fake.uuids)
    assert answers == [{str(os.getpid()): 300 * MIB}, {str(os.getppid()): 100 * MIB}]
    assert found[0] == [fake.uuids[0], "Fake T4", 4 * GIB - 300 * MIB, 300 * MIB]
    assert found[1] == [fake.uuids[1], "Fake T4", 2 * GIB - 100 * MIB, 100 * MIB]


def test_without_a_driver_nothing_is_known(tmp_path: Path) -> None:
    """A reason, not zero; and no GPU."""
    answers, found, _ = ask({"LD_LIBRARY_PATH": str(tmp_path)}, "GPU-a", "GPU-b")
    assert answers == ["NVML Shared Library Not Found"] * 2
    assert found == []


def test_a_lost_gpu_does_not_blind_the_others(tmp_path: Path, gpu_library: Path) -> None:
    """It says why, the other is read; and it is read again once it answers."""
    fake = gpus(tmp_path, gpu_library)
    fake.hold(os.getpid(), 300 * MIB)
    first, second = fake.uuids
    answers, found, said = ask(
        fake.environment, first, "broken.0=15", first, second, "broken.0", first, "broken.1=15"
    )
    mine = {str(os.getpid()): 300 * MIB}
    assert answers == [mine, "GPU is lost", {}, mine]
    assert [gpu[0] for gpu in found] == [first, second], "known, though its memory is not"
    assert found[1][2:] == [0, 0]
    assert not said


def test_a_library_that_lost_the_driver_is_loaded_anew(tmp_path: Path, gpu_library: Path) -> None:
    """As in a container whose devices are taken away for a moment: unknown error, for all GPUs."""
    fake = gpus(tmp_path, gpu_library)
    answers, _, _ = ask(
        fake.environment, *fake.uuids, "broken=999", *fake.uuids, "broken", *fake.uuids
    )
    assert answers == [{}, {}, "Unknown Error", "Unknown Error", {}, {}]


def test_an_unknown_error_of_one_gpu_is_its_own(tmp_path: Path, gpu_library: Path) -> None:
    """The same error does not make the library of the others be loaded anew."""
    fake = gpus(tmp_path, gpu_library)
    answers, _, _ = ask(fake.environment, "broken.0=999", *fake.uuids, *fake.uuids)
    assert answers == ["Unknown Error", {}] * 2
