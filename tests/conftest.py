"""What all tests share."""

from __future__ import annotations

import importlib.util


def pytest_configure() -> None:
    """One torch thread per test process: tiny steps with two run many times slower side by side."""
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
