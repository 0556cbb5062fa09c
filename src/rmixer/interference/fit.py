"""The network's numbers from measured pairs: two per job and station, and the cost of sharing.

A pair measurement is two rates: how fast each of two jobs ran beside the other, relative to alone.
Demands and granularities of all jobs are fitted together, by least squares of the relative errors
with a loss that outliers do not rule (soft L1; Triggs et al., Bundle Adjustment: A Modern
Synthesis, 2000, section 3.3). Each rate depends on the numbers of two jobs only, so the derivatives
are taken pair by pair, all at once: a fit of 26 jobs to 300 pairs takes a second with one station
and three with two.

A job that is in no pair is read off its siblings: the same model at other batch sizes (`Sized`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rmixer.errors import UsageError
from rmixer.interference.network import Array, Sharing, Station, solve

Indices = NDArray[np.int64]

#: Where a fit begins: a demand of 0.62 at the first station, 0.12 at the others.
_FIRST, _OTHERS = 0.5, -2.0
#: How strongly numbers are held to where the fit begins; what no pair tells stays there.
_HOLD = 0.03
#: Relative errors above this count less than their square.
_OUTLIER = 0.05
_ROUNDS = 60
_STEP = 1e-4  # of the derivatives, in the logarithms
#: Bounds of a demand's log-odds that a line through siblings may reach.
_FURTHEST = 6.0


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measured pairs.

    Attributes:
        jobs: names, by number.
        index: [pairs, 2] numbers of the two jobs.
        rates: [pairs, 2] their rates relative to alone, above 0; above 1 where the measurement
            says so.
    """

    jobs: tuple[str, ...]
    index: Indices
    rates: Array

    def __post_init__(self) -> None:
        if self.index.shape != self.rates.shape or self.index.shape[1:] != (2,):
            raise UsageError(
                f"pairs need two jobs and two rates each, not {self.index.shape} and "
                f"{self.rates.shape}"
            )
        if not (self.rates > 0).all():
            raise UsageError("a measured rate must be above 0; leave out what could not run")

    def __len__(self) -> int:
        return len(self.index)

    def some(self, kept: NDArray[np.bool_] | Indices) -> Pairs:
        """Only some of them; all jobs stay."""
        return replace(self, index=self.index[kept], rates=self.rates[kept])

    def halves(self, seed: int) -> tuple[Pairs, Pairs]:
        """Two random halves."""
        order = np.random.default_rng(seed).permutation(len(self))
        middle = len(order) // 2
        return self.some(order[:middle]), self.some(order[middle:])

    def with_job(self, job: int) -> NDArray[np.bool_]:
        """Which of them have a job."""
        found: NDArray[np.bool_] = (self.index == job).any(axis=1)
        return found


@dataclass(frozen=True, slots=True)
class Fit:
    """What was fitted.

    Attributes:
        demand, granularity: [jobs, stations]; of granularities only ratios matter.
        sharing: the stations, with the fitted overhead.
        error: mean absolute relative error of the rates that it was fitted to.
    """

    demand: Array
    granularity: Array
    sharing: Sharing
    error: float = float("nan")

    def rates(self, index: Indices) -> Array:
        """Predicted rates of pairs, [pairs, 2]; of larger sets [sets, jobs of a set] likewise."""
        return solve(self.demand[index], self.granularity[index], self.sharing)

    def error_on(self, pairs: Pairs) -> float:
        """Mean absolute relative error of the predicted rates."""
        return relative_error(self.rates(pairs.index), pairs.rates)


def relative_error(predicted: Array, measured: Array) -> float:
    """Mean absolute error relative to what was measured."""
    return float(np.abs(predicted / measured - 1).mean())


def one_gpu(stations: int = 2, *, gamma: float = 1.0, capacity: float = 1.0) -> Sharing:
    """A GPU with so many stations to fit, called as in profiles."""
    names = ("compute", "bandwidth", "transfer")
    if not 1 <= stations <= len(names):
        raise UsageError(f"a GPU has 1 to {len(names)} stations here, not {stations}")
    made = (Station(name=name, capacity=capacity, gamma=gamma) for name in names[:stations])
    return Sharing(stations=tuple(made))


def fit_pairs(pairs: Pairs, sharing: Sharing | None = None, *, overhead: bool = True) -> Fit:
    """Fit demands and granularities of all jobs.

    Args:
        pairs: what was measured; a job that is in none of them stays where the fit begins.
        sharing: the stations; by default a GPU with two, time-shared.
        overhead: whether the cost of a co-runner is fitted too, or the sharing's is kept.

    Raises:
        UsageError: there is no pair.
    """
    if not len(pairs):
        raise UsageError("there are no pairs to fit to; at least one is needed")
    problem = _Problem(pairs, sharing or one_gpu(), overhead=overhead)
    return problem.solved()


