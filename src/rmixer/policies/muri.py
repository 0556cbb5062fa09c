"""Muri's rule (SIGCOMM 2022, doi 10.1145/3544216.3544224): jobs interleave stage by stage.

A step of a job has stages, one per resource: storage, host, GPU, transfer. Jobs of a group take
turns at them, so that a step of the group lasts, in the best order of its jobs, the sum over the
turns of the longest stage of each turn. How well a group uses its resources is the jobs' stage time
over the group's time and the number of resources. Groups of at most as many jobs as resources are
made by matchings of the largest total use: of single jobs into pairs, then of pairs. Muri-S gives
the GPUs to the jobs with the least remaining time first. It stops and regroups running jobs at
intervals; here a running group stays and takes part in the matching as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from rmixer.model import CPU, Job, Reason
from rmixer.policies.base import Plan, Snapshot, number
from rmixer.policies.traits import (
    Crowd,
    booked_memory,
    crowds,
    devices_of,
    gpu_profile,
    gpus_of,
    least_seconds,
    place,
    profile_on,
)

#: The resources of a step, and with them the most jobs of a group.
RESOURCES = 4
#: Beyond so many groups the matching is greedy, with exchanges.
_EXACT = 14

_Stages = tuple[float, float, float, float]


@dataclass(slots=True)
class _Group:
    """Jobs that take turns: those of a device, or waiting ones."""

    jobs: list[Job]
    stages: list[_Stages]
    memory: int
    crowd: Crowd | None = None
    new: list[Job] = field(default_factory=list)

    def with_other(self, other: _Group) -> _Group:
        """Both together; on the device of the one that has one."""
        crowd = self.crowd or other.crowd
        return _Group(
            self.jobs + other.jobs, self.stages + other.stages, self.memory + other.memory,
            crowd, self.new + other.new,
        )  # fmt: skip


class Muri:
    """Groups of jobs whose stages interleave, made by matching.

    Args:
        margin: what is booked for a job, times its memory.
    """

    name = "muri"

    def __init__(self, *, margin: float = 1.0) -> None:
        self.margin = number(self.name, "margin", margin, 1.0)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Match waiting jobs with each other and with those that run, and start what has a GPU."""
        plan = Plan(snapshot)
        found = gpus_of(crowds(plan).values())
        node = snapshot.node
        queue = sorted(
            snapshot.pending, key=lambda job: (-job.spec.priority, least_seconds(job, node))
        )
        room = sum(max(0, RESOURCES - len(crowd.jobs)) for crowd in found)
        able = [job for job in queue if any(c.device in devices_of(job, node) for c in found)]
        groups = [self._running(crowd) for crowd in found if 0 < len(crowd.jobs) < RESOURCES]
        groups += [self._waiting(job, found) for job in able[:room]]
        for _ in range(2):
            groups = self._matched(groups, found)
        self._place(plan, groups, found)
        for job in queue:
            if job.id not in plan.starts and (job in able or not self._elsewhere(plan, job)):
                plan.wait(job, Reason("Policy", detail="no GPU is free, and no group takes it"))
        return plan

    def _running(self, crowd: Crowd) -> _Group:
        return _Group(
            list(crowd.jobs), [stages(job) for job in crowd.jobs], crowd.booked, crowd=crowd
        )

    def _waiting(self, job: Job, found: Sequence[Crowd]) -> _Group:
        memory = max(booked_memory(job, crowd.device, self.margin) for crowd in found)
        return _Group([job], [stages(job)], memory, new=[job])

    def _matched(self, groups: list[_Group], found: Sequence[Crowd]) -> list[_Group]:
        """Groups joined in pairs so that the sum of their uses is largest; the rest as they are."""
        most = max((crowd.device.memory for crowd in found), default=0)
        pairs = []
        for i, j in itertools.combinations(range(len(groups)), 2):
            one, other = groups[i], groups[j]
            fits = one.memory + other.memory <= most or not most
            if fits and not (one.crowd and other.crowd):
                weight = use(one.stages + other.stages)
                if weight > 0:
                    pairs.append((i, j, weight))
        chosen = matching(len(groups), pairs)
        taken = {index for pair in chosen for index in pair}
        joined = [groups[i].with_other(groups[j]) for i, j in chosen]
        return joined + [group for index, group in enumerate(groups) if index not in taken]

    def _place(self, plan: Plan, groups: list[_Group], found: Sequence[Crowd]) -> None:
        """Running groups take their new members; then free GPUs go to the shortest jobs' groups."""
        node = plan.snapshot.node
        groups.sort(
            key=lambda group: (
                group.crowd is None,
                max((-job.spec.priority for job in group.new), default=0),
                min((least_seconds(job, node) for job in group.jobs), default=0.0),
            )
        )
        for group in groups:
            crowd = group.crowd or next((one for one in found if not one.jobs), None)
            if crowd is not None:
                for job in group.new:
                    self._start(plan, crowd, job)

    def _start(self, plan: Plan, crowd: Crowd, job: Job) -> None:
        if crowd.device not in devices_of(job, plan.snapshot.node):
            return
        parts = RESOURCES * len(plan.snapshot.node.devices)
        placement = place(plan, job, crowd.device, margin=self.margin, parts=parts)
        if plan.lacks(placement) is None:
            plan.start(job, placement)
            crowd.join(job, placement)

    def _elsewhere(self, plan: Plan, job: Job) -> bool:
        """Start a job that no GPU may take on the CPU, if that has nothing to do."""
        cpu = crowds(plan).get(CPU)
        if cpu is None or cpu.jobs or any(id == CPU for id in _devices(plan)):  # noqa: A001
            return False
        self._start(plan, cpu, job)
        return job.id in plan.starts


