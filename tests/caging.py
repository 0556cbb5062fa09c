"""Whether control groups with a memory limit can be made here, and what is left of them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from rmixer.launch import cage
from rmixer.resources import MIB


@cache
def parent_of_groups() -> Path | None:
    """The directory in which groups of jobs are made here; None where none can be."""
    probe = cage.make(64 * MIB, f"probe-{os.getpid()}")
    path = probe.document()["path"]
    probe.clear()
    return Path(path).parent if path else None


needs_groups = pytest.mark.skipif(
    parent_of_groups() is None, reason="no control group with a memory limit can be made here"
)


def groups_of(name: str) -> list[Path]:
    """The groups of attempts whose name has this in it."""
    parent = parent_of_groups()
    return sorted(parent.glob(f"{cage.PREFIX}*{name}*")) if parent else []
