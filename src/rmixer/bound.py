"""The limit that no schedule can beat, and the resource that sets it.

A linear program over shares ``x[j, d]`` of each job on each device:

    minimise T   such that   sum_d x[j,d] = 1,   x >= 0
                             sum_{j,d} x[j,d] * work[j,d,r] <= capacity[r] * T     for every station
                             sum_d x[j,d] * solo[j,d] <= T                         for every job

A job's own time is one of the constraints: a long job alone may set the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

#: The name of the bottleneck where one job's own length is the limit.
LONGEST_JOB = "longest job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one job would ask of the machine on one kind of device.

    Attributes:
        solo_seconds: its time alone there.
        work: per station the seconds that it keeps it busy; for cores core-seconds.
    """

    solo_seconds: float
    work: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """The limit and what sets it; no jobs give 0 and an empty name."""

    seconds: float
    bottleneck: str


def makespan_bound(jobs: Sequence[Mapping[str, Load]], capacity: Mapping[str, float]) -> Bound:
    """The makespan that nothing can beat.

    Args:
        jobs: per job its loads by device; at least one device each.
        capacity: per station what it serves per second (cores: their number). Stations that are
            not named limit nothing.

    Raises:
        ValueError: a job has no device.
    """
    if not jobs:
        return Bound(0.0, "")
    if any(not loads for loads in jobs):
        raise ValueError("a job without a device has no bound")
    columns = [(j, load) for j, loads in enumerate(jobs) for load in loads.values()]
    if len(columns) == len(jobs):  # no choice to make: the program solves itself
        return _fixed([load for _, load in columns], capacity)
    return _solve(columns, len(jobs), capacity)


def _fixed(loads: Sequence[Load], capacity: Mapping[str, float]) -> Bound:
    limits = {LONGEST_JOB: max(load.solo_seconds for load in loads)}
    for station, servers in capacity.items():
        limits[station] = sum(load.work.get(station, 0.0) for load in loads) / servers
    bottleneck = max(limits, key=lambda name: limits[name])
    return Bound(limits[bottleneck], bottleneck)


def _solve(columns: Sequence[tuple[int, Load]], jobs: int, capacity: Mapping[str, float]) -> Bound:
    from scipy.optimize import linprog  # noqa: PLC0415  # slow to import, and rarely needed

    names = [*capacity, *[LONGEST_JOB] * jobs]
    upper = np.zeros((len(names), len(columns) + 1))
    equal = np.zeros((jobs, len(columns) + 1))
    for column, (job, load) in enumerate(columns):
        for row, station in enumerate(capacity):
            upper[row, column] = load.work.get(station, 0.0)
        upper[len(capacity) + job, column] = load.solo_seconds
        equal[job, column] = 1.0
    upper[:, -1] = [-servers for servers in capacity.values()] + [-1.0] * jobs
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    answer = linprog(cost, A_ub=upper, b_ub=np.zeros(len(names)), A_eq=equal, b_eq=np.ones(jobs))
    assert answer.success, answer.message
    price = -np.asarray(answer.ineqlin.marginals)
    weight = price * -upper[:, -1]  # how much of T each constraint answers for
    return Bound(float(answer.fun), names[int(np.argmax(weight))])
