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
import json, logging, sys
from rmixer.monitor import GpuMemoryMeter, discover_gpus
logging.basicConfig(stream=sys.stderr, format="%(message)s")
meter = GpuMemoryMeter()
answers = [meter.by_process(uuid) for uuid in sys.argv[1:]]
meter.close()
print(json.dumps([answers, [[gpu.id, gpu.kind, gpu.memory] for gpu in discover_gpus()]]))
"""


def ask(environment: dict[str, str], *uuids: str) -> tuple[list, list, str]:
    """The answers of a process of its own, since the library is loaded once in a process."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *uuids],
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
    assert found[0] == [fake.uuids[0], "Fake T4", 4 * GIB - 300 * MIB]
    assert found[1] == [fake.uuids[1], "Fake T4", 2 * GIB - 100 * MIB]


def test_without_a_driver_nothing_is_known(tmp_path: Path) -> None:
    """None, not zero; said once."""
    answers, found, said = ask({"LD_LIBRARY_PATH": str(tmp_path)}, "GPU-a", "GPU-b")
    assert answers == [None, None]
    assert found == []
    assert len(said.splitlines()) == 1


def test_a_lost_gpu_is_not_known(tmp_path: Path, gpu_library: Path) -> None:
    """A driver that answers no more is a warning with its words."""
    fake = gpus(tmp_path, gpu_library)
    fake.lose()
    answers, _, said = ask(fake.environment, fake.uuids[0])
    assert answers == [None]
    assert "GPU is lost" in said
