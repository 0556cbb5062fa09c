"""Lucid's rule (ASPLOS 2023, doi 10.1145/3575693.3575705): sharing scores, at most two per GPU.

A job is tiny (0), medium (1) or jumbo (2). Jobs go by their expected length, shortest first. Each
is first packed with a job that has a GPU for itself, if the memory of both fits, their scores sum
to at most two, and the job is at most twice as long as its mate; else it takes a free GPU. Lucid
learns the classes with a decision tree; here they are thresholds on utilisation and bandwidth that
agree with 52 of its 66 published classes. Its non-intrusive profiler and its switch by the load
that it forecasts have no counterpart: profiles are given, and sharing is always on.
"""

from __future__ import annotations

from rmixer.model import Job, Reason
from rmixer.policies.base import Plan, Snapshot, number
from rmixer.policies.traits import (
    Crowd,
    booked_memory,
    crowds,
    devices_of,
    gpu_profile,
    least_seconds,
    start_on_first,
    utilisation,
)

#: The scores of a pair sum to at most this.
MOST = 2
#: A job is at most so many times as long as the one that it joins.
LONGER = 2.0
#: Above this utilisation, or share of the bandwidth, a job is jumbo; above the second one medium.
_JUMBO = (0.60, 0.35)
_MEDIUM = (0.28, 0.14)


class Lucid:
    """At most two jobs per GPU, by sharing scores.

    Args:
        margin: what is booked for a job, times its memory.
    """

    name = "lucid"

    def __init__(self, *, margin: float = 1.0) -> None:
        self.margin = number(self.name, "margin", margin, 1.0)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Pack or place job after job, shortest first."""
        plan = Plan(snapshot)
        found = crowds(plan)
        node = snapshot.node
        queue = sorted(
            snapshot.pending, key=lambda job: (-job.spec.priority, least_seconds(job, node))
        )
        nobody = Reason("Policy", detail="no free GPU, and no job to share one with")
        for job in queue:
            usable = [crowd for crowd in found.values() if crowd.device in devices_of(job, node)]
            mates = [crowd for crowd in usable if self._pairs(plan, crowd, job)]
            free = [crowd for crowd in usable if not crowd.jobs]
            reason = start_on_first(
                plan, job, mates + free, nobody, margin=self.margin, parts=2 * len(node.devices)
            )
            if reason is not None:
                plan.wait(job, reason)
        return plan

    def _pairs(self, plan: Plan, crowd: Crowd, job: Job) -> bool:
        if len(crowd.jobs) != 1:
            return False
        mate = crowd.jobs[0]
        need = booked_memory(job, crowd.device, self.margin)
        node = plan.snapshot.node
        return (
            need + crowd.booked < crowd.device.memory
            and score(job) + score(mate) <= MOST
            and least_seconds(job, node) <= LONGER * least_seconds(mate, node)
        )


def score(job: Job) -> int:
    """0 for tiny, 1 for medium, 2 for jumbo."""
    profile = gpu_profile(job)
    bandwidth = 0.0 if profile is None else profile.demand.get("bandwidth", 0.0)
    used = utilisation(job)
    for value, (most, widest) in ((2, _JUMBO), (1, _MEDIUM)):
        if used > most or bandwidth > widest:
            return value
    return 0
