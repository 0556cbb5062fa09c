"""The default: jobs that do not stand in each other's way run side by side.

On the CPU, at each decision it looks at every pending job (one per
profile), predicts the rates of the running set with that job added, and starts the one that adds
the most; among equals one of a family of which nothing is known, since what it shows helps to place
the rest, then the longest, so that no long job is left to the end. It stops when no job adds at
least the floor. Cores are booked by what a job was seen to use: a job that waits
for its input books a part of a core and shares it with others of its kind, or lets a computing job
have the rest.

Jobs with a profile on a GPU of the node are planned by looking ahead (`gpus.look_ahead`). A job
that must have a GPU and of which nothing is known gets one with the memory it declared, or a whole
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rmixer.interference import (
    UNKNOWN,
    Sharing,
    host_sharing,
    predict_rates,
    predict_with_each,
)
from rmixer.model import CPU, Job, Pending, Placement, Profile, Reason, about_fastest
from rmixer.policies.base import (
    Plan,
    Snapshot,
    device_memory,
    number,
    pick_device,
    placement_of,
    whole_number,
)
from rmixer.policies.gpus import Options, look_ahead, plans_for
from rmixer.policies.ledger import core_share
from rmixer.policies.live import at_threads, kind_of, use_within
from rmixer.policies.traits import seconds_on
from rmixer.policies.veto import (
    harm,
    is_vetoed,
    let_go_on,
    may_join,
    running_on,
    take_apart,
)
from rmixer.policies.weighted import decide

#: Pending jobs that are looked at in one decision; beyond it they wait their turn.
WINDOW = 128
#: With more GPUs the weighted rule decides alone.
MOST_GPUS = 16
#: Below this a gain is not told apart from another: the longer job goes first.
_SAME_GAIN = 0.05
#: A rate that falls by less than this is not held against the job that joins.
_NOISE = 0.01
#: Bookings are made in steps of this, upwards, so that noise does not move them.
_CPU_STEP = 0.05


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A job with a place that it could take, and what the set would gain by it."""

    job: Job
    placement: Placement
    gain: float


@dataclass(frozen=True, slots=True)
class _Use:
    """What a job uses of the machine in its place.

    Attributes:
        profile: its demand, on cores no more than is booked for it.
        cap: the rate that the booked part of its cores allows: at half its need half its speed.
        kind: of job, if it is on the CPU; what was measured there does not hold on a GPU.
    """

    profile: Profile
    cap: float
    kind: str | None


@dataclass(slots=True)
class _Company:
    """The jobs that run, and those that this plan has started.

    Attributes:
        plan: with the bookings so far.
        sharing: the stations of the machine.
        uses: what each uses within its booking.
        families: theirs.
    """

    plan: Plan
    sharing: Sharing
    uses: list[_Use]
    families: set[str]

    @classmethod
    def of(cls, plan: Plan, sharing: Sharing) -> _Company:
        """Those that run when the plan is begun."""
        company = cls(plan, sharing, [], set())
        for job in plan.snapshot.active:
            if not plan.is_standing(job):
                company._admit(job, placement_of(job))
        return company

    def join(self, candidate: _Candidate) -> None:
        """Start a candidate."""
        self.plan.start(candidate.job, candidate.placement)
        self._admit(candidate.job, candidate.placement)

    def rates(self) -> list[float]:
        """The rate of each."""
        rates = predict_rates([use.profile for use in self.uses], self.sharing)
        return self._corrected(self.uses, rates)

    def rates_with(self, candidates: Sequence[_Use]) -> list[list[float]]:
        """For each candidate the rate of each, and last its own, if it alone joined them."""
        profiles = [use.profile for use in self.uses]
        rows = predict_with_each(profiles, [use.profile for use in candidates], self.sharing)
        return [
            self._corrected([*self.uses, candidate], row)
            for row, candidate in zip(rows, candidates, strict=True)
        ]

    def _corrected(self, uses: Sequence[_Use], rates: Iterable[float]) -> list[float]:
        """What the booked cores allow, corrected by what was measured on the CPU."""
        found = [min(float(rate), use.cap) for rate, use in zip(rates, uses, strict=True)]
        correction = self.plan.snapshot.correction
        there = [at for at, use in enumerate(uses) if use.kind is not None]
        if not correction.effects or len(there) <= 1:
            return found
        kinds = [kind for use in uses if (kind := use.kind) is not None]
        corrected = correction.correct(kinds, [found[at] for at in there])
        for at, rate in zip(there, corrected, strict=True):
            found[at] = float(rate)
        return found

    def is_new(self, job: Job) -> bool:
        """Whether nothing is known of the job, and none of its family is here to show it."""
        return job.profile is None and job.spec.family not in self.families

    def _admit(self, job: Job, placement: Placement) -> None:
        self.uses.append(_use(job, placement))
        if job.spec.family:
            self.families.add(job.spec.family)


