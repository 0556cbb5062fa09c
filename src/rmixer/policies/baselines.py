"""What people do without a dispatcher: one at a time, k at a time, in rounds, all at once.

They know nothing of what jobs use, only on which kind of device a job is fastest. A place is a
share of the machine; jobs are not pinned, and keep their program's own number of threads unless
``threads`` says otherwise. Memory is still booked: no job is started into memory that is not there.
"""

from __future__ import annotations

from rmixer.model import CPU, Device, Job, Reason
from rmixer.policies.base import Plan, Snapshot, number, pick_device, whole_number
from rmixer.policies.traits import Crowd, crowds, devices_of, place, seconds_on


class Fixed:
    """At most k jobs at a time per device, in the order of the queue; places are refilled.

    Args:
        k: places on each GPU, or on the CPU for jobs that train there.
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "fixed"
    #: What is booked for a job, times its memory.
    margin = 1.0
    #: Whether nothing starts before all that runs has ended.
    in_rounds = False

    def __init__(self, *, k: int = 2, threads: int | None = None) -> None:
        self.k = whole_number(self.name, "k", k)
        self.threads = None if threads is None else whole_number(self.name, "threads", threads)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Fill the free places with the first jobs that fit."""
        plan = Plan(snapshot)
        found = crowds(plan)
        for job in snapshot.pending:
            reason = self._why_not(plan, found)
            if reason is None:
                reason = self._start(plan, found, job)
            if reason is not None:
                plan.wait(job, reason)
        return plan

    def places(self, snapshot: Snapshot) -> int:  # noqa: ARG002
        """How many jobs may run at a time on a device."""
        return self.k

    def _why_not(self, plan: Plan, found: dict[str, Crowd]) -> Reason | None:  # noqa: ARG002
        """Why no job at all starts now."""
        if self.in_rounds and plan.snapshot.active:
            left = len(plan.snapshot.active)
            return Reason("Policy", detail=f"the round is not over: {left} of its jobs run")
        return None

    def _start(self, plan: Plan, found: dict[str, Crowd], job: Job) -> Reason | None:
        places = self.places(plan.snapshot)
        device = best_device(plan, found, job)
        crowd = found.get(device.id, Crowd(device))
        if len(crowd.jobs) >= places:
            return Reason("Policy", detail=f"{len(crowd.jobs)} of {places} places taken")
        parts = places * sum(_same_sort(one.device, device) for one in found.values())
        placement = place(
            plan, job, device, margin=self.margin, parts=max(1, parts), threads=self.threads
        )
        reason = plan.lacks(placement)
        if reason is None:
            plan.start(job, placement)
            crowd.join(job, placement)
        return reason


class Sequential(Fixed):
    """One job at a time on the whole machine, in the order of the queue.

    Args:
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "sequential"

    def __init__(self, *, threads: int | None = None) -> None:
        super().__init__(k=1, threads=threads)

    def _why_not(self, plan: Plan, found: dict[str, Crowd]) -> Reason | None:
        if any(crowd.jobs for crowd in found.values()) or plan.snapshot.active:
            return Reason("Policy", detail="1 of 1 places taken")
        return None

    def _start(self, plan: Plan, found: dict[str, Crowd], job: Job) -> Reason | None:
        device = best_device(plan, found, job)
        placement = place(plan, job, device, margin=self.margin, parts=1, threads=self.threads)
        reason = plan.lacks(placement)
        if reason is None:
            plan.start(job, placement)
            found.setdefault(device.id, Crowd(device)).join(job, placement)
        return reason


class Exclusive(Fixed):
    """One job per GPU, in the order of the queue; a GPU is refilled when it is free.

    Args:
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "exclusive"

    def __init__(self, *, threads: int | None = None) -> None:
        super().__init__(k=1, threads=threads)


class Monolithic(Exclusive):
    """One job per GPU in rounds: the next begin when all of a round have ended (published).

    Args:
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "monolithic"
    in_rounds = True


class MpsRounds(Fixed):
    """Some jobs per GPU side by side, in the order of the queue, in rounds (published).

    Args:
        places: jobs on each GPU.
        margin: what is booked for a job, times its memory.
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "mps-rounds"
    in_rounds = True

    def __init__(self, *, places: int = 4, margin: float = 1.2, threads: int | None = None) -> None:
        super().__init__(k=whole_number(self.name, "places", places), threads=threads)
        self.margin = number(self.name, "margin", margin, 1.0)


class AllAtOnce(Fixed):
    """Every job as soon as it may start, as far as memory reaches.

    Args:
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "all-at-once"

    def __init__(self, *, threads: int | None = None) -> None:
        super().__init__(k=1, threads=threads)

    def places(self, snapshot: Snapshot) -> int:
        """As many as there are jobs in the run."""
        return max(1, snapshot.total_jobs, len(snapshot.active) + len(snapshot.pending))


def best_device(plan: Plan, found: dict[str, Crowd], job: Job) -> Device:
    """The device on which a job is fastest; among equals the one with the fewest jobs.

    Where no times are known: the CPU if the job may use it, else the GPU with most free memory.
    """
    devices = devices_of(job, plan.snapshot.node)
    if not job.profiles or not devices:
        return pick_device(plan, job)
    fastest = min(devices, key=lambda device: seconds_on(job, device.kind))
    alike = [device for device in devices if device.kind == fastest.kind]
    return min(alike, key=lambda d: (len(found[d.id].jobs), -plan.free_device_memory[d.id]))


def _same_sort(one: Device, other: Device) -> bool:
    return (one.kind == CPU) == (other.kind == CPU)
