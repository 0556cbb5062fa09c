"""The words of the core: jobs and their states, devices, placements, profiles. Plain frozen values.

Nothing here does anything: no clock, no process, no file. Bytes are ints, times are seconds; ``at``
is seconds since the run began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from rmixer.resources import Resources, format_bytes

CPU = "cpu"

SharingMode = Literal["time-slicing", "mps", "exclusive"]


class StateName(StrEnum):
    """The states of a job, by the words that people and reports use."""

    PENDING = "PENDING"
    HELD = "HELD"
    PROFILING = "PROFILING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"


FINAL_STATES = frozenset(
    {
        StateName.SUCCEEDED,
        StateName.FAILED,
        StateName.OUT_OF_MEMORY,
        StateName.CANCELLED,
        StateName.TIMEOUT,
        StateName.PREEMPTED,
        StateName.NODE_FAIL,
    }
)

ReasonCode = Literal[
    "Submitted", "Cpu", "HostMemory", "GpuMemory", "Interference", "Priority", "Dependency",
    "HeldByUser", "Backoff", "DeviceDrained", "Policy", "Interrupted",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits, with the numbers: what it needs and what there is.

    Attributes:
        code: one of the reason words of the design.
        need: what the job needs, in the unit of the code (cores, bytes, rate, seconds).
        have: what there is of it, or the bound that is not met.
        detail: what numbers do not say, for example the name of a predecessor.
    """

    code: ReasonCode
    need: float | None = None
    have: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        match self.code:
            case "HostMemory" | "GpuMemory" if self.need is not None and self.have is not None:
                more = f"; {self.detail}" if self.detail else ""
                return f"{self.code}({format_bytes(self.need)}>{format_bytes(self.have)}{more})"
            case "Cpu" if self.need is not None and self.have is not None:
                return f"Cpu({self.need:g}>{self.have:g} cores)"
            case "Interference" if self.need is not None and self.have is not None:
                what = self.detail or "rate"
                return f"Interference({what} {self.need:.2f}<{self.have:.2f})"
            case "Backoff" if self.need is not None:
                return f"Backoff({self.need:.0f} s)"
        return f"{self.code}({self.detail})" if self.detail else self.code


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as the user asked for it, validated; what scheduling and execution need of it.

    Attributes:
        id: unique in the run and safe as a file name.
        name: as the user wrote it.
        kind: ``model`` (a training of ours) or ``command`` (any program).
        payload: what the executor needs, JSON values only (argv, or the training configuration).
        signature: digest of everything that affects the result.
        family: the signature without seed, learning rate, name and output paths.
        device: ``auto``, ``cpu``, ``gpu`` or a device's UUID.
        gpus: whole GPUs asked for; None leaves it to the dispatcher.
        threads: the user's own number of threads; None leaves it to the dispatcher.
        memory: the user's hint for host memory, bytes.
        gpu_memory: the user's hint for device memory, bytes.
        retries: further attempts after a failure.
        timeout_seconds: an attempt that runs longer ends TIMEOUT.
        priority: higher goes first.
        after: ids of the jobs that must have succeeded before.
        total_steps: optimizer steps of the whole job, where known beforehand.
    """

    id: str
    name: str
    kind: Literal["model", "command"]
    payload: Mapping[str, Any] = field(default_factory=dict)
    signature: str = ""
    family: str = ""
    device: str = "auto"
    gpus: int | None = None
    threads: int | None = None
    memory: int | None = None
    gpu_memory: int | None = None
    retries: int = 0
    timeout_seconds: float | None = None
    priority: int = 0
    after: tuple[str, ...] = ()
    total_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that trains: the CPU of a node, or a GPU.

    Attributes:
        id: ``cpu`` or the GPU's UUID.
        kind: ``cpu`` or the GPU's type, for example ``NVIDIA H200``; profiles are kept per kind.
        index: position among the GPUs; None for the CPU.
        memory: device memory that jobs may use, bytes; 0 for the CPU, whose memory is the node's.
        foreign: device memory that processes of others hold, bytes; ``memory`` is without it.
        closed: why no job may start on it now; empty where one may.
        sharing: how jobs share it: in turns, side by side under MPS, or not at all.
        places: at most so many jobs at a time; None sets no such limit.
    """

    id: str = CPU
    kind: str = CPU
    index: int | None = None
    memory: int = 0
    foreign: int = 0
    closed: str = ""
    sharing: SharingMode = "time-slicing"
    places: int | None = None

    @property
    def most_jobs(self) -> float:
        """At most so many jobs at a time."""
        if self.closed:
            return 0
        if self.sharing == "exclusive":
            return 1
        return math.inf if self.places is None else self.places

    @property
    def capacity(self) -> int:
        """Device memory that jobs could use if there were no processes of others, bytes."""
        return self.memory + self.foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine: what its jobs share.

    Attributes:
        name: host name.
        cores: ids of the logical cores that jobs may use.
        memory: host memory that jobs may use, bytes (what other processes hold is left out).
        devices: at least the CPU.
        memory_bandwidth: bytes per second that one core's copy reaches; 0 where not measured.
    """

    name: str = "localhost"
    cores: tuple[int, ...] = (0,)
    memory: int = 0
    devices: tuple[Device, ...] = (Device(),)
    memory_bandwidth: float = 0.0

    @property
    def capacity(self) -> Resources:
        """Cores and host memory of the node as one amount."""
        return Resources(cpu=float(len(self.cores)), memory=self.memory)

    def device(self, id: str) -> Device:  # noqa: A002
        """The device of that id.

        Raises:
            KeyError: this node has no such device.
        """
        for device in self.devices:
            if device.id == id:
                return device
        raise KeyError(id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job runs and what is booked for it.

    Attributes:
        device: id of the device.
        threads: threads given to the job; None leaves the program's own default.
        cpu: cores' worth booked; jobs that wait for input book a fraction.
        cores: ids of the cores it is pinned to; empty leaves it unpinned.
        memory: host memory reserved, bytes.
        device_memory: memory reserved on the device, bytes; 0 on the CPU.
        memory_limit: host memory that the job cannot grow beyond, bytes; 0: no limit.
        others: ids of further devices that a job of several GPUs has, each of them whole.
    """

    device: str = CPU
    threads: int | None = None
    cpu: float = 1.0
    cores: tuple[int, ...] = ()
    memory: int = 0
    device_memory: int = 0
    memory_limit: int = 0
    others: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Ids of all its devices."""
        return (self.device, *self.others)

    @property
    def resources(self) -> Resources:
        """What the placement books, as one amount."""
        return Resources(self.cpu, self.memory, self.device_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Peak memory of a job before it runs.

    Attributes:
        memory: host memory to reserve, bytes.
        device_memory: device memory to reserve, bytes.
        source: ``hint``, ``history`` (a measured peak of this signature or family), ``trace``,
            ``default``.
        expected: what was estimated before room was left above it, bytes; 0 where nothing was.
        expected_from: the source of ``expected``.
        device_expected, device_expected_from: the same of the memory on the device.
    """

    memory: int
    device_memory: int = 0
    source: str = "default"
    expected: int = 0
    expected_from: str = ""
    device_expected: int = 0
    device_expected_from: str = ""


