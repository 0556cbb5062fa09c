"""CARMA's rule (arXiv 2508.19073, 2025): share a GPU while its utilisation is below a threshold.

First come, first served. A GPU is a candidate while its jobs use at most a share of it, and while
it has the job's memory and a reserve besides; of the candidates the one with most free memory
(magm) or the least used one (lug) is taken. CARMA measures the use of a GPU over a window; here it
is the sum of the jobs' utilisations. The cap and the reserve are options. What runs out of memory
is started again by the dispatcher.
"""

from __future__ import annotations

from rmixer.model import CPU, Job, Reason
from rmixer.policies.base import Plan, Snapshot, number
from rmixer.policies.traits import Crowd, booked_memory, crowds, devices_of, gpus_of, start_on_first
from rmixer.resources import GIB

_CHOICES = ("magm", "lug")


class Carma:
    """Utilisation and memory thresholds.

    Args:
        placement: magm, the candidate with most free memory, or lug, the one used least.
        utilisation: a GPU that is used more takes no further job.
        reserve_gib: memory that stays free on a GPU that is shared.
        margin: what is booked for a job, times its memory.
    """

    name = "carma"

    def __init__(
        self,
        *,
        placement: str = "magm",
        utilisation: float = 0.8,
        reserve_gib: float = 2.0,
        margin: float = 1.0,
    ) -> None:
        if placement not in _CHOICES:
            raise ValueError(f"policy carma: placement must be magm or lug, not {placement!r}")
        self.placement = placement
        self.utilisation = number(self.name, "utilisation", utilisation, 0.0)
        self.reserve = int(number(self.name, "reserve_gib", reserve_gib, 0.0) * GIB)
        self.margin = number(self.name, "margin", margin, 1.0)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Map the head of the queue until it fits nowhere."""
        plan = Plan(snapshot)
        found = crowds(plan)
        blocked: dict[str, str] = {}
        for job in snapshot.pending:
            usable = [c for c in found.values() if c.device in devices_of(job, snapshot.node)]
            usable = gpus_of(usable)
            before = next((blocked[c.device.id] for c in usable if c.device.id in blocked), None)
            if before is not None:
                plan.wait(job, Reason("Priority", detail=f"{before} goes first"))
                continue
            reason = self._map(plan, usable, job)
            if reason is not None:
                plan.wait(job, reason)
                blocked |= {crowd.device.id: job.spec.name for crowd in usable}
        return plan

    def _map(self, plan: Plan, usable: list[Crowd], job: Job) -> Reason | None:
        if self.placement == "magm":
            usable = sorted(usable, key=lambda one: -plan.free_device_memory[one.device.id])
        else:
            usable = sorted(usable, key=lambda one: (one.load, len(one.jobs)))
        absent = Reason("DeviceDrained", detail=job.spec.device)
        return start_on_first(
            plan, job, usable, absent, margin=self.margin, parts=self._parts(plan),
            why_not=lambda crowd: self._risk(plan, crowd, job),
        )  # fmt: skip

    def _risk(self, plan: Plan, crowd: Crowd, job: Job) -> Reason | None:
        """Why a device that has jobs is none of the candidates."""
        if not crowd.jobs:
            return None
        if crowd.load > self.utilisation:
            detail = f"{crowd.device.id} is used to {crowd.load:.0%}, over {self.utilisation:.0%}"
            return Reason("Policy", detail=detail.replace("%", " %"))
        free = plan.free_device_memory[crowd.device.id]
        need = booked_memory(job, crowd.device, self.margin) + self.reserve
        return Reason("GpuMemory", need, free) if crowd.device.kind != CPU and need > free else None

    def _parts(self, plan: Plan) -> float:
        return max(1, plan.snapshot.total_jobs)
