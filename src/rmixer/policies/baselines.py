"""What people do without a dispatcher: one at a time, k at a time, all at once.

They know nothing of what jobs use. A place is a share of the machine; jobs are not pinned, and
keep their program's own number of threads unless ``threads`` says otherwise. Host memory is still
booked: no job is started into memory that is not there.
"""

from __future__ import annotations

import math

from rmixer.model import Job, Placement, Reason
from rmixer.policies.base import Plan, Snapshot, device_memory, pick_device, whole_number


class Fixed:
    """At most k jobs at a time, in the order of the queue; a place is refilled when it is free.

    Args:
        k: places.
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "fixed"

    def __init__(self, *, k: int = 2, threads: int | None = None) -> None:
        self.k = whole_number(self.name, "k", k)
        self.threads = None if threads is None else whole_number(self.name, "threads", threads)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Fill the free places with the first jobs that fit."""
        plan = Plan(snapshot)
        places = self.places(snapshot)
        taken = len(snapshot.active)
        for job in snapshot.pending:
            if taken >= places:
                plan.wait(job, Reason("Policy", detail=f"{taken} of {places} places taken"))
                continue
            placement = self._placement(plan, job, places)
            reason = plan.lacks(placement)
            if reason is None:
                plan.start(job, placement)
                taken += 1
            else:
                plan.wait(job, reason)
        return plan

    def places(self, snapshot: Snapshot) -> int:  # noqa: ARG002
        """How many jobs may run at a time."""
        return self.k

    def _placement(self, plan: Plan, job: Job, places: int) -> Placement:
        node = plan.snapshot.node
        return Placement(
            device=(device := pick_device(plan, job)).id,
            threads=job.spec.threads or self.threads,
            cpu=math.floor(1000 * len(node.cores) / places) / 1000,
            memory=min(job.estimate.memory, node.memory),
            device_memory=device_memory(device, job),
        )


class Sequential(Fixed):
    """One job at a time on the whole machine, in the order of the queue.

    Args:
        threads: threads for each job; None leaves torch's and OpenMP's own default.
    """

    name = "sequential"

    def __init__(self, *, threads: int | None = None) -> None:
        super().__init__(k=1, threads=threads)


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
