"""The network's numbers from measured pairs: two per job and station, and the cost of sharing.

A pair measurement is two rates: how fast each of two jobs ran beside the other, relative to alone.
Demands and granularities of all jobs are fitted together, by least squares of the relative errors
with a loss that outliers do not rule (soft L1; Triggs et al., Bundle Adjustment: A Modern
Synthesis, 2000, section 3.3). Each rate depends on the numbers of two jobs only, so the derivatives
are taken pair by pair, all at once: a fit of 26 jobs to 300 pairs takes a second with one station
and three with two.

A job that is in no pair is read off its siblings (`rmixer.interference.siblings`).
"""

from __future__ import annotations

from collections.abc import Iterator
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

    def folds(self, count: int) -> Iterator[tuple[Pairs, Pairs]]:
        """Random parts of about the same size, each once: all the others, and the part."""
        part = np.random.default_rng(0).permutation(len(self)) % count
        for fold in range(count):
            yield self.some(part != fold), self.some(part == fold)

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
        held_out: the same of pairs that were left out in turns; NaN where that was not asked for.
    """

    demand: Array
    granularity: Array
    sharing: Sharing
    error: float = float("nan")
    held_out: float = float("nan")

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


def fit_pairs(
    pairs: Pairs, sharing: Sharing | None = None, *, overhead: bool = True, folds: int = 0
) -> Fit:
    """Fit demands and granularities of all jobs.

    Args:
        pairs: what was measured; a job that is in none of them stays where the fit begins.
        sharing: the stations; by default a GPU with two, time-shared.
        overhead: whether the cost of a co-runner is fitted too, or the sharing's is kept.
        folds: in so many parts, each left out of a fit of its own, the error of unseen pairs is
            measured; 0 does not measure it.

    Raises:
        UsageError: there are no pairs, or fewer than folds.
    """
    if not len(pairs):
        raise UsageError("there are no pairs to fit to; at least one is needed")
    if folds and not 1 < folds <= len(pairs):
        raise UsageError(
            f"{len(pairs)} pairs can be left out in 2 to {len(pairs)} parts, not {folds}"
        )
    chosen = sharing or one_gpu()
    fit = _Problem(pairs, chosen, overhead=overhead).solved()
    if not folds:
        return fit
    wrong = 0.0
    for seen, rest in pairs.folds(folds):
        wrong += len(rest) * _Problem(seen, chosen, overhead=overhead).solved().error_on(rest)
    return replace(fit, held_out=wrong / len(pairs))


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
        demand = share(theta[: self.half].reshape(shape))
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
        more = share(theta[: self.half].reshape(self.jobs, self.stations) + _STEP)
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


def share(odds: Array) -> Array:
    """Log-odds to a share in (0, 1)."""
    return 1.0 / (1.0 + np.exp(-odds))