#: Stations of the queueing network that all jobs of a node share.
HOST_STATIONS = ("cores", "memory_bandwidth", "storage")
#: Stations that the jobs of one GPU share.
GPU_STATIONS = ("compute", "bandwidth", "transfer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a job uses when it runs alone on a kind of device.

    Attributes:
        device_kind: ``cpu`` or the GPU's type.
        threads: the number of threads it was measured with.
        step_seconds: seconds per optimizer step alone; None where steps are not seen.
        demand: per station the share of the solo step that it works for the job; ``cores`` is in
            cores' worth and may exceed 1 for a job of several threads.
        granularity: per station how long one visit holds it, relative (missing: 1). Sources that
            know it in seconds give it in tenths of a millisecond.
        total_steps: steps of the job it was measured on, 0 where not known; members of a family
            have the same number.
        startup_seconds: from process start to the first step.
        solo_seconds: the whole job alone on the node at its best thread count, where measured.
        memory: peak host memory seen so far, bytes.
        speeds: steps per second alone by number of threads, where they were measured.
        source: ``static``, ``probe``, ``live``, ``history`` or ``declared``.
        confidence: in [0, 1]; a family's profile counts less for its other members.
    """

    device_kind: str = CPU
    threads: int = 1
    step_seconds: float | None = None
    demand: Mapping[str, float] = field(default_factory=dict)
    granularity: Mapping[str, float] = field(default_factory=dict)
    total_steps: int = 0
    startup_seconds: float = 0.0
    solo_seconds: float | None = None
    memory: int = 0
    speeds: Mapping[int, float] = field(default_factory=dict)
    source: str = "live"
    confidence: float = 1.0

    @property
    def best_threads(self) -> int | None:
        """The least number with which it is about fastest; None where only one was tried."""
        return about_fastest(self.speeds) if len(self.speeds) > 1 else None

    def speed_ratio(self, threads: int, other: int) -> float | None:
        """Its speed with so many threads over that with another number; None where not known."""
        speed, base = self.speeds.get(threads), self.speeds.get(other)
        return speed / base if speed and base else None


#: Speeds that differ by less are not told apart.
SAME_SPEED = 0.05


def about_fastest(speeds: Mapping[int, float]) -> int:
    """The least number of threads whose speed is not clearly below the highest.

    Args:
        speeds: steps per second by number of threads; at least one.
    """
    enough = (1 - SAME_SPEED) * max(speeds.values())
    return min(threads for threads, speed in speeds.items() if speed >= enough)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is, as its progress page or its elapsed time tells.

    Attributes:
        at: when this was seen, seconds since the run began.
        step: finished optimizer steps.
        total_steps: all steps, 0 where not known.
        samples: finished training samples.
    """

    at: float
    step: int = 0
    total_steps: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast a job went beside others, or alone.

    Attributes:
        token: of its attempt.
        steps_per_second: as measured; None where its steps are not seen.
        step_seconds: of a step alone, as far as it is known.
        predicted: its rate by the network, without any correction; None where it has no profile.
    """

    token: str
    steps_per_second: float | None = None
    step_seconds: float | None = None
    predicted: float | None = None

    @property
    def relative(self) -> float | None:
        """Progress relative to the job alone; None where one of the two is not known."""
        if self.steps_per_second is None or self.step_seconds is None:
            return None
        return self.steps_per_second * self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a job, and how it ended if it has.

    Attributes:
        number: from 1.
        token: unique for this attempt; completion is a compare-and-set on it.
        placement: where it runs.
        started_at: when it was placed.
        outcome: None while it runs.
        ended_at: when its end was seen.
        counted: whether its end used up one of the job's tries.
        suspended_seconds: how long it stood still, up to the last time that it went on.
    """

    number: int
    token: str
    placement: Placement
    started_at: float
    outcome: Outcome | None = None
    ended_at: float | None = None
    counted: bool = True
    suspended_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt, and so perhaps a job, ended.

    Attributes:
        state: one of the final states.
        reason: in a word or two: ``exit 1``, ``SIGSEGV``, ``DependencyFailed``, ``host``.
        message: what the user should read, for example the last lines of the log.
        exit_code: the program's own code, where it ended by itself.
        signal: the signal that ended it.
        memory_peak_bytes: highest host memory of its process tree; 0 where not measured.
        device_peak_bytes: highest memory on its device, the context included; 0 where not measured.
        retryable: whether another attempt can help (a bad data file will not mend itself).
        fault: the fault of CUDA that ended it, as `rmixer.faults` calls it; mostly empty.
    """

    state: StateName
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    memory_peak_bytes: int = 0
    device_peak_bytes: int = 0
    retryable: bool = True
    fault: str = ""


# --- a job's state, one class per shape of data --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    """Waits for a place; `not_before` is the end of a back-off."""

    reason: Reason
    since: float
    not_before: float = 0.0
    name: Literal[StateName.PENDING] = StateName.PENDING


@dataclass(frozen=True, slots=True)
class Active:
    """Has a process: PROFILING or RUNNING, SUSPENDED, or COMPLETING (told to stop).

    Attributes:
        name: which of them.
        attempt: the running attempt.
        since: when it came into this state.
        stopping: what its end will count as, once it was told to stop.
        reason: why it is SUSPENDED.
    """

    name: Literal[StateName.PROFILING, StateName.RUNNING, StateName.SUSPENDED, StateName.COMPLETING]
    attempt: Attempt
    since: float
    stopping: Outcome | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """Has ended for good. Never changes."""

    outcome: Outcome
    at: float

    @property
    def name(self) -> StateName:
        """The final state's word."""
        return self.outcome.state


JobState = Pending | Active | Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the dispatcher knows it.

    Attributes:
        spec: as asked for.
        state: what it is doing now, with that state's data.
        queued_at: when it was submitted.
        attempts: the attempts that have ended, oldest first.
        forgiven: so many of them, the oldest, were before the user asked for new tries.
        estimate: what to reserve for it.
        profile: what it uses, where known.
        told: what was known of it when it was submitted: declared, or measured before.
        profiles: what it uses per kind of device, where declared or measured there; a kind that is
            missing from one that is not empty is one on which the job cannot train.
        progress: how far the running attempt is.
    """

    spec: JobSpec
    state: JobState
    queued_at: float
    estimate: Estimate
    attempts: tuple[Attempt, ...] = ()
    forgiven: int = 0
    profile: Profile | None = None
    told: Profile | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    progress: Progress | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    def faulted_on(self, fault: str = "") -> frozenset[str]:
        """The GPUs on which it has met a fault of CUDA, or that one."""
        return frozenset(
            attempt.placement.device
            for attempt in self.attempts[self.forgiven :]
            if attempt.outcome is not None
            and attempt.outcome.fault
            and fault in ("", attempt.outcome.fault)
        )

    @property
    def tries_used(self) -> int:
        """Ended attempts that count against ``retries``."""
        return sum(attempt.counted for attempt in self.attempts)

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return isinstance(self.state, Final)
