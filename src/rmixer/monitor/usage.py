"""What the processes of a job use, read from ``/proc`` directly.

A process may vanish between being listed and being read; it is then left out. `TreeMeter` keeps
what ended processes have used, so that its sums never go back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from rmixer.monitor.processes import PROC, numbers_in, read_file, stat_fields

_TICKS = os.sysconf("SC_CLK_TCK")
_NANOSECOND = 1e-9


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


def own_memory(proc: str = PROC) -> dict[str, int]:
    """Memory of this process, bytes: ``peak_bytes``, and now ``anonymous_bytes``, ``file_bytes``.

    ``peak_bytes`` is the kernel's high-water mark, ``file_bytes`` are the pages of mapped files,
    libraries and data, that other processes may share.
    """
    status = read_file(f"{proc}/self/status") or b""
    names = {"peak_bytes": b"VmHWM:", "anonymous_bytes": b"RssAnon:", "file_bytes": b"RssFile:"}
    return {key: _number(status, name) * 1024 for key, name in names.items()}


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
    stat = stat_fields(pid, proc)
    status = read_file(f"{proc}/{pid}/status")
    if stat is None or status is None or stat[0] == b"Z":
        return None
    counters = Counters(
        cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
        run_delay_seconds=_run_delay(pid, proc),
        minor_faults=int(stat[7]),
        voluntary_switches=_number(status, b"voluntary_ctxt_switches:"),
        read_bytes=_number(read_file(f"{proc}/{pid}/io") or b"", b"\nread_bytes:"),
    )
    anonymous = _number(status, b"RssAnon:") + _number(status, b"RssShmem:")
    peak = _number(status, b"VmHWM:")
    identity = (pid, int(stat[19]))
    return _ProcessSample(identity, counters, anonymous * 1024, peak * 1024, int(stat[17]))


def _run_delay(pid: int, proc: str) -> float:
    """Run delay of all threads in seconds; the process's own file has the main thread's only."""
    nanoseconds = 0
    for thread in numbers_in(f"{proc}/{pid}/task"):
        values = (read_file(f"{proc}/{pid}/task/{thread}/schedstat") or b"").split()
        nanoseconds += int(values[1]) if len(values) > 1 else 0
    return nanoseconds * _NANOSECOND


def _number(text: bytes, name: bytes) -> int:
    at = text.find(name)
    if at < 0:
        return 0
    return int(text[at + len(name) : at + len(name) + 32].split(None, 1)[0])
