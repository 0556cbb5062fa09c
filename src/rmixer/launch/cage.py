"""The memory cage of an attempt: a limit that the process tree of a job cannot grow beyond.

Standard library only, Python 3.8 or newer, nothing of rmixer. The shim makes the cage and the job
enters it; the runner widens it, or clears it away where the shim is gone.

Its kind is the first that the machine allows:

* a control group of version 2, where one with the memory controller may be made: below our own
  group, or, since a group that has processes can mostly not have such children, beside it. A group
  that is limited itself is never left: its limits are for our jobs too;
* a control group of version 1, below our own;
* a limit on the data of each process (``RLIMIT_DATA``): the heap and private writable mappings,
  which is what a program allocates. Linux counts the mappings from 4.7 on. ``RLIMIT_AS`` would not
  do: it counts all address space, and torch and CUDA map many times more than they use. This limit
  is for each process alone, and nobody counts who meets it: the program is refused the memory, and
  says so in its own words.

Sources: cgroups(7), setrlimit(2), ``cgroup-v1/memory.rst`` and ``cgroup-v2.rst`` of the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

Document = Dict[str, Any]
Announce = Callable[[Document], None]

PREFIX = "rmixer-"
LONGEST_NAME = 200  # of 255 bytes
#: Names that are tried where groups of that name are there already, and in use.
NAMES = 10
CLEAR_SECONDS = 5.0
_TICK_SECONDS = 0.01

MIB = 2**20
#: Data that a process has and does not touch, which a limit on data counts all the same: 107 MiB in
#: torch with two threads (2-core x86 VM); per thread a stack of 8 MiB and a BLAS buffer of 32 MiB.
UNTOUCHED_BYTES = 256 * MIB
UNTOUCHED_BYTES_PER_CORE = 40 * MIB
#: The first Linux that counts private mappings as data.
DATA_LIMIT_SINCE = (4, 7)


class Version(NamedTuple):
    """The names of a version's files."""

    kind: str
    limit: str
    swap: str  # version 1: memory and swap together; version 2: swap alone
    peak: str
    events: str


V2 = Version("cgroup2", "memory.max", "memory.swap.max", "memory.peak", "memory.events")
V1 = Version(
    "cgroup1",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
)


class Group:
    """A control group for one attempt. What the kernel refuses is an OSError."""

    def __init__(self, version: Version, path: str) -> None:
        self.version, self.path = version, path

    def document(self) -> Document:
        """What `find` finds it by."""
        return {"kind": self.version.kind, "path": self.path}

    def make(self, limit: int) -> None:
        """Make the group, with its limit in bytes, or leave nothing."""
        os.mkdir(self.path)
        try:
            if self.version is V1:  # without the killer, as inherited, a job would stand still
                with contextlib.suppress(OSError):
                    self._write(self.version.events, 0)
            self.resize(limit)
        except OSError:
            os.rmdir(self.path)
            raise

    def resize(self, limit: int, pids: Iterable[int] = ()) -> None:  # noqa: ARG002
        """Set the limit, bytes, swap included: what is swapped out is not within it for free."""
        swap = limit if self.version is V1 else 0
        try:
            self._write(self.version.limit, limit)
        except OSError:  # version 1: it may not be above that of memory and swap
            self._write(self.version.swap, swap)
            self._write(self.version.limit, limit)
        else:
            if os.path.exists(os.path.join(self.path, self.version.swap)):
                self._write(self.version.swap, swap)

    def enter(self) -> None:
        """Move this process in. A group that cannot be entered is removed, so that this shows."""
        try:
            self._write("cgroup.procs", os.getpid())
        except OSError:
            os.rmdir(self.path)
            raise

    def is_there(self) -> bool:
        """Whether it still is."""
        return os.path.isdir(self.path)

    def oom_kills(self) -> Optional[int]:
        """How many processes the kernel has killed at this limit; None where it does not say."""
        for line in read(os.path.join(self.path, self.version.events)).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return None

    def peak_bytes(self) -> Optional[int]:
        """The most memory that was charged, page cache included; None where it is not kept."""
        text = read(os.path.join(self.path, self.version.peak)).strip()
        return int(text) if text.isdigit() else None

    def clear(self) -> None:
        """Kill what is left inside and remove the group, with those that the job made below it."""
        deadline = time.monotonic() + CLEAR_SECONDS
        while not self._remove():
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self.path)
            time.sleep(_TICK_SECONDS)

    def _remove(self) -> bool:
        for directory, _, _ in os.walk(self.path, topdown=False):
            for pid in map(int, read(os.path.join(directory, "cgroup.procs")).split()):
                with contextlib.suppress(OSError):  # gone meanwhile
                    if pid > 0:  # 0: one that this process cannot see
                        os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # not yet empty
                os.rmdir(directory)
        return not self.is_there()

    def _write(self, name: str, value: int) -> None:
        write(os.path.join(self.path, name), str(value))


