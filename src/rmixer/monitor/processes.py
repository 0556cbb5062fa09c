"""Which processes there are, and which are below which, read from ``/proc`` directly.

A process may vanish between being listed and being read; it is then left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = "/proc"
READ_BYTES = 8192  # longer than any file that is read here
#: Of a process's name that is shown.
_NAME_WORDS, _NAME_CHARACTERS = 4, 60


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Who a process is.

    Attributes:
        pid: its id, which another process may have once it is gone.
        parent: the parent's pid.
        state: the letter of proc(5), ``Z`` for a zombie.
        start_time: clock ticks since boot; with the pid it names one process for good.
    """

    pid: int
    parent: int
    state: str
    start_time: int


def read_process(pid: int, proc: str = PROC) -> ProcessInfo | None:
    """Who the process of that pid is, or None if there is none."""
    stat = stat_fields(pid, proc)
    if stat is None:
        return None
    return ProcessInfo(pid, int(stat[1]), stat[0].decode(), int(stat[19]))


def process_name(pid: int, proc: str = "/proc") -> str:
    """The first words of a process's command line; empty where there is no such process here."""
    folder = Path(proc, str(pid))
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        name = " ".join([Path(words[0]).name, *words[1:_NAME_WORDS]]).strip()
        return (name or (folder / "comm").read_text().strip())[:_NAME_CHARACTERS]
    except OSError:
        return ""


def process_table(proc: str = PROC) -> dict[int, ProcessInfo]:
    """All processes that there are now."""
    found = (read_process(pid, proc) for pid in numbers_in(proc))
    return {process.pid: process for process in found if process is not None}


def descendants(
    root: int, table: Mapping[int, ProcessInfo] | None = None, proc: str = PROC
) -> list[int]:
    """Pids of the living processes below ``root``, zombies and ``root`` itself left out.

    Args:
        root: the pid of the top.
        table: a table that was read before, to look up many roots in one.
        proc: where ``/proc`` is.
    """
    table = process_table(proc) if table is None else table
    return trees((root,), table)[root]


def trees(roots: Iterable[int], table: Mapping[int, ProcessInfo]) -> dict[int, list[int]]:
    """For each root the pids of the living processes below it."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = {}
    for root in roots:
        below, queue = [], [root]
        while queue:
            for pid in children.get(queue.pop(), ()):
                queue.append(pid)
                if table[pid].state != "Z":
                    below.append(pid)
        found[root] = sorted(below)
    return found


class ProcessFinder:
    """Finds trees again and again, and reads only processes that it has not seen before.

    A process that goes to another parent stays below the same root, because that root takes orphans
    in. A pid that was given to another process unnoticed is put right by the next full look, and so
    is a process that has become a zombie; samples leave zombies out.

    Args:
        full_every: a full look at all processes every so many calls.
        proc: where ``/proc`` is.
    """

    def __init__(self, full_every: int = 20, proc: str = PROC) -> None:
        self._full_every, self._proc = full_every, proc
        self._table: dict[int, ProcessInfo] = {}
        self._calls = 0
        self._found: tuple[list[int], dict[int, list[int]]] | None = None

    def trees(self, roots: Iterable[int]) -> dict[int, list[int]]:
        """For each root the pids of the living processes below it, now."""
        wanted = list(roots)
        if self._calls % self._full_every == 0:
            self._table, self._found = process_table(self._proc), None
        elif self._refresh():
            self._found = None
        self._calls += 1
        if self._found is None or self._found[0] != wanted:
            self._found = wanted, trees(wanted, self._table)
        return self._found[1]

    def _refresh(self) -> bool:
        """Take in who came and who went; whether anybody did."""
        listed = set(numbers_in(self._proc))
        changed = listed != self._table.keys()
        for pid in self._table.keys() - listed:
            del self._table[pid]
        for pid in listed - self._table.keys():
            process = read_process(pid, self._proc)
            if process is not None:
                self._table[pid] = process
        return changed


def stat_fields(pid: int, proc: str) -> list[bytes] | None:
    """The fields of ``stat`` from the third on: the name before them may contain anything."""
    return fields_of(read_file(f"{proc}/{pid}/stat"))


def fields_of(stat: bytes | None) -> list[bytes] | None:
    """The same of what was read."""
    return stat.rpartition(b")")[2].split() if stat else None


def numbers_in(directory: str) -> list[int]:
    """The numbers among the names of a directory; empty if it is gone."""
    try:
        return [int(name) for name in os.listdir(directory) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def read_file(path: str) -> bytes | None:
    """The beginning of a file of ``/proc``, or None if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def boot_id(proc: str = PROC) -> str:
    """Changes with every start of the machine."""
    return (Path(proc) / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
