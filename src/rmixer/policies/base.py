"""What a policy is: one pure method from a snapshot to a plan.

A policy keeps no state, reads no clock and starts nothing. It is given everything that is known as
an immutable `Snapshot` and books into a `Plan`, which refuses what does not fit, so that no policy
can break a capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from rmixer.errors import OverbookedError
from rmixer.interference import Companies, Correction
from rmixer.model import (
    CPU,
    Active,
    Attempt,
    Device,
    Estimate,
    Job,
    JobSpec,
    Node,
    Placement,
    Reason,
    StateName,
)
from rmixer.policies.ledger import Ledger, core_share
from rmixer.resources import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a policy may know.

    Attributes:
        now: seconds since the run began.
        node: the machine.
        pending: jobs that may start now, by priority, then in the order of the queue.
        active: jobs that hold a placement, those that are being stopped included.
        total_jobs: all jobs of the run, ended ones included.
        seed: for policies that draw.
        jobs: all jobs of the run by id, ended ones included; empty where the caller has no others.
        memo: what the policy left in its last plan for this one; None at first and after a resume.
        correction: of predicted rates, by what was measured.
        companies: the companies that were measured, and those that are kept apart.
        changed: ids of the jobs that are new or another than they were for that plan, its own
            starts included; None: all may be.
        ledger: what the active jobs book; None: it is counted anew.
    """

    now: float
    node: Node
    pending: Sequence[Job]
    active: Sequence[Job]
    total_jobs: int = 0
    seed: int = 0
    jobs: Mapping[str, Job] = field(default_factory=dict)
    memo: object = None
    correction: Correction = field(default_factory=Correction)
    companies: Companies = field(default_factory=Companies)
    changed: frozenset[str] | None = None
    ledger: Ledger | None = None


