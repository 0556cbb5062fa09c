"""Companies that were measured and do harm are taken apart: their newest member stands still.

A company whose measured rates sum to less than those of one job alone (`rmixer.interference`) is
vetoed: it is not put together again, and where it runs its newest member is suspended. That keeps
its memory, and goes on as soon as it does no harm to those that are left, at the latest alone.
Where jobs cannot be suspended nothing is added to such a company, and its end is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rmixer.interference.companies import HARMS, company_key
from rmixer.model import Active, Device, Job, Placement, Reason, StateName
from rmixer.policies.base import Plan, placement_of, stands
from rmixer.policies.live import company_on, kind_of

#: Jobs under MPS are not suspended: what that does to its server has not been measured.
NOT_SUSPENDED = ("mps",)
#: A job that has stood still for its own length alone, or for so long, is not passed any more:
#: nothing is started on its device before it has gone on.
PATIENCE_SECONDS = 600.0


def take_apart(plan: Plan) -> None:
    """Suspend the newest member of every company that was measured to do harm."""
    if not plan.snapshot.companies.vetoed:
        return
    for device in plan.snapshot.node.devices:
        company = company_on(device.id, plan.snapshot.active)
        while len(company) > 1 and is_vetoed(plan, device, company):
            newest = next((job for job in reversed(company) if _can_stand(job, device)), None)
            if newest is None:
                break
            plan.suspend(newest, harm(plan, device, company))
            company.remove(newest)


def is_vetoed(plan: Plan, device: Device, company: Iterable[Job]) -> bool:
    """Whether these jobs were measured to do harm side by side on that kind of device."""
    vetoed = plan.snapshot.companies.vetoed
    return bool(vetoed) and company_key(device.kind, map(kind_of, company)) in vetoed


def may_join(plan: Plan, device: Device, company: Sequence[Job], job: Job) -> bool:
    """Whether a job may be added: neither those that are there nor all of them do harm."""
    return not (
        is_vetoed(plan, device, company) or is_vetoed(plan, device, [*company, job])
    )  # fmt: skip


def harm(plan: Plan, device: Device, company: Iterable[Job]) -> Reason:
    """Why such a company is not let run."""
    key = company_key(device.kind, map(kind_of, company))
    total = plan.snapshot.companies.sum_of_rates(key)
    return Reason("Interference", total, HARMS, "sum of rates")


def let_go_on(plan: Plan, device: Device, *, whatever: bool = False) -> None:
    """Let those that stand still on a device go on, the oldest first, where that does no harm.

    Args:
        plan: with what it has started and let go on so far.
        device: where.
        whatever: also where it does.
    """
    for job in standing_on(plan, device) if plan.any_stands else ():
        company = running_on(plan, device)
        if whatever or not company or may_join(plan, device, company, job):
            placement = place_to_go_on(plan, job)
            if placement is not None:
                plan.go_on(job, placement)


def let_stranded_go_on(plan: Plan, *, all_of_them: bool = False) -> None:
    """Nobody stands still on a device that nobody runs on, whatever a policy has planned.

    Args:
        plan: as the policy made it.
        all_of_them: the policy knows nothing of suspended jobs: let all go on that have room.
    """
    if not plan.any_stands:
        return
    for device in plan.snapshot.node.devices:
        if all_of_them:
            let_go_on(plan, device, whatever=True)
        for job in standing_on(plan, device):
            if running_on(plan, device) or job.id in plan.suspended:
                break
            placement = place_to_go_on(plan, job)
            if placement is not None:
                plan.go_on(job, placement)


def standing_on(plan: Plan, device: Device) -> list[Job]:
    """The jobs that stand still on a device, the one first that came first."""
    there = [
        job
        for job in plan.snapshot.active
        if plan.is_standing(job) and placement_of(job).device == device.id
    ]
    return sorted(there, key=_started)


def running_on(plan: Plan, device: Device) -> list[Job]:
    """The jobs that run on a device, with what this plan has started or let go on there."""
    old = [
        job
        for job in plan.snapshot.active
        if not plan.is_standing(job) and placement_of(job).device == device.id
    ]
    new = [job for job in plan.snapshot.pending if _is_started_on(plan, job, device)]
    return [*sorted(old, key=_started), *new]


def is_impatient(plan: Plan, job: Job, seconds: float) -> bool:
    """Whether a job has stood still for so long that nothing more is started in its place.

    Args:
        plan: of now.
        job: that stands still.
        seconds: the job's length alone, infinite where it is not known.
    """
    assert isinstance(job.state, Active)
    if job.state.name != StateName.SUSPENDED:
        return False
    stood = job.state.attempt.suspended_seconds + plan.snapshot.now - job.state.since
    return stood > min(seconds, PATIENCE_SECONDS)


def place_to_go_on(plan: Plan, job: Job) -> Placement | None:
    """The job's place, on other cores where its own are taken; None where there is no room."""
    held = placement_of(job)
    if plan.lacks_to_go_on(held) is None:
        return held
    if not held.cores:
        return None
    other = replace(held, cores=plan.pick_cores(len(held.cores), held.cpu))
    return other if other.cores and plan.lacks_to_go_on(other) is None else None


def _is_started_on(plan: Plan, job: Job, device: Device) -> bool:
    placement = plan.starts.get(job.id)
    return placement is not None and placement.device == device.id


def _can_stand(job: Job, device: Device) -> bool:
    assert isinstance(job.state, Active)
    return (
        device.sharing not in NOT_SUSPENDED and job.state.stopping is None and not stands(job)
    )  # fmt: skip


def _started(job: Job) -> tuple[float, str]:
    assert isinstance(job.state, Active)
    return job.state.attempt.started_at, job.id
