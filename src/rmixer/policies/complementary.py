"""The default: jobs that do not stand in each other's way run side by side.

This version is for the CPU of one node. At each decision it looks at every pending job (one per
family and profile), predicts the rates of the running set with that job added, and starts the one
that adds the most; among equals the longest, so that no long job is left to the end. It stops when
no job adds at least the floor. Cores are booked by what a job was seen to use: a job that waits
for its input books a part of a core and shares it with others of its kind, or lets a computing job
have the rest.

A job that must have a GPU gets one with the memory it declared, or a whole one. The look-ahead by
simulation, sharing GPUs by prediction, arrivals with ageing, and the veto by measurement join here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rmixer.interference import UNKNOWN, Sharing, host_sharing, predict_rates
from rmixer.model import Job, Placement, Profile, Reason
from rmixer.policies.base import Plan, Snapshot, device_memory, pick_device, placement_of

#: Pending jobs that are looked at in one decision; beyond it they wait their turn.
WINDOW = 128
#: Below this a gain is not told apart from another: the longer job goes first.
_SAME_GAIN = 0.05
#: Bookings are made in steps of this, upwards, so that noise does not move them.
_CPU_STEP = 0.05


@dataclass(frozen=True, slots=True)
class _Candidate:
    job: Job
    placement: Placement
    profile: Profile
    gain: float = 0.0


class Complementary:
    """Starts what adds the most to the predicted sum of rates.

    Args:
        floor: no job may be predicted to fall below this rate, and none is started that adds less
            than this to the sum of rates.
        overhead: what each co-runner costs a job whatever it does; e of the network model.
    """

    name = "complementary"

    def __init__(self, *, floor: float = 0.25, overhead: float = 0.02) -> None:
        for key, value in (("floor", floor), ("overhead", overhead)):
            if isinstance(value, bool) or not 0 <= value < 1:
                raise ValueError(
                    f"policy {self.name}: {key} must be from 0 to below 1, not {value!r}"
                )
        self.floor = float(floor)
        self.overhead = float(overhead)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Rebook what runs by what it was seen to use, then add jobs while they add rate."""
        plan = Plan(snapshot)
        sharing = host_sharing(snapshot.node, self.overhead)
        _rebook_by_use(plan)
        running = [_belief(job, placement_of(job).threads or 1) for job in snapshot.active]
        caps = [_cap(placement_of(j), p) for j, p in zip(snapshot.active, running, strict=True)]
        pending = list(snapshot.pending[:WINDOW])
        while pending:
            best = self._best(plan, pending, running, caps, sharing)
            if best is None:
                break
            plan.start(best.job, best.placement)
            running.append(best.profile)
            caps.append(_cap(best.placement, best.profile))
            pending.remove(best.job)
        for job in snapshot.pending[WINDOW:]:
            plan.wait(job, Reason("Priority", detail=f"behind {WINDOW} others"))
        return plan

    def _best(
        self,
        plan: Plan,
        pending: Sequence[Job],
        running: Sequence[Profile],
        caps: Sequence[float],
        sharing: Sharing,
    ) -> _Candidate | None:
        """The job of the highest priority that can start with the largest gain."""
        before = _sum(predict_rates(running, sharing), caps)
        chosen: dict[tuple[object, ...], _Candidate | None] = {}
        best: _Candidate | None = None
        for job in pending:
            if best is not None and job.spec.priority < best.job.spec.priority:
                plan.wait(job, Reason("Priority", detail=f"{best.job.spec.name} goes first"))
                continue
            key = _alike(job)
            if key not in chosen:
                chosen[key] = self._candidate(plan, job, len(pending), running, caps, sharing)
            candidate = chosen[key]
            if candidate is None:
                plan.wait(job, self._why_not(plan, job, running, caps, sharing))
                continue
            candidate = replace(candidate, job=job, gain=candidate.gain - before)
            if candidate.gain < self.floor and running:
                plan.wait(job, Reason("Interference", max(0.0, candidate.gain), self.floor))
            elif best is None or _is_better(candidate, best):
                best = candidate
        return best

    def _candidate(
        self,
        plan: Plan,
        job: Job,
        waiting: int,
        running: Sequence[Profile],
        caps: Sequence[float],
        sharing: Sharing,
    ) -> _Candidate | None:
        """Where the job would run, with the sum of rates then; None where it cannot."""
        threads = job.spec.threads or _share_of_cores(plan, waiting)
        profile = _belief(job, threads)
        placement = self._place(plan, job, threads, profile)
        if placement is None:
            return None
        rates = predict_rates([*running, profile], sharing)
        capped = [*caps, _cap(placement, profile)]
        if running and min(map(min, zip(rates, capped, strict=True))) < self.floor:
            return None
        return _Candidate(job, placement, profile, _sum(rates, capped))

    def _place(self, plan: Plan, job: Job, threads: int, profile: Profile) -> Placement | None:
        """A pinned placement with what the job uses booked, else with the rest of a core."""
        blank = _blank(plan, job, threads)
        wanted = booking(profile, threads)
        for cpu in (wanted, *_remainders(plan, threads, wanted, self.floor)):
            cores = plan.pick_cores(threads, cpu)
            placement = replace(blank, cpu=cpu, cores=cores)
            if cores and plan.lacks(placement) is None:
                return placement
        return None

    def _why_not(
        self,
        plan: Plan,
        job: Job,
        running: Sequence[Profile],
        caps: Sequence[float],
        sharing: Sharing,
    ) -> Reason:
        """The reason with its numbers for a job that has no place now."""
        threads = job.spec.threads or 1
        profile = _belief(job, threads)
        wanted = booking(profile, threads)
        lacking = plan.lacks(replace(_blank(plan, job, threads), cpu=wanted))
        if lacking is not None:
            return lacking
        if not plan.pick_cores(threads, wanted):
            return Reason("Cpu", wanted, max(plan.free_cores.values(), default=0.0))
        rates = predict_rates([*running, profile], sharing)
        worst = min(map(min, zip(rates, [*caps, 1.0], strict=True)))
        return Reason("Interference", float(worst), self.floor)


