"""What all tests share."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
from pathlib import Path

import pytest

from doubles.fake_gpus import build_library


def pytest_configure() -> None:
    """Signals as a terminal has them, also under nohup; and one torch thread per test process.

    Tiny steps with two threads run many times slower side by side.
    """
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gpu_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver library whose GPUs are fake; see ``doubles/nvml.c``."""
    return build_library(tmp_path_factory.mktemp("nvml"))
