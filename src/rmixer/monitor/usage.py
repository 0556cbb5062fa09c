"""What the processes of a job use, read from ``/proc`` directly.

A process may vanish between being listed and being read; it is then left out. `TreeMeter` keeps
what ended processes have used, so that its sums never go back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

from rmixer.monitor.kept import KeptFiles
from rmixer.monitor.processes import PROC, fields_of, read_file

_TICKS = os.sysconf("SC_CLK_TCK")
_NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class Counters:
    """What only grows while a process runs.

    Attributes:
        cpu_seconds: user and system time.
        run_delay_seconds: time that threads were ready to run but had no core.
        minor_faults: pages made present without reading storage.
        major_faults: pages that had to be read from storage.
        voluntary_switches: times a main thread went to wait for something.
        read_bytes: bytes fetched from storage; what the page cache answered is not in it.
    """

    cpu_seconds: float = 0.0
    run_delay_seconds: float = 0.0
    minor_faults: int = 0
    major_faults: int = 0
    voluntary_switches: int = 0
    read_bytes: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(  # written out: it is done for every process of every look
            self.cpu_seconds + other.cpu_seconds,
            self.run_delay_seconds + other.run_delay_seconds,
            self.minor_faults + other.minor_faults,
            self.major_faults + other.major_faults,
            self.voluntary_switches + other.voluntary_switches,
            self.read_bytes + other.read_bytes,
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.cpu_seconds - other.cpu_seconds,
            self.run_delay_seconds - other.run_delay_seconds,
            self.minor_faults - other.minor_faults,
            self.major_faults - other.major_faults,
            self.voluntary_switches - other.voluntary_switches,
            self.read_bytes - other.read_bytes,
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
    found = []
    for pid in pids:
        with closing(KeptFiles(pid, proc)) as files:
            found.append(_sample(files, pid))
    return _sum([sample for sample in found if sample is not None])


class TreeMeter:
    """Measures one job's processes over time; counters of ended processes are kept.

    Attributes:
        rss_peak_bytes: the highest sum of memory seen in a sample.
    """

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._seen: dict[tuple[int, int], Counters] = {}
        self._gone = Counters()
        self._files: dict[int, KeptFiles] = {}
        self.rss_peak_bytes = 0

    def sample(self, pids: Iterable[int]) -> TreeSample:
        """Look at the processes that the job has now; ``counters`` are since it began."""
        found = [sample for pid in pids if (sample := self._look(pid)) is not None]
        here = {sample.identity[0] for sample in found}
        for pid in self._files.keys() - here:
            self._files.pop(pid).close()
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

    def close(self) -> None:
        """Let go of the processes' files."""
        for files in self._files.values():
            files.close()
        self._files.clear()

    def _look(self, pid: int) -> _ProcessSample | None:
        if pid not in self._files:
            self._files[pid] = KeptFiles(pid, self._proc)
        sample = _sample(self._files[pid], pid)
        if sample is None:  # gone; another may have its pid
            self._files[pid].close()
            sample = _sample(self._files[pid], pid)
        return sample


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


def proportional_bytes(pids: Iterable[int], proc: str = PROC) -> int | None:
    """Resident memory, of pages that several processes have each its part (PSS), bytes.

    The kernel walks all pages for it: 5 ms for a process of 740 MiB, so it is for now and then.
    None where no process told.
    """
    rollups = [read_file(f"{proc}/{pid}/smaps_rollup") for pid in pids]
    told = [rollup for rollup in rollups if rollup and b"\nPss:" in rollup]
    return sum(_number(rollup, b"\nPss:") for rollup in told) * 1024 if told else None


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


def _sample(files: KeptFiles, pid: int) -> _ProcessSample | None:
    stat = fields_of(files.read("stat"))
    status = files.read("status")
    if stat is None or status is None or stat[0] == b"Z":
        return None
    counters = Counters(
        cpu_seconds=(int(stat[11]) + int(stat[12])) / _TICKS,
        run_delay_seconds=_run_delay(files, int(stat[17])),
        minor_faults=int(stat[7]),
        major_faults=int(stat[9]),
        voluntary_switches=_number(status, b"voluntary_ctxt_switches:"),
        read_bytes=_number(files.read("io") or b"", b"\nread_bytes:"),
    )
    anonymous = _number(status, b"RssAnon:") + _number(status, b"RssShmem:")
    peak = _number(status, b"VmHWM:")
    identity = (pid, int(stat[19]))
    return _ProcessSample(identity, counters, anonymous * 1024, peak * 1024, int(stat[17]))


def _run_delay(files: KeptFiles, threads: int) -> float:
    """Run delay of all threads in seconds; the process's own file has the main thread's only."""
    nanoseconds = 0
    for told in files.read_each("task", "schedstat", threads):
        values = told.split()
        nanoseconds += int(values[1]) if len(values) > 1 else 0
    return nanoseconds * _NANOSECOND


def _number(text: bytes, name: bytes) -> int:
    at = text.find(name)
    if at < 0:
        return 0
    return int(text[at + len(name) : at + len(name) + 32].split(None, 1)[0])