@runtime_checkable
class Policy(Protocol):
    """Decides what starts where."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """What to start, what to rebook, and why the rest waits."""
        ...  # pragma: no cover


class Plan:
    """What a policy wants, booked as it goes.

    A placement that is pinned books ``cpu / len(cores)`` on each of its cores; one that is not
    books on the node alone. Every booking is checked against the node's cores and memory and the
    device's memory.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.starts: dict[str, Placement] = {}
        self.rebooked: dict[str, Placement] = {}
        self.suspended: dict[str, Reason] = {}
        self.continued: dict[str, Placement] = {}
        self.waits: dict[str, Reason] = {}
        self.memo: object = snapshot.memo
        kept = snapshot.ledger or Ledger(snapshot.node, snapshot.active)
        self._ledger = kept.fork()
        self._devices = kept.devices

    @property
    def free_cpu(self) -> float:
        """Cores' worth that is not booked."""
        return self._ledger.free_cpu

    @property
    def free_memory(self) -> int:
        """Host memory that is not booked, bytes."""
        return self._ledger.free_memory

    @property
    def free_cores(self) -> Mapping[int, float]:
        """By core id, the share of it that is not booked."""
        return self._ledger.free_cores

    @property
    def free_device_memory(self) -> Mapping[str, int]:
        """By device id, what is not booked there, bytes."""
        return self._ledger.free_device_memory

    @property
    def free_places(self) -> Mapping[str, float]:
        """By device id, how many more jobs may run there."""
        return self._ledger.free_places

    @property
    def pinned(self) -> Iterable[str]:
        """The active jobs that held cores of their own when the plan was begun."""
        return self._ledger.pinned

    def start(self, job: Job, placement: Placement) -> None:
        """Start a pending job there.

        Raises:
            OverbookedError: it does not fit, or the job has a place already.
        """
        if self._ledger.held(job.id) is not None:
            raise OverbookedError(f"job {job.spec.name!r} has a place already")
        reason = self.lacks(placement)
        if reason is not None:
            raise OverbookedError(f"job {job.spec.name!r} does not fit: {reason}")
        self._ledger.hold(job.id, placement)
        self.starts[job.id] = placement
        self.waits.pop(job.id, None)

    def rebook(self, job: Job, placement: Placement) -> None:
        """Change what an active job books.

        Raises:
            OverbookedError: the job has no place, or the new one does not fit beside the others.
        """
        held = self._ledger.held(job.id)
        if held is None:
            raise OverbookedError(f"job {job.spec.name!r} has no place to rebook")
        reason = self.lacks_to_rebook(job, placement)
        if reason is not None:
            raise OverbookedError(f"job {job.spec.name!r} cannot be rebooked: {reason}")
        self._ledger.hold(job.id, placement)
        if placement != held:
            self.rebooked[job.id] = placement

    def lacks_to_rebook(self, job: Job, placement: Placement) -> Reason | None:
        """Why a job that has a place cannot have this one instead, or None if it can.

        It can always keep what it has or give some of it back, also where the machine has become
        smaller since it was placed.
        """
        held = self._ledger.held(job.id)
        assert held is not None
        if _is_part_of(placement, held):
            return None
        self._ledger.book(held, -1)
        reason = self.lacks(placement)
        self._ledger.book(held, 1)
        return reason

    def suspend(self, job: Job, reason: Reason) -> None:
        """Let a running job stand still: it keeps its memory, and gives up cores and place."""
        held = self._ledger.held(job.id)
        assert held is not None, "only what runs can be suspended"
        assert not self._ledger.stands(job.id), "it stands still already"
        self._ledger.hold(job.id, held, stands=True)
        self.suspended[job.id] = reason

    def go_on(self, job: Job, placement: Placement) -> None:
        """Let a job that stands still go on there: the same device and memory, perhaps other cores.

        Raises:
            OverbookedError: there is no room for it.
        """
        reason = self.lacks_to_go_on(placement)
        if reason is not None:
            raise OverbookedError(f"job {job.spec.name!r} cannot go on: {reason}")
        self._ledger.hold(job.id, placement)
        self.continued[job.id] = placement

    def lacks_to_go_on(self, placement: Placement) -> Reason | None:
        """Why a job that stands still cannot go on in this placement, or None if it can."""
        return self.lacks(replace(placement, memory=0, device_memory=0))

    def is_standing(self, job: Job) -> bool:
        """Whether the job has a place but stands still."""
        return self._ledger.stands(job.id)

    @property
    def any_stands(self) -> bool:
        """Whether any job stands still."""
        return self._ledger.any_stands

    def wait(self, job: Job, reason: Reason) -> None:
        """Say why a pending job does not start now."""
        self.waits[job.id] = reason

    def lacks(self, placement: Placement) -> Reason | None:
        """Why a placement does not fit now, with numbers, or None if it does."""
        device = self._devices.get(placement.device)
        if device is None or device.closed:
            return Reason("DeviceDrained", detail=device.closed if device else placement.device)
        if self.free_places[placement.device] < 1:
            return Reason("Policy", detail=f"all places of {placement.device} are taken")
        if placement.memory > self.free_memory:
            return Reason("HostMemory", placement.memory, self.free_memory)
        free_device = self.free_device_memory[placement.device]
        if placement.device_memory > free_device:
            others = f"others hold {format_bytes(device.foreign)}" if device.foreign else ""
            return Reason("GpuMemory", placement.device_memory, free_device, others)
        if placement.cpu > self.free_cpu:
            return Reason("Cpu", placement.cpu, max(0.0, self.free_cpu))
        return self._core_that_lacks(placement) or self._other_that_lacks(placement)

    def _other_that_lacks(self, placement: Placement) -> Reason | None:
        """Of the further devices of a job of several GPUs one that is not free as a whole."""
        for id in placement.others:  # noqa: A001
            whole = self._devices[id].memory
            if self.free_device_memory[id] < whole or self.free_places[id] < 1:
                return Reason("GpuMemory", whole, self.free_device_memory[id], id)
        return None

    def _core_that_lacks(self, placement: Placement) -> Reason | None:
        share = core_share(placement)
        for core in placement.cores:
            if share > self.free_cores.get(core, 0.0):
                return Reason(
                    "Cpu", share, max(0.0, self.free_cores.get(core, 0.0)), f"core {core}"
                )
        return None

    def pick_cores(self, threads: int, cpu: float) -> tuple[int, ...]:
        """Cores to pin a job to: as many as it has threads, each with room for its part.

        Full cores go to jobs that fill them; a part goes to the core with the least room that is
        enough, so that jobs that wait share a core. Empty where there are not enough.
        """
        share = round(cpu / threads, 3)
        fitting = [core for core, free in self.free_cores.items() if share <= free]
        fitting.sort(key=lambda core: (self.free_cores[core], core))
        return tuple(sorted(fitting[:threads])) if len(fitting) >= threads else ()


