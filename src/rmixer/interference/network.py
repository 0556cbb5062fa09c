"""How fast jobs run side by side: a closed queueing network with one customer per job.

Alone, job j works a share ``D[j, r]`` of its step at station r; the rest it waits for nothing that
is shared. Beside others it queues. The rates are the fixed point of

    W[j,r]  = sum over k != j of Q[k,r] * (s[k,r] / s[j,r]) ** gamma
    R[j,r]  = D[j,r] * (1 + W[j,r] / c[r])                   one server, or c that work side by side
    R[j,r]  = D[j,r] * max(1, sum over all k of Q[k,r] / m)  m > 1 cores
    b[j]    = min(1, sum D[j,.]),  o[j] = b[j] / sum D[j,.]  overlap: alone, the rate is 1
    rate[j] = 1 / ((1 - b + o * sum over r of R[j,r]) * (1 + e * co-runners))
    Q[j,r]  = rate[j] * R[j,r]

Source: the approximate mean-value analysis of closed networks (Schweitzer 1979; Bard 1979), with
granularity s as in the project's design; fitted to published pair measurements on one V100 it
predicts unseen pairs to about 6.5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmixer.model import HOST_STATIONS, Node, Profile

Array = NDArray[np.float64]

_TOLERANCE = 1e-6
#: A rate that passes by its new value is no fixed point while queues still move.
_QUEUE_TOLERANCE = 2e-5
_MAX_ROUNDS = 200

#: A job of which nothing is known is taken to keep its threads busy all the time.
UNKNOWN = Profile(demand={"cores": 1.0}, source="unknown", confidence=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Something that jobs queue for.

    Attributes:
        name: key in `Profile.demand`.
        servers: how many jobs it serves at once without any slowing down (cores).
        capacity: c of the formula; 1 is time sharing, above 1 kernels that run side by side.
        gamma: how much the others' granularity counts, in [0, 1].
    """

    name: str
    servers: int = 1
    capacity: float = 1.0
    gamma: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The stations of one machine and what each co-runner costs.

    Attributes:
        stations: what is shared.
        overhead: e of the formula: the share by which each co-runner slows a job whatever it does.
    """

    stations: tuple[Station, ...]
    overhead: float = 0.02


def host_sharing(node: Node, overhead: float = 0.02) -> Sharing:
    """The stations of a node's host: its cores, its memory bandwidth, its storage."""
    servers = {"cores": len(node.cores)}
    return Sharing(
        stations=tuple(Station(name=name, servers=servers.get(name, 1)) for name in HOST_STATIONS),
        overhead=overhead,
    )


def predict_rates(profiles: Sequence[Profile], sharing: Sharing) -> Array:
    """The rate of each job of a set that runs side by side.

    Args:
        profiles: one per job.
        sharing: the machine.

    Returns:
        One rate in (0, 1] per job, progress relative to running alone; exactly 1 for a single job.
    """
    if not profiles:
        return np.zeros(0)
    demand = _matrix([p.demand for p in profiles], sharing.stations, missing=0.0)
    granularity = _matrix([p.granularity for p in profiles], sharing.stations, missing=1.0)
    rates: Array = solve(demand[None], granularity[None], sharing)[0]
    return rates


def predict_with_each(
    profiles: Sequence[Profile], candidates: Sequence[Profile], sharing: Sharing
) -> Array:
    """The rates of a set with each of several candidates beside it, solved at once.

    Args:
        profiles: the set.
        candidates: each joins it alone.
        sharing: the machine.

    Returns:
        [candidates, jobs + 1] rates; the candidate's own is the last of its row.
    """
    rows = [[*profiles, candidate] for candidate in candidates]
    if not rows:
        return np.zeros((0, len(profiles) + 1))
    demand = [_matrix([p.demand for p in row], sharing.stations, missing=0.0) for row in rows]
    grain = [_matrix([p.granularity for p in row], sharing.stations, missing=1.0) for row in rows]
    return solve(np.stack(demand), np.stack(grain), sharing)


def _matrix(
    rows: Sequence[Mapping[str, float]], stations: Sequence[Station], missing: float
) -> Array:
    return np.array([[row.get(station.name, missing) for station in stations] for row in rows])


def solve(demand: Array, granularity: Array, sharing: Sharing) -> Array:
    """The fixed point for many sets of jobs at once.

    Args:
        demand: [sets, jobs, stations]; a job with no demand anywhere is not slowed by anyone, so
            shorter sets are padded with zeros.
        granularity: like `demand`, above 0.
        sharing: the machine.

    Returns:
        [sets, jobs] rates in (0, 1]; exactly 1 for a job alone. Padding rows have no meaning.
    """
    present = demand.sum(axis=2) > 0
    total = np.maximum(demand.sum(axis=2), 1e-12)
    busy = np.minimum(1.0, total)
    overlap = busy / total
    others = np.maximum(present.sum(axis=1, keepdims=True) - 1, 0)
    overhead = 1.0 + sharing.overhead * others

    rate = np.ones(demand.shape[:2])
    queue = demand.copy()
    for _ in range(_MAX_ROUNDS):
        residence = _residence(demand, granularity, queue, sharing)
        new = 1.0 / ((1.0 - busy + overlap * residence.sum(axis=2)) * overhead)
        step = np.abs(new - rate).max()
        rate = 0.5 * (rate + new)
        before, queue = queue, rate[:, :, None] * residence
        if step < _TOLERANCE and np.abs(queue - before).max() < _QUEUE_TOLERANCE:
            break
    return np.where(present & (others > 0), np.minimum(rate, 1.0), 1.0)


def _residence(demand: Array, granularity: Array, queue: Array, sharing: Sharing) -> Array:
    """R of the formula, [sets, jobs, stations]: time at each station, waiting included."""
    residence = np.empty_like(demand)
    for index, station in enumerate(sharing.stations):
        d, q = demand[:, :, index], queue[:, :, index]
        if station.servers > 1:
            crowd = np.maximum(1.0, q.sum(axis=1, keepdims=True) / station.servers)
            residence[:, :, index] = d * crowd
        else:
            weight = granularity[:, :, index] ** station.gamma
            waiting = ((q * weight).sum(axis=1, keepdims=True) - q * weight) / weight
            residence[:, :, index] = d * (1.0 + waiting / station.capacity)
    return residence


def busiest_station(profiles: Sequence[Profile], sharing: Sharing) -> tuple[str, float]:
    """The station that a set of jobs loads most, and its utilisation in [0, 1]."""
    rates = predict_rates(profiles, sharing)
    best, utilisation = "", 0.0
    for station in sharing.stations:
        work = sum(
            rate * profile.demand.get(station.name, 0.0)
            for rate, profile in zip(rates, profiles, strict=True)
        )
        share = float(work) / (station.servers * station.capacity)
        if share > utilisation:
            best, utilisation = station.name, min(1.0, share)
    return best, utilisation