class Complementary:
    """Starts what adds the most to the predicted sum of rates.

    Args:
        floor: no job may be predicted to fall below this rate, and none is started that adds less
            than this to the sum of rates.
        overhead: what each co-runner costs a job whatever it does; e of the network model.
        margin: what is booked on a GPU, times a job's memory.
        budget: simulated plans of the look-ahead's local search; 0 leaves the portfolio alone.
        suspend: the newest member of a company that was measured to do harm stands still; else
            nothing is added to it.
    """

    name = "complementary"
    learns = True
    suspends = True

    def __init__(
        self,
        *,
        floor: float = 0.25,
        overhead: float = 0.02,
        margin: float = 1.05,
        budget: int = 200,
        suspend: bool = True,
    ) -> None:
        for key, value in (("floor", floor), ("overhead", overhead)):
            if isinstance(value, bool) or not 0 <= value < 1:
                raise ValueError(
                    f"policy {self.name}: {key} must be from 0 to below 1, not {value!r}"
                )
        self.floor = float(floor)
        self.overhead = float(overhead)
        if suspend not in (True, False):
            raise ValueError(f"policy {self.name}: suspend must be true or false, not {suspend!r}")
        self.suspend = suspend
        self.options = Options(
            margin=number(self.name, "margin", margin, 1.0),
            floor=self.floor,
            budget=whole_number(self.name, "budget", budget, 0),
        )

    def plan(self, snapshot: Snapshot) -> Plan:
        """Rebook what runs by what it was seen to use, then add jobs while they add rate."""
        plan = Plan(snapshot)
        if self.suspend:
            take_apart(plan)
        if self._is_large(snapshot):
            return self._at_scale(plan)
        _rebook_by_use(plan)
        for_gpus = [job for job in snapshot.pending if plans_for(plan, job)]
        if for_gpus or _any_stands_on_a_gpu(plan):
            look_ahead(plan, for_gpus, self.options)
        taken = {job.id for job in for_gpus}
        others = [job for job in snapshot.pending if job.id not in taken]
        self._fill_cpu(plan, others)
        return plan

    def _is_large(self, snapshot: Snapshot) -> bool:
        """Whether looking ahead would cost too much: many GPUs, or many waiting jobs.

        Jobs of several GPUs are planned by the weighted rule too.
        """
        devices = snapshot.node.devices
        if len(devices) > MOST_GPUS + 1:
            return True
        if all(device.kind == CPU for device in devices):
            return False
        return len(snapshot.pending) > WINDOW or any(
            (job.spec.gpus or 1) > 1 for job in (*snapshot.pending, *snapshot.active)
        )

    def _at_scale(self, plan: Plan) -> Plan:
        """The weighted rule, at a cost that grows with what has changed."""
        if any(True for _ in plan.pinned):
            _rebook_by_use(plan)
        if plan.any_stands:
            for device in plan.snapshot.node.devices:
                let_go_on(plan, device)
        fleet = decide(plan, margin=self.options.margin, floor=self.options.floor)
        if fleet.others:
            others = sorted(fleet.others.values(), key=lambda job: -job.spec.priority)
            self._fill_cpu(plan, others)
        return plan

    def _fill_cpu(self, plan: Plan, others: Sequence[Job]) -> None:
        """Start jobs that are not planned on GPUs while they add rate."""
        for device in plan.snapshot.node.devices:
            if device.kind == CPU:
                let_go_on(plan, device)
        company = _Company.of(plan, host_sharing(plan.snapshot.node, self.overhead))
        pending = list(others[:WINDOW])
        while pending:
            best = self._best(company, pending)
            if best is None:
                break
            company.join(best)
            pending.remove(best.job)
        behind = Reason("Priority", detail=f"behind {WINDOW} others")
        for job in others[WINDOW:]:
            if not (isinstance(job.state, Pending) and job.state.reason == behind):
                plan.wait(job, behind)

    def _best(self, company: _Company, pending: Sequence[Job]) -> _Candidate | None:
        """The job of the highest priority that can start with the largest gain."""
        best: _Candidate | None = None
        for _, members in groupby(pending, key=lambda job: job.spec.priority):
            if best is None:
                candidates = self._candidates(company, list(members), len(pending))
                best = _choose(company, candidates)
                continue
            for job in members:
                detail = f"{best.job.spec.name} goes first"
                company.plan.wait(job, Reason("Priority", detail=detail))
        return best

    def _candidates(self, company: _Company, jobs: Sequence[Job], waiting: int) -> list[_Candidate]:
        """Those that could start now, with what each would gain; of the others says why not."""
        places: dict[tuple[object, ...], Placement | Reason] = {}
        uses: dict[tuple[object, ...], _Use] = {}
        for job in jobs:
            if (key := _alike(job)) not in places:
                places[key] = place = self._place(company.plan, job, waiting)
                if isinstance(place, Placement):
                    uses[key] = _use(job, place)
        rates = dict(zip(uses, company.rates_with(list(uses.values())), strict=True))
        before = company.rates()
        candidates = []
        for job in jobs:
            key = _alike(job)
            place = _unless_vetoed(company.plan, job, places[key])
            if isinstance(place, Placement):
                worst = _worst(before, rates[key]) if company.uses else math.inf
                if worst >= self.floor:
                    gain = sum(rates[key]) - sum(before)
                    candidates.append(_Candidate(job, place, gain))
                    continue
                place = Reason("Interference", max(0.0, worst), self.floor)
            company.plan.wait(job, place)
        return candidates

    def _place(self, plan: Plan, job: Job, waiting: int) -> Placement | Reason:
        """A pinned placement with what the job uses booked, else with the rest of a core."""
        threads = job.spec.threads or _threads_within(job, _share_of_cores(plan, waiting))
        blank = _blank(plan, job, threads)
        wanted = booking(at_threads(job.profile, threads), threads)
        for cpu in (wanted, *_remainders(plan, threads, wanted, self.floor)):
            placement = replace(blank, cpu=cpu, cores=plan.pick_cores(threads, cpu))
            if placement.cores and plan.lacks(placement) is None:
                return placement
        free = sorted(plan.free_cores.values(), reverse=True)[:threads]
        room = max(0.0, free[-1]) if len(free) == threads else 0.0
        return plan.lacks(replace(blank, cpu=wanted)) or Reason("Cpu", wanted / threads, room)


