"""A job that is in no pair: its numbers are read off those of the same model at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rmixer.errors import UsageError
from rmixer.interference.fit import Fit, share
from rmixer.interference.network import Array

#: Bounds of a demand's log-odds that a line through siblings may reach.
_FURTHEST = 6.0


@dataclass(frozen=True, slots=True)
class Sized:
    """A job as a model with a size: what its siblings tell of it.

    Attributes:
        model: jobs of one model are siblings.
        batch_size: of the training.
    """

    model: str
    batch_size: int


def from_siblings(fit: Fit, jobs: Sequence[Sized], job: int) -> Fit:
    """The fit with one job's numbers read off its siblings', whatever it said of the job itself.

    Log-odds of the demand and the logarithm of the granularity are lines over the logarithm of
    the batch size; siblings of nearly the same size count most. One sibling alone is copied.

    Raises:
        UsageError: the job has no sibling.
    """
    siblings = [i for i, one in enumerate(jobs) if one.model == jobs[job].model and i != job]
    if not siblings:
        raise UsageError(f"no other job is of model {jobs[job].model!r}: its numbers are unknown")
    size = np.log2([one.batch_size for one in jobs])
    at, near = size[siblings], size[job]
    demand, granularity = fit.demand.copy(), fit.granularity.copy()
    odds = np.log(demand / (1 - demand))
    for station in range(demand.shape[1]):
        told = _line(at, odds[siblings, station], near)
        demand[job, station] = share(np.clip(told, -_FURTHEST, _FURTHEST))
        told = _line(at, np.log(granularity[siblings, station]), near)
        granularity[job, station] = np.exp(told)
    return replace(fit, demand=demand, granularity=granularity)


def _line(x: Array, y: Array, at: float) -> float:
    """A straight line through points, the near ones weighing more, read at one place."""
    if len(np.unique(x)) == 1:
        return float(y.mean())
    weight = 1 / (1 + (x - at) ** 2)
    return float(np.polyval(np.polyfit(x, y, 1, w=np.sqrt(weight)), at))
