"""A disk that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(folder: Path, size: str) -> Iterator[Path]:
    """A disk of a size as mount(8) has it, ``64k`` or ``1m``; skips the test without root."""
    mount = folder / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)