def _any_stands_on_a_gpu(plan: Plan) -> bool:
    return plan.any_stands and any(
        plan.is_standing(job) and placement_of(job).device != CPU for job in plan.snapshot.active
    )


def _unless_vetoed(plan: Plan, job: Job, place: Placement | Reason) -> Placement | Reason:
    """The place, unless the jobs there were measured to do harm with this one, or without it."""
    if not isinstance(place, Placement) or not plan.snapshot.companies.vetoed:
        return place
    device = plan.snapshot.node.device(place.device)
    there = running_on(plan, device)
    if may_join(plan, device, there, job):
        return place
    return harm(plan, device, there if is_vetoed(plan, device, there) else [*there, job])


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
        if plan.is_standing(job):
            continue
        if held.cores and job.profile is not None and job.profile.source != UNKNOWN.source:
            cpu = booking(at_threads(job.profile, held.threads or 1), held.threads or 1)
            wanted.append((cpu - held.cpu, job, replace(held, cpu=cpu)))
    for growth, job, placement in sorted(wanted, key=lambda item: item[0]):
        held = placement_of(job)
        if growth <= 0:
            plan.rebook(job, placement)
            continue
        share = core_share(held)
        room = min(plan.free_cores.get(core, 0.0) + share for core in held.cores)
        cpu = min(placement.cpu, held.cpu + plan.free_cpu, len(held.cores) * room)
        for size in (cpu, len(held.cores) * math.floor(1000 * cpu / len(held.cores)) / 1000):
            grown = replace(held, cpu=math.floor(1000 * size) / 1000)
            if grown.cpu > held.cpu and plan.lacks_to_rebook(job, grown) is None:
                plan.rebook(job, grown)
                break


