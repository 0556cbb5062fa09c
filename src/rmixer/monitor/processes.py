"""Process trees and what they use, read from ``/proc`` directly.

A process may vanish between being listed and being read; it is then left out. `TreeMeter` keeps
what ended processes have used, so that its sums never go back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")
_NANOSECOND = 1e-9
_READ_BYTES = 8192  # longer than any of the files below


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
    stat = _stat(pid, proc)
    if stat is None:
        return None
    return ProcessInfo(pid, int(stat[1]), stat[0].decode(), int(stat[19]))


def process_table(proc: str = PROC) -> dict[int, ProcessInfo]:
    """All processes that there are now."""
    found = (read_process(pid, proc) for pid in _pids(proc))
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

    def trees(self, roots: Iterable[int]) -> dict[int, list[int]]:
        """For each root the pids of the living processes below it, now."""
        if self._calls % self._full_every == 0:
            self._table = process_table(self._proc)
        else:
            self._refresh()
        self._calls += 1
        return trees(roots, self._table)

    def _refresh(self) -> None:
        listed = set(_pids(self._proc))
        for pid in self._table.keys() - listed:
            del self._table[pid]
        for pid in listed - self._table.keys():
            process = read_process(pid, self._proc)
            if process is not None:
                self._table[pid] = process


@dataclass(frozen=True, slots=True)
class Counters:
    """What only grows while a process runs.

    Attributes:
        cpu_seconds: user and system time.
        run_delay_seconds: time that threads were ready to run but had no core.
        minor_faults: pages made present without reading storage.
        voluntary_switches: times a main thread went to wait for something.
        read_bytes: bytes fetched from storage; what the page cache answered is not in it.
    """

    cpu_seconds: float = 0.0
    run_delay_seconds: float = 0.0
    minor_faults: int = 0
    voluntary_switches: int = 0
    read_bytes: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            *(getattr(self, item.name) + getattr(other, item.name) for item in fields(Counters))
        )


@dataclass(frozen=True, slots=True)
class TreeSample:
    """What the processes of a job use, at one moment.

    Attributes:
        counters: sums over the processes.
        rss_bytes: anonymous and shared memory, summed. Mapped files are left out: jobs share them.
            Shared memory counts once per process that has it.
        process_peak_bytes: the largest high-water mark of a single process, mapped files included.
        processes: how many there are.
        threads: how many threads they have.
    """

    counters: Counters = field(default_factory=Counters)
    rss_bytes: int = 0
    process_peak_bytes: int = 0
    processes: int = 0
    threads: int = 0


def sample_tree(pids: Iterable[int], proc: str = PROC) -> TreeSample:
    """What these processes use now; those that are gone are left out."""
    return _sum([sample for pid in pids if (sample := _sample(pid, proc)) is not None])


class TreeMeter:
    """Measures one job's processes over time; counters of ended processes are kept.

    Attributes:
        rss_peak_bytes: the highest sum of memory seen in a sample.
    """

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._seen: dict[tuple[int, int], Counters] = {}
        self._gone = Counters()
        self.rss_peak_bytes = 0

    def sample(self, pids: Iterable[int]) -> TreeSample:
        """Look at the processes that the job has now; ``counters`` are since it began."""
        found = [sample for pid in pids if (sample := _sample(pid, self._proc)) is not None]
        now = {sample.identity: sample.counters for sample in found}
        for identity in self._seen.keys() - now.keys():
            self._gone += self._seen[identity]
        self._seen = now
        total = _sum(found)
        self.rss_peak_bytes = max(self.rss_peak_bytes, total.rss_bytes)
        return TreeSample(
            total.counters + self._gone,
            total.rss_bytes,
            total.process_peak_bytes,
            total.processes,
            total.threads,
        )


@dataclass(frozen=True, slots=True)
class _ProcessSample:
    identity: tuple[int, int]
    counters: Counters
    rss_bytes: int
    peak_bytes: int
    threads: int


def _sum(samples: list[_ProcessSample]) -> TreeSample:
    counters = Counters()
    for sample in samples:
        counters += sample.counters
    return TreeSample(
        counters,
        sum(sample.rss_bytes for sample in samples),
        max((sample.peak_bytes for sample in samples), default=0),
        len(samples),
        sum(sample.threads for sample in samples),
    )


def _sample(pid: int, proc: str) -> _ProcessSample | None:
    stat = _stat(pid, proc)
    status = _read(f"{proc}/{pid}/status")
    if stat is None or status is None or stat[0] == b"Z":
        return None
    counters = Counters(
        cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
        run_delay_seconds=_run_delay(pid, proc),
        minor_faults=int(stat[7]),
        voluntary_switches=_number(status, b"voluntary_ctxt_switches:"),
        read_bytes=_number(_read(f"{proc}/{pid}/io") or b"", b"\nread_bytes:"),
    )
    anonymous = _number(status, b"RssAnon:") + _number(status, b"RssShmem:")
    peak = _number(status, b"VmHWM:")
    identity = (pid, int(stat[19]))
    return _ProcessSample(identity, counters, anonymous * 1024, peak * 1024, int(stat[17]))


def _run_delay(pid: int, proc: str) -> float:
    """Run delay of all threads in seconds; the process's own file has the main thread's only."""
    nanoseconds = 0
    for thread in _pids(f"{proc}/{pid}/task"):
        values = (_read(f"{proc}/{pid}/task/{thread}/schedstat") or b"").split()
        nanoseconds += int(values[1]) if len(values) > 1 else 0
    return nanoseconds * _NANOSECOND


def _stat(pid: int, proc: str) -> list[bytes] | None:
    """The fields of ``stat`` from the third on: the name before them may contain anything."""
    raw = _read(f"{proc}/{pid}/stat")
    return raw.rpartition(b")")[2].split() if raw else None


def _pids(directory: str) -> list[int]:
    """The numbers among the names of a directory; empty if it is gone."""
    try:
        return [int(name) for name in os.listdir(directory) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _number(text: bytes, name: bytes) -> int:
    at = text.find(name)
    if at < 0:
        return 0
    return int(text[at + len(name) : at + len(name) + 32].split(None, 1)[0])


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def boot_id(proc: str = PROC) -> str:
    """Changes with every start of the machine."""
    return (Path(proc) / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