def _is_part_of(placement: Placement, held: Placement) -> bool:
    return (
        placement.devices == held.devices
        and placement.resources.fits_in(held.resources)
        and set(placement.cores) <= set(held.cores)
        and core_share(placement) <= core_share(held)
    )


def stands(job: Job) -> bool:
    """Whether a job has a process that stands still."""
    return job.state.name == StateName.SUSPENDED


def placement_of(job: Job) -> Placement:
    """The placement of an active job."""
    assert isinstance(job.state, Active)
    return job.state.attempt.placement


def attempt_of(job: Job) -> Attempt:
    """The running attempt of an active job."""
    assert isinstance(job.state, Active)
    return job.state.attempt


def eligible_devices(spec: JobSpec, node: Node) -> tuple[Device, ...]:
    """The devices of a node that a job may use, by its ``device`` key."""
    match spec.device:
        case "auto":
            wanted = node.devices
        case "cpu":
            wanted = tuple(d for d in node.devices if d.kind == CPU)
        case "gpu":
            wanted = tuple(d for d in node.devices if d.kind != CPU)
        case uuid:
            wanted = tuple(d for d in node.devices if d.id == uuid)
    return tuple(d for d in wanted if d.kind != CPU) if spec.gpus else wanted


def pick_device(plan: Plan, job: Job) -> Device:
    """The CPU if the job may use it, else the open GPU it may use with the most free memory.

    One on which it has met a fault is the last.
    """
    devices = eligible_devices(job.spec, plan.snapshot.node)
    if not devices:
        return Device(id=job.spec.device, kind="absent")
    for device in devices:
        if device.kind == CPU:
            return device
    met = job.faulted_on()
    return max(
        devices, key=lambda d: (not d.closed, d.id not in met, plan.free_device_memory[d.id])
    )


def device_memory(device: Device, job: Job) -> int:
    """What a job books on a device: its estimate; the whole of it where there is none.

    All that others leave of it is the whole; where that is less than half, the job waits for half.
    """
    if device.kind == CPU:
        return 0
    return job.estimate.device_memory or max(device.memory, device.capacity // 2)


def never_fits(spec: JobSpec, estimate: Estimate, node: Node) -> Reason | None:
    """Why a job could not run on the node even alone, with numbers, or None if it could.

    What others hold of a GPU may become free; one whose memory is not known may have enough.
    """
    devices = eligible_devices(spec, node)
    if not devices:
        gpus = sum(d.kind != CPU for d in node.devices)
        return Reason("DeviceDrained", detail=f"device {spec.device}: the machine has {gpus} GPUs")
    if spec.gpus and spec.gpus > len(devices):
        detail = f"needs {spec.gpus} GPUs, the machine has {len(devices)}"
        return Reason("DeviceDrained", spec.gpus, len(devices), detail)
    if spec.threads and spec.threads > len(node.cores):
        return Reason("Cpu", spec.threads, len(node.cores))
    if estimate.memory > node.memory:
        return Reason("HostMemory", estimate.memory, node.memory)
    largest = max(d.capacity for d in devices)
    if all(d.kind != CPU and d.capacity for d in devices) and estimate.device_memory > largest:
        return Reason("GpuMemory", estimate.device_memory, largest)
    return None


def whole_number(policy: str, key: str, value: object, minimum: int = 1) -> int:
    """An option of a policy that must be a whole number, checked.

    Raises:
        ValueError: it is not, or below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(
            f"policy {policy}: {key} must be a whole number of at least {minimum}, not {value!r}"
        )
    return value


def number(policy: str, key: str, value: object, minimum: float) -> float:
    """An option of a policy that must be a number, checked.

    Raises:
        ValueError: it is not, or below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= minimum:
        raise ValueError(
            f"policy {policy}: {key} must be a number of at least {minimum:g}, not {value!r}"
        )
    return float(value)
