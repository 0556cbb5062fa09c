"""Who holds a file, and what a folder takes of the disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock (``flock``) on a file, shared or not; no file, no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def disk_bytes(folder: Path) -> int:
    """The sizes of all files below a folder; 0 where there is none. Links count as themselves."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except FileNotFoundError:  # somebody has just removed or moved it
            continue
    return total