class DataLimit:
    """A limit on the data of each process of an attempt; the fallback."""

    kind = "rlimit"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def document(self) -> Document:
        """What `find` finds it by."""
        return {"kind": self.kind, "path": None}

    def enter(self) -> None:
        """Limit this process and all that it starts. A lower limit that it has is kept."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_lowest(self._bytes(0), soft, hard), hard))

    def resize(self, limit: int, pids: Iterable[int] = ()) -> None:
        """Limit those processes, in bytes each."""
        self.limit = limit
        for pid in pids:
            with contextlib.suppress(OSError):  # gone meanwhile
                _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
                limits = (_lowest(self._bytes(pid), hard), hard)
                resource.prlimit(pid, resource.RLIMIT_DATA, limits)

    def is_there(self) -> bool:
        """Always: it goes with its processes."""
        return True

    def oom_kills(self) -> Optional[int]:
        """Not counted: nothing is killed."""
        return None

    def peak_bytes(self) -> Optional[int]:
        """Not kept."""
        return None

    def clear(self) -> None:
        """Nothing is left to remove."""

    def _bytes(self, pid: int) -> int:
        cores = len(os.sched_getaffinity(pid))
        return self.limit + UNTOUCHED_BYTES + cores * UNTOUCHED_BYTES_PER_CORE


Cage = Union[Group, DataLimit]


def make(
    limit: int,
    name: str,
    announce: Optional[Announce] = None,
    proc: str = "/proc",
    sys: str = "/sys",
) -> Cage:
    """Make the first kind of cage that this machine allows; nobody is inside yet.

    Args:
        limit: bytes.
        name: whose it is; no two attempts have the same.
        announce: is told the cage's document before anything is made that could be left behind.
        proc: where ``/proc`` is.
        sys: where ``/sys`` is.

    Raises:
        OSError: there is no kind that can be made, with the reasons.
    """
    refusals: List[str] = []
    announce = announce or _tell_nobody
    for version, parent in _parents(proc, sys):
        try:
            return _make_group(version, parent, limit, name, announce)
        except OSError as problem:
            refusals.append(str(problem))
    if _release() < DATA_LIMIT_SINCE:
        raise OSError("; ".join([*refusals, "Linux %s does not limit data" % os.uname().release]))
    cage = DataLimit(limit)
    announce(cage.document())
    return cage


def find(document: Document) -> Optional[Cage]:
    """The cage of that document, as `make` has announced it; None if it is none of ours."""
    kind, path = document.get("kind"), document.get("path")
    if kind == DataLimit.kind:
        return DataLimit(0)
    for version in (V2, V1):
        if kind == version.kind and os.path.basename(str(path)).startswith(PREFIX):
            return Group(version, str(path))
    return None


def _make_group(version: Version, parent: str, limit: int, name: str, announce: Announce) -> Group:
    name = PREFIX + re.sub(r"[^\w.=+-]", "_", name, flags=re.ASCII)[-LONGEST_NAME:]
    for suffix in ("", *("-%d" % number for number in range(2, NAMES + 1))):
        group = Group(version, os.path.join(parent, name + suffix))
        with contextlib.suppress(OSError):  # there mostly is none; one in use stays
            os.rmdir(group.path)
        announce(group.document())
        try:
            group.make(limit)
        except FileExistsError:
            continue
        return group
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.path.join(parent, name))


# --- where a group may be made --------------------------------------------------------------------


def _parents(proc: str, sys: str) -> Iterator[Tuple[Version, str]]:
    """The groups in which to try, best first."""
    own = _own_groups(proc)
    there = list(mounts(proc, sys))
    for mount, root, options in there:
        if options is None and "" in own:
            group = _directory(mount, root, own[""])
            for parent in _with_memory_below(group, mount):
                yield V2, parent
    for mount, root, options in there:
        if options is not None and "memory" in options and "memory" in own:
            yield V1, _directory(mount, root, own["memory"])


def _with_memory_below(group: str, mount: str) -> Iterator[str]:
    """Our group and those above it whose children have the memory controller."""
    if "memory" in read(os.path.join(group, "cgroup.controllers")).split():
        with contextlib.suppress(OSError):  # refused while it has processes, unless it is the root
            write(os.path.join(group, "cgroup.subtree_control"), "+memory")
    while True:
        if "memory" in read(os.path.join(group, "cgroup.subtree_control")).split():
            yield group
        if group == mount or _is_limited(group):
            return
        group = os.path.dirname(group)


def _is_limited(group: str) -> bool:
    texts = [read(os.path.join(group, name)) for name in ("memory.max", "memory.high", "cpu.max")]
    return any(text and not text.startswith("max") for text in texts)


def _own_groups(proc: str) -> Dict[str, str]:
    """Our group by controller; that of version 2 is under the empty name."""
    groups: Dict[str, str] = {}
    for line in read(os.path.join(proc, "self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def mounts(proc: str, sys: str) -> Iterator[Tuple[str, str, Optional[List[str]]]]:
    """Of control groups: mount point, root within the hierarchy, for version 1 the controllers."""
    for line in read(os.path.join(proc, "self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = before.split()[3:5]
        place = sys + mount[len("/sys") :] if mount.startswith("/sys/") else mount
        yield place, root, options.split(",") if kind == "cgroup" else None


def _directory(mount: str, root: str, path: str) -> str:
    """Where a group's files are; the nearest that is to be seen, inside a namespace."""
    inside = path[len(root) :] if root != "/" and path.startswith(root) else path
    group = os.path.join(mount, inside.strip("/")).rstrip("/")
    while group != mount and not os.path.isdir(group):
        group = os.path.dirname(group)
    return group


# --- small things ---------------------------------------------------------------------------------


def read(path: str) -> str:
    """The text of a file, empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write to a file of the kernel's; one that is not there is an error."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, path) from problem
    finally:
        os.close(descriptor)


def _tell_nobody(document: Document) -> None:
    """For cages that leave nothing behind for others to find."""


def _lowest(*limits: int) -> int:
    return min((one for one in limits if one != resource.RLIM_INFINITY), default=limits[0])


def _release() -> Tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return tuple(int(part) for part in match.groups()) if match else ()
