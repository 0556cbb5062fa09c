"""The look-ahead on a node with GPUs: jobs as numbers, the best plan, and what it starts now.

It takes the jobs that have a profile on a GPU of the node; what trains elsewhere, or of which
nothing is known, is left to its caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rmixer.model import CPU, Active, Device, Job, Pending, Placement, Reason
from rmixer.policies.base import Plan, attempt_of, placement_of
from rmixer.policies.live import OVERHEAD, gpu_use, kind_of
from rmixer.policies.lookahead import Memo, choose, remember
from rmixer.policies.outlook import Course, Outlook, Place, Task
from rmixer.policies.traits import (
    booked_memory,
    cores_of,
    devices_of,
    least_seconds,
    profile_on,
    seconds_on,
)
from rmixer.policies.veto import harm, is_impatient, is_vetoed, place_to_go_on

#: Pending jobs that are looked at in one decision; beyond it they wait their turn.
WINDOW = 128
#: Jobs that arrive later than this after the beginning make it a queue and not a batch, seconds.
_BATCH_SECONDS = 1.0
#: A job of which no length is known is taken to be as long as the longest that is known, or this.
_UNKNOWN_SECONDS = 600.0
#: What is left at least of a job that should have ended.
_LEAST_LEFT = 0.01
#: Those that stand still are before all that wait.
_FIRST = 1 << 40


@dataclass(frozen=True, slots=True)
class Options:
    """How the look-ahead is set.

    Attributes:
        margin: what is booked on a GPU, times a job's memory.
        floor: no job is placed where it, or another, would be slower than this.
        budget: simulated plans of local search.
    """

    margin: float = 1.05
    floor: float = 0.25
    budget: int = 200


def plans_for(plan: Plan, job: Job) -> bool:
    """Whether the look-ahead takes a job: it has a profile on a GPU that it may use."""
    return any(
        device.kind != CPU and device.kind in job.profiles
        for device in devices_of(job, plan.snapshot.node)
    )


def look_ahead(plan: Plan, jobs: Sequence[Job], options: Options) -> None:
    """Start what the best plan that was found starts now, and say of the others why they wait.

    Args:
        plan: with the bookings so far.
        jobs: waiting ones that it `plans_for`, by priority.
        options: the settings.
    """
    looked_at = list(jobs[:WINDOW])
    view = _View(plan, looked_at, options)
    if view.outlook.waiting:
        memo = plan.snapshot.memo if isinstance(plan.snapshot.memo, Memo) else None
        rule, course = choose(
            view.outlook, plan.snapshot.now, memo, budget=options.budget, seed=plan.snapshot.seed
        )
        if course.value < math.inf:
            plan.memo = remember(view.outlook, rule, course, plan.snapshot.now)
        for task, device in course.starts:
            job = view.jobs[task]
            if isinstance(job.state, Active):
                again = place_to_go_on(plan, job)
                if again is not None:
                    plan.go_on(job, again)
                continue
            placement = view.placement(job, view.devices[device])
            if plan.lacks(placement) is None:
                plan.start(job, placement)
        view.explain(course)
    for job in jobs[WINDOW:]:
        plan.wait(job, Reason("Priority", detail=f"behind {WINDOW} others"))


class _View:
    """The node and its jobs as the numbers of an `Outlook`."""

    def __init__(self, plan: Plan, pending: Sequence[Job], options: Options) -> None:
        self.plan, self.options = plan, options
        snapshot = plan.snapshot
        self.devices = list(snapshot.node.devices)
        self.index = {device.id: i for i, device in enumerate(self.devices)}
        active = [job for job in snapshot.active if self._counts(job)]
        self.jobs = [*active, *pending]
        self.by_completion = any(job.queued_at > _BATCH_SECONDS for job in self.jobs)
        known = [s for job in self.jobs if (s := least_seconds(job, snapshot.node)) < math.inf]
        self.longest = max(known, default=_UNKNOWN_SECONDS)
        tasks = [self._task(job, placement_of(job)) for job in active]
        tasks += [self._task(job, None) for job in pending]
        self.outlook = self._outlook(tasks)
        self._bring_up_to_now(active)

    def _counts(self, job: Job) -> bool:
        """Whether an active job is part of the view: one that stands still on the CPU is not."""
        device = placement_of(job).device
        if device not in self.index:
            return False
        return not (self.plan.is_standing(job) and self.devices[self.index[device]].kind == CPU)

    def placement(self, job: Job, device: Device) -> Placement:
        """Where the job would run, and what is booked for it."""
        profile = profile_on(job, device.kind)
        node = self.plan.snapshot.node
        return Placement(
            device=device.id,
            threads=job.spec.threads or (profile.threads if profile else None),
            cpu=cores_of(profile),
            memory=min(job.estimate.memory, node.memory),
            device_memory=booked_memory(job, device, self.options.margin),
        )

    def explain(self, course: Course) -> None:
        """Why each job that was looked at and does not start now waits."""
        for task, job in enumerate(self.jobs):
            waits = isinstance(job.state, Pending) and job.id not in self.plan.starts
            if waits:
                self.plan.wait(job, self._reason(task, job, course))

    def _reason(self, task: int, job: Job, course: Course) -> Reason:
        begins = course.begins.get(task)
        devices = devices_of(job, self.plan.snapshot.node)
        wanted = self.devices[begins[1]] if begins else devices[0]
        lacking = self.plan.lacks(self.placement(job, wanted))
        if lacking is not None:
            return lacking
        device = self.index[wanted.id]
        company = [i for i, one in enumerate(self.jobs) if self._on(one) == device]
        if not self.outlook.may_meet(device, company, task):
            there = [self.jobs[i] for i in company]
            harmful = is_vetoed(self.plan, wanted, there)
            return harm(self.plan, wanted, there if harmful else [*there, job])
        worst = min(self.outlook.rates(device, [*company, task])) if company else 1.0
        if worst < self.options.floor:
            return Reason("Interference", worst, self.options.floor)
        when = f" in {begins[0]:.0f} s" if begins else ""
        return Reason("Priority", detail=f"planned on {wanted.id}{when}")

    def _on(self, job: Job) -> int | None:
        placement = self.plan.starts.get(job.id)
        if isinstance(job.state, Active) and not self.plan.is_standing(job):
            placement = placement_of(job)
        return None if placement is None else self.index[placement.device]

    # --- numbers ----------------------------------------------------------------------------

    def _outlook(self, tasks: Sequence[Task]) -> Outlook:
        """With what the active jobs book given back: they book it again in the simulation."""
        free, barred = self.plan.free_device_memory, self._barred()
        places = []
        for d, device in enumerate(self.devices):
            held = sum(task.memory[d] for task in tasks if task.device == d)
            is_cpu = device.kind == CPU
            memory = math.inf if is_cpu else free[device.id] + held
            overhead = OVERHEAD[device.sharing]
            places.append(
                Place(
                    memory, device.most_jobs, is_cpu=is_cpu, overhead=overhead,
                    kind=device.kind, is_barred=device.id in barred,
                )
            )  # fmt: skip
        running = [task for task in tasks if task.device is not None]
        return Outlook(
            tasks,
            places,
            cores=self.plan.free_cpu + sum(task.cpu for task in running),
            host_memory=self.plan.free_memory + sum(task.host_memory for task in running),
            floor=self.options.floor,
            by_completion=self.by_completion,
            correction=self.plan.snapshot.correction,
            vetoed=self.plan.snapshot.companies.vetoed,
        )

    def _barred(self) -> set[str]:
        """The devices on which somebody has stood still for too long."""
        node = self.plan.snapshot.node
        return {
            placement_of(job).device
            for job in self.jobs
            if isinstance(job.state, Active)
            and is_impatient(self.plan, job, least_seconds(job, node))
        }

    def _task(self, job: Job, held: Placement | None) -> Task:
        may_use = {device.id for device in devices_of(job, self.plan.snapshot.node)}
        if held is not None:
            may_use.add(held.device)
        seconds = tuple(
            self._seconds(job, device) if device.id in may_use else math.inf
            for device in self.devices
        )
        memory = [booked_memory(job, d, self.options.margin) for d in self.devices]
        cpu, host = cores_of(next(iter(job.profiles.values()), None)), job.estimate.memory
        if held is not None:
            memory[self.index[held.device]] = held.device_memory
            cpu, host = held.cpu, held.memory
        standing = held is not None and self.plan.is_standing(job)
        where = None if held is None else self.index[held.device]
        return Task(
            id=job.id,
            kind=kind_of(job),
            seconds=seconds,
            uses=tuple(gpu_use(profile_on(job, device.kind)) for device in self.devices),
            memory=tuple(memory),
            cpu=cpu,
            host_memory=host,
            priority=_FIRST if standing else job.spec.priority,
            weight=self._weight(job),
            left=1.0 if held is None else _left(job),
            device=None if standing else where,
            held=where if standing else None,
        )

    def _seconds(self, job: Job, device: Device) -> float:
        seconds = seconds_on(job, device.kind)
        return seconds if 0 < seconds < math.inf else self.longest

    def _weight(self, job: Job) -> float:
        """Of a job's completion where jobs arrive over time: it grows while the job waits."""
        if not self.by_completion:
            return 1.0
        waited = max(0.0, self.plan.snapshot.now - job.queued_at)
        seconds = least_seconds(job, self.plan.snapshot.node)
        return 1.0 + waited / (seconds if seconds < math.inf else self.longest)

    def _bring_up_to_now(self, active: Sequence[Job]) -> None:
        """Take off what running jobs will have done since they last told."""
        look = self.outlook
        for device in range(len(self.devices)):
            members = [i for i in look.running if look.tasks[i].device == device]
            for i, speed in zip(
                members, look.speeds(device, members) if members else (), strict=True
            ):
                job = active[i]
                told = job.progress.at if job.progress else attempt_of(job).started_at
                since = max(0.0, self.plan.snapshot.now - told)
                left = max(_LEAST_LEFT, look.tasks[i].left - since * speed)
                look.tasks[i] = replace(look.tasks[i], left=left)


def _left(job: Job) -> float:
    """The share of its work that a running job has left, as far as it has told."""
    progress = job.progress
    if progress is None or not progress.total_steps:
        return 1.0
    return max(_LEAST_LEFT, 1.0 - progress.step / progress.total_steps)