class _Problem:
    """Least squares over one vector: log-odds of demands, logarithms of granularities, overhead."""

    def __init__(self, pairs: Pairs, sharing: Sharing, *, overhead: bool) -> None:
        self.pairs, self.sharing, self.overhead = pairs, sharing, overhead
        self.jobs, self.stations = len(pairs.jobs), len(sharing.stations)
        self.half = self.jobs * self.stations
        self.start = np.zeros(2 * self.half + overhead)
        demand = self.start[: self.half].reshape(self.jobs, self.stations)
        demand[:, 0], demand[:, 1:] = _FIRST, _OTHERS
        if overhead:
            self.start[-1] = np.log(max(sharing.overhead, 1e-3))

    def solved(self) -> Fit:
        from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import

        found = least_squares(
            self.residuals,
            self.start,
            jac=self.jacobian,
            loss="soft_l1",
            f_scale=_OUTLIER,
            max_nfev=_ROUNDS,
        )
        fit = self.read(found.x)
        return replace(fit, error=fit.error_on(self.pairs))

    def read(self, theta: Array) -> Fit:
        shape = (self.jobs, self.stations)
        demand = _share(theta[: self.half].reshape(shape))
        granularity = np.exp(theta[self.half : 2 * self.half].reshape(shape))
        sharing = self.sharing
        if self.overhead:
            sharing = replace(sharing, overhead=float(np.exp(theta[-1])))
        return Fit(demand, granularity, sharing)

    def residuals(self, theta: Array) -> Array:
        rates = self.read(theta).rates(self.pairs.index)
        errors = (rates / self.pairs.rates - 1).ravel()
        return np.concatenate([errors, _HOLD * (theta - self.start)])

    def jacobian(self, theta: Array) -> Array:
        """Derivatives of the residuals; those of a pair only by its own jobs' numbers."""
        fit, pairs = self.read(theta), self.pairs
        base = fit.rates(pairs.index)
        count = len(pairs)
        matrix = np.zeros((2 * count, len(theta)))
        first = 2 * np.arange(count)
        for (side, station, kind), moved in zip(
            self._moves(), self._moved(theta, fit), strict=True
        ):
            column = pairs.index[:, side] * self.stations + station + kind * self.half
            slope = (moved - base) / _STEP / pairs.rates
            np.add.at(matrix, (first, column), slope[:, 0])
            np.add.at(matrix, (first + 1, column), slope[:, 1])
        if self.overhead:
            more = theta.copy()
            more[-1] += _STEP
            slope = (self.read(more).rates(pairs.index) - base) / _STEP / pairs.rates
            matrix[:, -1] = slope.ravel()
        return np.vstack([matrix, _HOLD * np.eye(len(theta))])

    def _moves(self) -> list[tuple[int, int, int]]:
        """Side of the pair, station, and demand (0) or granularity (1)."""
        every = range(self.stations)
        return [(side, station, kind) for side in (0, 1) for station in every for kind in (0, 1)]

    def _moved(self, theta: Array, fit: Fit) -> Array:
        """The rates of all pairs when one number of one side is a little larger, [moves, P, 2]."""
        index = self.pairs.index
        more = _share(theta[: self.half].reshape(self.jobs, self.stations) + _STEP)
        demands, granularities = [], []
        for side, station, kind in self._moves():
            demand, granularity = fit.demand[index], fit.granularity[index]
            if kind == 0:
                demand[:, side, station] = more[index[:, side], station]
            else:
                granularity[:, side, station] *= np.exp(_STEP)
            demands.append(demand)
            granularities.append(granularity)
        rates = solve(np.concatenate(demands), np.concatenate(granularities), fit.sharing)
        return rates.reshape(len(demands), *index.shape)


# --- a job that is in no pair ---------------------------------------------------------------------


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
        demand[job, station] = _share(np.clip(told, -_FURTHEST, _FURTHEST))
        told = _line(at, np.log(granularity[siblings, station]), near)
        granularity[job, station] = np.exp(told)
    return replace(fit, demand=demand, granularity=granularity)


def _line(x: Array, y: Array, at: float) -> float:
    """A straight line through points, the near ones weighing more, read at one place."""
    if len(np.unique(x)) == 1:
        return float(y.mean())
    weight = 1 / (1 + (x - at) ** 2)
    return float(np.polyval(np.polyfit(x, y, 1, w=np.sqrt(weight)), at))


def _share(odds: Array) -> Array:
    """Log-odds to a share in (0, 1)."""
    return 1.0 / (1.0 + np.exp(-odds))
