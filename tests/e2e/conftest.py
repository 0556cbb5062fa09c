"""What tests of real runs share: a workplace, a small disk, and life without root's privileges."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support import Workplace, workplace

from disks import small_disk_at


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """A workplace in which nothing may be left running at the end."""
    with workplace(tmp_path) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with small_disk_at(tmp_path, "1m") as mount:
        yield mount


@pytest.fixture
def as_anybody() -> Sequence[str]:
    """What to put before a command so that file permissions hold for it, also for root."""
    if os.geteuid() != 0:
        return ()
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None:
        pytest.skip("root without setpriv is not bound by permissions")
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("root may not give up privileges here")
    return words
