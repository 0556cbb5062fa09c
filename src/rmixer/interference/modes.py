"""What a sharing mode costs, from pairs of jobs whose solo profiles are known.

`fit_pairs` finds the numbers of every job. Where they are known already, from profiles, only three
numbers are left, and a few dozen pairs tell them: how much granularity counts (gamma), how much
runs side by side (capacity), and what a co-runner costs (overhead). They belong to the kind of
device and the way it is shared, and predict sets of other jobs there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rmixer.errors import UsageError
from rmixer.interference.fit import Pairs, relative_error
from rmixer.interference.network import Array, Sharing, solve

#: Capacities beyond this are not looked for; kernels of one GPU hardly run four deep.
MOST_CAPACITY = 4.0
#: Likewise: a co-runner that costs half of the speed whatever it does.
MOST_OVERHEAD = 0.5
_OUTLIER = 0.05


@dataclass(frozen=True, slots=True)
class Mode:
    """A sharing mode that was fitted.

    Attributes:
        sharing: with its gamma, capacity and overhead; the stations of one server share the first
            two.
        error: mean absolute relative error of the rates it was fitted to.
        held_out: the same of pairs that were left out in turns; NaN where there were too few.
    """

    sharing: Sharing
    error: float
    held_out: float


def fit_mode(
    pairs: Pairs, demand: Array, granularity: Array, sharing: Sharing, *, folds: int = 5
) -> Mode:
    """Fit gamma, capacity and overhead; demands and granularities stay.

    Args:
        pairs: what was measured.
        demand: [jobs, stations], of `pairs.jobs`, from solo profiles.
        granularity: likewise.
        sharing: the stations; where the search begins. Those of several servers keep theirs.
        folds: the error of unseen pairs is that of so many parts, each left out once.

    Raises:
        UsageError: there is no pair, or the numbers are not of these jobs and stations.
    """
    if not len(pairs):
        raise UsageError("there are no pairs to fit to; at least one is needed")
    wanted = len(pairs.jobs), len(sharing.stations)
    for name, numbers in (("demands", demand), ("granularities", granularity)):
        if numbers.shape != wanted:
            raise UsageError(
                f"{name} need the shape {wanted} of jobs and stations, not {numbers.shape}"
            )
    found = _fitted(pairs, demand, granularity, sharing)
    return Mode(
        found,
        _error(pairs, demand, granularity, found),
        _held_out(pairs, demand, granularity, sharing, folds),
    )


def _held_out(
    pairs: Pairs, demand: Array, granularity: Array, sharing: Sharing, folds: int
) -> float:
    if len(pairs) < 2 * folds:
        return float("nan")
    errors = []
    for seen, rest in pairs.folds(folds):
        found = _fitted(seen, demand, granularity, sharing)
        errors.append(len(rest) * _error(rest, demand, granularity, found))
    return sum(errors) / len(pairs)


def _error(pairs: Pairs, demand: Array, granularity: Array, sharing: Sharing) -> float:
    told = solve(demand[pairs.index], granularity[pairs.index], sharing)
    return relative_error(told, pairs.rates)


def _fitted(pairs: Pairs, demand: Array, granularity: Array, sharing: Sharing) -> Sharing:
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import

    demands, grains = demand[pairs.index], granularity[pairs.index]

    def residuals(numbers: Array) -> Array:
        rates = solve(demands, grains, _with(sharing, numbers))
        errors: Array = (rates / pairs.rates - 1).ravel()
        return errors

    single = [station for station in sharing.stations if station.servers == 1]
    gamma, capacity = (single[0].gamma, single[0].capacity) if single else (1.0, 1.0)
    low, high = np.array([0.0, 1.0, 0.0]), np.array([1.0, MOST_CAPACITY, MOST_OVERHEAD])
    inside = 1e-3 * (high - low)
    start = np.clip([gamma, capacity, sharing.overhead], low + inside, high - inside)
    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_OUTLIER, diff_step=1e-3
    )
    return _with(sharing, found.x)


def _with(sharing: Sharing, numbers: Array) -> Sharing:
    gamma, capacity, overhead = (float(number) for number in numbers)
    stations = tuple(
        replace(station, gamma=gamma, capacity=capacity) if station.servers == 1 else station
        for station in sharing.stations
    )
    return replace(sharing, stations=stations, overhead=overhead)
