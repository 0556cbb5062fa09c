"""What all tests share."""

from __future__ import annotations

import contextlib
import importlib.util
import signal


def pytest_configure() -> None:
    """Signals as a terminal has them, also under nohup; and one torch thread per test process.

    Tiny steps with two threads run many times slower side by side.
    """
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