def _remainders(plan: Plan, threads: int, wanted: float, floor: float) -> tuple[float, ...]:
    """What is left on the emptiest cores, where it is enough for a rate above the floor."""
    free = sorted(plan.free_cores.values(), reverse=True)[:threads]
    if len(free) < threads:
        return ()
    rest = math.floor(1000 * min(threads * free[-1], plan.free_cpu)) / 1000
    return (rest,) if rest >= max(_CPU_STEP, wanted * floor) else ()


def _use(job: Job, placement: Placement) -> _Use:
    """What the job uses there."""
    kind = kind_of(job) if placement.device == CPU else None
    return _Use(*use_within(job.profile, placement), kind)


def _share_of_cores(plan: Plan, waiting: int) -> int:
    """Threads for a job when `waiting` jobs, itself included, share the cores that are free."""
    free = sum(core >= 1.0 for core in plan.free_cores.values())
    return max(1, free // max(1, waiting))


def _threads_within(job: Job, share: int) -> int:
    """The threads of a job's share that make it faster, by its curve; all where it has none."""
    speeds = job.profile.speeds if job.profile is not None else {}
    tried = {threads: speed for threads, speed in speeds.items() if threads <= share}
    if not tried:
        return share
    best = about_fastest(tried)
    return share if best == max(speeds) else best  # the most that was tried: more may help


def _alike(job: Job) -> tuple[object, ...]:
    """Jobs that any prediction treats alike."""
    spec = job.spec
    return (
        spec.priority,
        spec.device,
        spec.threads,
        job.spec.gpus,
        job.estimate,
        job.profile
        and (
            tuple(sorted(job.profile.demand.items())),
            tuple(sorted(job.profile.granularity.items())),
            job.profile.threads,
            tuple(sorted(job.profile.speeds.items())),
        ),
    )


def _choose(company: _Company, candidates: Sequence[_Candidate]) -> _Candidate | None:
    """The most gain; among equals one of a family that nothing is known of, then the longest."""
    if not candidates:
        return None
    most = max(candidate.gain for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.gain >= most - _SAME_GAIN]
    return max(equals, key=lambda candidate: _rank(company, candidate.job))


def _worst(before: Sequence[float], after: Sequence[float]) -> float:
    """The least of what a candidate gains, of its own rate, and of the rates that it lowers."""
    slowed = [now for now, was in zip(after, before, strict=False) if now < was - _NOISE]
    return min(sum(after) - sum(before), after[-1], *slowed)


def _rank(company: _Company, job: Job) -> tuple[bool, float]:
    """One of unknown length counts as long: to start it late is the costlier mistake."""
    return company.is_new(job), seconds_on(job, CPU)
