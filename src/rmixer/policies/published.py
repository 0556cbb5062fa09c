"""The published system's policies, by their published rules: a job policy with a device policy.

A device policy chooses a GPU with a free place, any GPU before the CPU; a job policy chooses the
next job for it. Memory is admitted with a margin. Source: the public code of RMixer (2024,
doi 10.1109/TPDS.2024.3432620). Its faults are left out: a job that is too large for the margin runs
alone, nothing spins, and a device that no waiting job fits does not hold the others back. Jobs of a
higher priority, which the original does not know, go first.

``published-mix`` is in `rmixer.policies.published_mix`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from rmixer.model import CPU, Device, Job, Reason
from rmixer.policies.base import Plan, Snapshot, number, whole_number
from rmixer.policies.traits import (
    LABELS,
    Crowd,
    booked_memory,
    crowds,
    devices_of,
    label,
    place,
    utilisation,
)
from rmixer.resources import MIB

#: What an idle worker holds on its GPU.
WORKER_BYTES = 308 * MIB
#: Places on the CPU where the device itself sets no limit.
CPU_PLACES = 2

DEVICE_POLICIES = ("first", "fewest-workers", "most-memory", "lowest-utilisation", "mix")


class Published:
    """The loop that the published policies share. A subclass orders the queue and picks from it.

    Args:
        device: the device policy: first with a free place, fewest-workers, most-memory (free),
            lowest-utilisation (summed), or mix (least used memory).
        places: jobs on each GPU.
        margin: what is booked for a job, times its memory.
    """

    name: ClassVar[str] = "published"
    in_rounds: ClassVar[bool] = False

    def __init__(
        self, *, device: str = "fewest-workers", places: int = 4, margin: float = 1.2
    ) -> None:
        if device not in DEVICE_POLICIES:
            known = ", ".join(DEVICE_POLICIES)
            raise ValueError(f"policy {self.name}: device must be one of {known}, not {device!r}")
        self.device = device
        self.places = whole_number(self.name, "places", places)
        self.margin = number(self.name, "margin", margin, 1.0)

    # --- what a job policy is ---------------------------------------------------------------

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:
        """The queue."""
        raise NotImplementedError

    def pick(self, queue: Sequence[Job], crowd: Crowd, started: int) -> Job | None:  # noqa: ARG002
        """The next job of those of the queue that fit on a device; `started` is their number."""
        return queue[0] if queue else None

    # --- the loop ---------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot) -> Plan:
        """Take job after job while a device with a free place has one that fits."""
        plan = Plan(snapshot)
        if self.in_rounds and snapshot.active:
            left = len(snapshot.active)
            for job in snapshot.pending:
                detail = f"the round is not over: {left} of its jobs run"
                plan.wait(job, Reason("Policy", detail=detail))
            return plan
        found = crowds(plan)
        queue = self._by_priority(snapshot)
        while queue and (taken := self.next(plan, found, queue)) is not None:
            queue.remove(taken)
        for job in queue:
            plan.wait(job, self._why_not(plan, found, job))
        return plan

    def next(self, plan: Plan, found: dict[str, Crowd], queue: Sequence[Job]) -> Job | None:
        """Start one job of the queue; None if none fits anywhere."""
        for crowd in self.devices(plan, found):
            job = self.start_on(plan, crowd, queue)
            if job is not None:
                return job
        return None

    def start_on(self, plan: Plan, crowd: Crowd, queue: Sequence[Job]) -> Job | None:
        """Start the job that the policy picks for a device."""
        job = self.pick(self.fitting(plan, crowd, queue), crowd, _started(plan))
        if job is not None:
            self.start(plan, crowd, job)
        return job

    def fitting(self, plan: Plan, crowd: Crowd, queue: Sequence[Job]) -> list[Job]:
        """The jobs that fit on a device, those of the highest priority that may go there."""
        node = plan.snapshot.node
        mine = [job for job in queue if crowd.device in devices_of(job, node)]
        return [
            job
            for job in mine
            if job.spec.priority == mine[0].spec.priority and self.lacks(plan, crowd, job) is None
        ]

    def start(self, plan: Plan, crowd: Crowd, job: Job) -> None:
        """Start a job on a device."""
        placement = place(plan, job, crowd.device, margin=self.margin, parts=self._parts(plan))
        plan.start(job, placement)
        crowd.join(job, placement)

    def devices(self, plan: Plan, found: dict[str, Crowd]) -> list[Crowd]:
        """Those with a free place in the order of the device policy, GPUs before the CPU."""
        free = [crowd for crowd in found.values() if len(crowd.jobs) < self.places_on(crowd.device)]
        gpus = [crowd for crowd in free if crowd.device.kind != CPU]
        match self.device:
            case "fewest-workers":
                gpus.sort(key=lambda crowd: len(crowd.jobs))
            case "most-memory":
                gpus.sort(key=lambda crowd: -plan.free_device_memory[crowd.device.id])
            case "lowest-utilisation":
                gpus.sort(key=lambda crowd: crowd.load)
            case "mix":
                gpus.sort(key=lambda crowd: crowd.booked)
        return gpus + [crowd for crowd in free if crowd.device.kind == CPU]

    def places_on(self, device: Device) -> float:
        """How many jobs a device takes."""
        if device.kind == CPU:
            return CPU_PLACES if device.places is None else device.places
        return min(self.places, device.most_jobs)

    def lacks(self, plan: Plan, crowd: Crowd, job: Job) -> Reason | None:
        """Why a job does not fit on a device, by the published rule of admission."""
        device = crowd.device
        if device not in devices_of(job, plan.snapshot.node):
            return Reason("DeviceDrained", detail=device.id)
        if device.kind != CPU and crowd.jobs:
            need = booked_memory(job, device, self.margin)
            booked = max(crowd.booked, WORKER_BYTES * int(self.places_on(device)))
            if need + booked >= device.memory:
                return Reason("GpuMemory", need, max(0, device.memory - booked))
        placement = place(plan, job, device, margin=self.margin, parts=self._parts(plan))
        return plan.lacks(placement)

    def _by_priority(self, snapshot: Snapshot) -> list[Job]:
        ordered = self.order(snapshot.pending, snapshot.seed)
        return sorted(ordered, key=lambda job: -job.spec.priority)

    def _parts(self, plan: Plan) -> float:
        return max(1.0, sum(self.places_on(device) for device in plan.snapshot.node.devices))

    def _why_not(self, plan: Plan, found: dict[str, Crowd], job: Job) -> Reason:
        reasons = [
            self.lacks(plan, crowd, job)
            for crowd in self.devices(plan, found)
            if crowd.device in devices_of(job, plan.snapshot.node)
        ]
        if not reasons:
            return Reason("Policy", detail="all places are taken")
        return reasons[0] or Reason("Priority", detail="others go first")


class PublishedSequential(Published):
    """By type, then memory, descending; the first that fits."""

    name = "published-sequential"

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:  # noqa: ARG002
        """The queue."""
        return sorted(jobs, key=lambda job: (LABELS.index(label(job)), -_memory(job)))


class PublishedRandom(Published):
    """Shuffled; the first that fits."""

    name = "published-random"

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:
        """The queue: the same for the same seed, whoever has left it already."""
        return sorted(jobs, key=lambda job: Random(f"{seed}:{job.id}").random())


class PublishedIntensity(Published):
    """By utilisation, descending; alternately from the front and from the back."""

    name = "published-intensity"

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:  # noqa: ARG002
        """The queue."""
        return by_utilisation(jobs)

    def pick(self, queue: Sequence[Job], crowd: Crowd, started: int) -> Job | None:  # noqa: ARG002
        """The first, then the last, and so on."""
        return queue[-(started % 2)] if queue else None


class PublishedMemory(PublishedIntensity):
    """By memory, descending (BMC); alternately from the front and from the back."""

    name = "published-memory"

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:  # noqa: ARG002
        """The queue."""
        return sorted(jobs, key=lambda job: -_memory(job))


class PublishedCognn(PublishedMemory):
    """As ``published-memory``, in rounds with a barrier (CoGNN)."""

    name = "published-cognn"
    in_rounds = True


class PublishedType(Published):
    """By memory, descending; the first whose type is not the device's commonest, else the first."""

    name = "published-type"

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:  # noqa: ARG002
        """The queue."""
        return sorted(jobs, key=lambda job: -_memory(job))

    def pick(self, queue: Sequence[Job], crowd: Crowd, started: int) -> Job | None:  # noqa: ARG002
        """The first of another type than most jobs there, else the first."""
        return other_type(queue, crowd)


class PublishedStatic(PublishedType):
    """As ``published-type``, in rounds with a barrier."""

    name = "published-static"
    in_rounds = True


def by_utilisation(jobs: Sequence[Job]) -> list[Job]:
    """Descending."""
    return sorted(jobs, key=lambda job: -utilisation(job))


def other_type(queue: Sequence[Job], crowd: Crowd) -> Job | None:
    """The first job whose type is not the commonest on the device, else the first."""
    counts = Counter(label(job) for job in crowd.jobs)
    commonest = max(LABELS, key=lambda name: counts[name]) if counts else None
    others = (job for job in queue if label(job) != commonest)
    return next(others, queue[0] if queue else None)


def _memory(job: Job) -> int:
    return job.estimate.device_memory


def _started(plan: Plan) -> int:
    """How many jobs have been started up to now, those that have ended included."""
    snapshot = plan.snapshot
    return snapshot.total_jobs - len(snapshot.pending) + len(plan.starts)
