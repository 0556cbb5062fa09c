"""Processes of an attempt by the tag in their environment.

The shim knows what it spawned. Where the shim itself was killed, its processes have gone to init,
and only the tag that each of them was started with tells whose they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from rmixer.execute.environment import TOKEN
from rmixer.monitor import process_table, trees

_TICK_SECONDS = 0.01


def find_tagged(token: str, proc: str = "/proc") -> list[int]:
    """Pids of the living processes that carry the token, and of all below them.

    A process that has overwritten its own environment is found only below another.
    """
    tag = f"{TOKEN}={token}".encode()
    table = process_table(proc)
    marked = {
        pid
        for pid, process in table.items()
        if process.state != "Z" and pid != os.getpid() and _has_tag(proc, pid, tag)
    }
    for below in trees(marked, table).values():
        marked.update(below)
    return sorted(marked)


def kill_tagged(token: str, timeout_seconds: float = 5.0) -> list[int]:
    """SIGKILL to all that carry the token, until none is left.

    Returns:
        The pids that were left after ``timeout_seconds``; empty is what is wanted.
    """
    deadline = time.monotonic() + timeout_seconds
    while (left := find_tagged(token)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_TICK_SECONDS)
    return left


def _has_tag(proc: str, pid: int, tag: bytes) -> bool:
    try:
        return tag in Path(proc, str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return False
