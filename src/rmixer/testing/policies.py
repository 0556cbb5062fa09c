"""The contract of a policy, as functions that assert it: for ours and for outsiders' alike."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rmixer.model import (
    Active,
    Attempt,
    Device,
    Estimate,
    Job,
    JobSpec,
    Node,
    Pending,
    Placement,
    Profile,
    Reason,
    StateName,
)
from rmixer.policies.base import Plan, Policy, Snapshot
from rmixer.resources import GIB


def make_job(
    name: str, *, profile: Profile | None = None, memory: int = GIB, **spec: object
) -> Job:
    """A pending job; `spec` are further fields of its `JobSpec`."""
    return Job(
        spec=JobSpec(id=name, name=name, kind="command", **spec),  # type: ignore[arg-type]
        state=Pending(Reason("Submitted"), since=0.0),
        queued_at=0.0,
        estimate=Estimate(memory=memory),
        profile=profile,
    )


def make_active(job: Job, placement: Placement) -> Job:
    """The job as it runs there."""
    attempt = Attempt(number=1, token=f"t.{job.id}.1", placement=placement, started_at=0.0)
    return replace(job, state=Active(StateName.RUNNING, attempt, since=0.0))


def make_snapshot(
    pending: Iterable[Job], active: Iterable[Job] = (), *, cores: int = 2, memory: int = 8 * GIB
) -> Snapshot:
    """A machine with one GPU of 16 GiB, and these jobs, the pending ones by priority."""
    gpu = Device(id="GPU-0", kind="T4", index=0, memory=16 * GIB)
    node = Node(cores=tuple(range(cores)), memory=memory, devices=(Device(), gpu))
    ordered = tuple(sorted(pending, key=lambda job: -job.spec.priority))
    running = tuple(active)
    return Snapshot(
        now=0.0,
        node=node,
        pending=ordered,
        active=running,
        total_jobs=len(ordered) + len(running),
    )


def check_plan(snapshot: Snapshot, plan: Plan) -> None:
    """A plan starts pending jobs only, within what there is, and says why the rest waits."""
    pending = {job.id for job in snapshot.pending}
    assert set(plan.starts) <= pending
    assert pending - set(plan.starts) <= set(plan.waits), "a job that waits has a reason"
    assert plan.free_cpu >= 0
    assert plan.free_memory >= 0
    assert min(plan.free_device_memory.values()) >= 0
    for reason in plan.waits.values():
        assert str(reason)


def check_starts_something(policy: Policy, jobs: Sequence[Job]) -> None:
    """With the machine empty and a job that fits, something starts; so every run ends."""
    snapshot = make_snapshot(jobs)
    plan = policy.plan(snapshot)
    check_plan(snapshot, plan)
    assert plan.starts, "nothing would ever start"


def check_is_pure(policy: Policy, snapshot: Snapshot) -> None:
    """The same snapshot twice gives the same plan, and is as it was."""
    before = copy.deepcopy(snapshot)
    first, second = policy.plan(snapshot), policy.plan(snapshot)
    assert (first.starts, first.rebooked, first.waits) == (
        second.starts,
        second.rebooked,
        second.waits,
    )
    assert snapshot == before
