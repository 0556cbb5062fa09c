"""Queues that share devices as far as memory reaches: first come, with backfill, shortest first.

What a cluster without predictions of interference does. A job goes to the device, of those on which
it is fastest, whose jobs use it least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rmixer.model import Job, Reason
from rmixer.policies.base import Plan, Snapshot, number, whole_number
from rmixer.policies.traits import (
    Crowd,
    crowds,
    devices_of,
    least_seconds,
    seconds_on,
    start_on_first,
)


class Fifo:
    """First come, first served: nobody overtakes a job that does not fit yet.

    Args:
        places: jobs on each device; 0 sets no limit but memory.
        margin: what is booked for a job, times its memory.
    """

    name = "fifo"
    #: Whether a job may overtake those that do not fit.
    overtakes = False

    def __init__(self, *, places: int = 0, margin: float = 1.05) -> None:
        self.places = whole_number(self.name, "places", places, 0) or math.inf
        self.margin = number(self.name, "margin", margin, 1.0)

    def order(self, jobs: Sequence[Job], plan: Plan) -> list[Job]:  # noqa: ARG002
        """The queue."""
        return list(jobs)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Start jobs in the order of the queue."""
        plan = Plan(snapshot)
        found = crowds(plan)
        ordered = self.order(snapshot.pending, plan)
        blocked: dict[str, str] = {}
        for job in sorted(ordered, key=lambda job: -job.spec.priority):
            devices = devices_of(job, snapshot.node)
            before = next((blocked[d.id] for d in devices if d.id in blocked), None)
            if before is not None:
                plan.wait(job, Reason("Priority", detail=f"{before} goes first"))
                continue
            reason = self._start(plan, found, job)
            if reason is None:
                continue
            plan.wait(job, reason)
            if not self.overtakes:
                blocked |= {device.id: job.spec.name for device in devices}
        return plan

    def _start(self, plan: Plan, found: dict[str, Crowd], job: Job) -> Reason | None:
        """Start a job on the device where it fits and that is used least."""
        devices = devices_of(job, plan.snapshot.node)
        least = min((seconds_on(job, device.kind) for device in devices), default=math.inf)
        alike = [found[d.id] for d in devices if seconds_on(job, d.kind) == least]
        usable = sorted(alike, key=lambda one: (one.load, len(one.jobs)))
        absent = Reason("DeviceDrained", detail=job.spec.device)
        return start_on_first(
            plan, job, usable, absent,
            margin=self.margin, parts=self._parts(plan), why_not=self._is_full,
        )  # fmt: skip

    def _is_full(self, crowd: Crowd) -> Reason | None:
        full = len(crowd.jobs) >= self.places
        return Reason("Policy", detail=f"{self.places} places taken") if full else None

    def _parts(self, plan: Plan) -> float:
        """So many jobs share the cores."""
        devices = len(plan.snapshot.node.devices)
        if self.places < math.inf:
            return devices * self.places
        return max(1, plan.snapshot.total_jobs, len(plan.snapshot.pending))


class Backfill(Fifo):
    """First come, first served, but what does not fit yet holds nobody back.

    Args:
        places: jobs on each device; 0 sets no limit but memory.
        margin: what is booked for a job, times its memory.
    """

    name = "backfill"
    overtakes = True


class ShortestFirst(Backfill):
    """The shortest job that fits goes first.

    Args:
        places: jobs on each device; 0 sets no limit but memory.
        margin: what is booked for a job, times its memory.
    """

    name = "shortest-first"

    def order(self, jobs: Sequence[Job], plan: Plan) -> list[Job]:
        """The queue."""
        return sorted(jobs, key=lambda job: least_seconds(job, plan.snapshot.node))