def _blank(plan: Plan, job: Job, threads: int) -> Placement:
    """Where the job would be placed, with its memory booked and no cores yet."""
    device = pick_device(plan, job)
    return Placement(
        device=device.id,
        threads=threads,
        memory=min(job.estimate.memory, plan.snapshot.node.memory),
        device_memory=device_memory(device, job),
    )


def booking(profile: Profile, threads: int) -> float:
    """Cores' worth to book for a job: what it uses, rounded up, at most its threads."""
    used = profile.demand.get("cores", float(threads))
    steps = math.ceil(round(used / _CPU_STEP, 6))
    return round(min(float(threads), max(_CPU_STEP, steps * _CPU_STEP)), 3)


def _rebook_by_use(plan: Plan) -> None:
    """Book for each running job what it was seen to use: first those that give room back."""
    wanted = []
    for job in plan.snapshot.active:
        held = placement_of(job)
        if held.cores and job.profile is not None and job.profile.source != UNKNOWN.source:
            cpu = booking(_belief(job, held.threads or 1), held.threads or 1)
            wanted.append((cpu - held.cpu, job, replace(held, cpu=cpu)))
    for growth, job, placement in sorted(wanted, key=lambda item: item[0]):
        held = placement_of(job)
        if growth <= 0:
            plan.rebook(job, placement)
            continue
        room = [plan.free_cores[core] + held.cpu / len(held.cores) for core in held.cores]
        cpu = min(placement.cpu, held.cpu + plan.free_cpu, len(room) * min(room))
        grown = replace(held, cpu=math.floor(1000 * cpu) / 1000)
        if grown.cpu > held.cpu:
            plan.rebook(job, grown)


def _remainders(plan: Plan, threads: int, wanted: float, floor: float) -> tuple[float, ...]:
    """What is left on the emptiest cores, where it is enough for a rate above the floor."""
    free = sorted(plan.free_cores.values(), reverse=True)[:threads]
    if len(free) < threads:
        return ()
    rest = math.floor(1000 * min(threads * free[-1], plan.free_cpu)) / 1000
    return (rest,) if rest >= max(_CPU_STEP, wanted * floor) else ()


def _belief(job: Job, threads: int) -> Profile:
    """The job's profile at that number of threads; all threads busy where nothing is known."""
    profile = job.profile
    if profile is None or not profile.demand:
        return replace(UNKNOWN, threads=threads, demand={"cores": float(threads)})
    if profile.threads == threads:
        return profile
    cores = min(float(threads), profile.demand.get("cores", 1.0) * threads / profile.threads)
    return replace(profile, threads=threads, demand={**profile.demand, "cores": cores})


def _cap(placement: Placement, profile: Profile) -> float:
    """The rate that the booked part of a core allows: a job given half its need runs at half."""
    used = profile.demand.get("cores", 0.0)
    return min(1.0, placement.cpu / used) if used > 0 else 1.0


def _sum(rates: Iterable[float], caps: Sequence[float]) -> float:
    return float(sum(min(rate, cap) for rate, cap in zip(rates, caps, strict=True)))


def _share_of_cores(plan: Plan, waiting: int) -> int:
    """Threads for a job when `waiting` jobs, itself included, share the cores that are free."""
    free = sum(core >= 1.0 for core in plan.free_cores.values())
    return max(1, free // max(1, waiting))


def _alike(job: Job) -> tuple[object, ...]:
    """Jobs that any prediction treats alike."""
    spec = job.spec
    return (
        spec.priority,
        spec.device,
        spec.threads,
        job.spec.gpus,
        job.estimate,
        job.profile and (tuple(sorted(job.profile.demand.items())), job.profile.threads),
    )


def expected_seconds(job: Job) -> float:
    """How long a job would take alone, as far as is known; infinite where it is not.

    A job of unknown length counts as long: starting it late is the costlier mistake, and what it
    shows helps to place the others of its family.
    """
    profile = job.profile
    if profile is None:
        return math.inf
    if profile.solo_seconds is not None:
        return profile.solo_seconds
    total = job.spec.total_steps or profile.total_steps
    if profile.step_seconds is None or not total:
        return math.inf
    return profile.startup_seconds + total * profile.step_seconds


def _is_better(candidate: _Candidate, best: _Candidate) -> bool:
    difference = candidate.gain - best.gain
    if abs(difference) > _SAME_GAIN:
        return difference > 0
    return expected_seconds(candidate.job) > expected_seconds(best.job)