def _devices(plan: Plan) -> list[str]:
    return [placement.device for placement in plan.starts.values()]


def stages(job: Job) -> _Stages:
    """Storage, host, GPU and transfer time of a step alone; shares of it where it is not known."""
    profile = gpu_profile(job) or profile_on(job, CPU)
    if profile is None:
        return (0.0, 1.0, 0.0, 0.0)
    step = profile.step_seconds or 0.0
    if not step and profile.solo_seconds and (job.spec.total_steps or profile.total_steps):
        step = profile.solo_seconds / (job.spec.total_steps or profile.total_steps)
    demand = profile.demand
    gpu = min(1.0, demand.get("compute", 0.0) + demand.get("bandwidth", 0.0))
    storage, transfer = demand.get("storage", 0.0), demand.get("transfer", 0.0)
    host = max(0.0, 1.0 - gpu - storage - transfer)
    length = step or 1.0
    return (storage * length, host * length, gpu * length, transfer * length)


def group_seconds(members: Sequence[_Stages]) -> float:
    """A step of a group in the best order of its jobs."""
    best = float("inf")
    for order in itertools.permutations(members):
        turns = (
            max(stage[(turn - place_) % RESOURCES] for place_, stage in enumerate(order))
            for turn in range(RESOURCES)
        )
        best = min(best, sum(turns))
    return best


def use(members: Sequence[_Stages]) -> float:
    """How well a group uses its resources; 0 where it is too large, or slower than taking turns."""
    if len(members) > RESOURCES:
        return 0.0
    together = group_seconds(members)
    if together > len(members) * min(sum(stage) for stage in members):
        return 0.0
    return sum(sum(stage) for stage in members) / (together * RESOURCES)


def matching(count: int, pairs: Sequence[tuple[int, int, float]]) -> list[tuple[int, int]]:
    """Pairs without a common member of the largest total weight.

    Exactly where the groups are few, else greedily, improved by exchanging partners.
    """
    weight = {frozenset(pair[:2]): pair[2] for pair in pairs}
    chosen = _exactly(count, weight) if count <= _EXACT else _exchanged(_greedy(pairs), weight)
    return sorted((min(pair), max(pair)) for pair in chosen)


def _exactly(count: int, weight: Mapping[frozenset[int], float]) -> list[frozenset[int]]:
    """Dynamic programming over sets of groups, as bit masks."""

    @cache
    def best(free: int) -> tuple[float, tuple[frozenset[int], ...]]:
        if not free:
            return 0.0, ()
        first = (free & -free).bit_length() - 1
        rest = free & ~(1 << first)
        found = best(rest)
        for other in range(first + 1, count):
            pair = frozenset((first, other))
            if rest >> other & 1 and pair in weight:
                total, members = best(rest & ~(1 << other))
                found = max(found, (total + weight[pair], (*members, pair)), key=lambda x: x[0])
        return found

    return list(best((1 << count) - 1)[1])


def _greedy(pairs: Sequence[tuple[int, int, float]]) -> list[frozenset[int]]:
    taken: set[int] = set()
    chosen = []
    for i, j, _ in sorted(pairs, key=lambda pair: -pair[2]):
        if i not in taken and j not in taken:
            taken |= {i, j}
            chosen.append(frozenset((i, j)))
    return chosen


def _exchanged(
    chosen: list[frozenset[int]], weight: Mapping[frozenset[int], float]
) -> list[frozenset[int]]:
    """Two pairs give each other a partner while that is better."""
    better = True
    while better:
        better = False
        for one, other in itertools.combinations(chosen, 2):
            (a, b), (c, d) = sorted(one), sorted(other)
            now = weight[one] + weight[other]
            for two in ((frozenset((a, c)), frozenset((b, d))),
                        (frozenset((a, d)), frozenset((b, c)))):  # fmt: skip
                if sum(weight.get(pair, -1.0) for pair in two) > now + 1e-12:
                    chosen = [pair for pair in chosen if pair not in (one, other)] + [*two]
                    better = True
                    break
            if better:
                break
    return chosen
