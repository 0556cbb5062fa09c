"""Worlds of measured pairs: what two jobs do side by side is looked up, not computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rmixer.errors import UsageError
from rmixer.model import CPU, Node, Profile
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.network import Array, station_rates
from rmixer.simulate.worlds.base import Member, World

#: The rates of two workloads side by side, relative to each alone.
Pairs = Mapping[tuple[str, str], tuple[float, float]]
Use = tuple[float, float]
#: No job of a company is slower than this, whatever the sum of its pairs says.
_LEAST = 0.02


class PairWorld(World):
    """The rate of a job in a pair is the measured one; in a larger company slowdowns add up.

        rate[j] = 1 / (1 + sum over k of (1 / pair(j, k) - 1))

    A pair that was not measured is taken from the network of the fitted profiles. Policies believe
    the fitted profiles.
    """

    #: The workloads of the table.
    workloads: Mapping[str, Profile]

    def _learn(self, pairs: Pairs, profiles: Mapping[str, Profile]) -> None:
        """Take in what was measured, and the profile per workload that policies believe."""
        self.workloads = profiles
        names = list(profiles)
        self._row = {name: index for index, name in enumerate(names)}
        self._slower = network_slowdowns([*profiles.values()])
        for (one, other), (rate, _) in pairs.items():
            self._slower[self._row[one], self._row[other]] = 1.0 / rate - 1.0

    def workload(self, job: SimJob) -> str | None:
        """The workload of the table that a job is; None if it is none."""
        raise NotImplementedError

    def known(self, job: SimJob) -> SimJob:
        """The job with the workload's use on a GPU.

        Raises:
            UsageError: it is none of the workloads.
        """
        name = self.workload(job)
        if name is None:
            raise UsageError(
                f"job {job.spec.name}: world {self.name} knows only {', '.join(self.workloads)}; "
                "a number may follow, as in NAME-1"
            )
        own = self.workloads[name]
        profiles = {
            kind: p
            if kind == CPU
            else replace(p, demand=own.demand, granularity=own.granularity, source=name)
            for kind, p in job.profiles.items()
        }
        return replace(job, profiles=profiles)

    def law(self, node: Node, crowds: Mapping[str, Sequence[Member]]) -> dict[str, list[float]]:
        """The rates, device by device; on the CPU jobs do not meet."""
        return {
            id: [1.0] * len(members)
            if node.device(id).kind == CPU
            else self._rates(members, node.device(id).kind)
            for id, members in crowds.items()  # noqa: A001
        }

    def _rates(self, members: Sequence[Member], kind: str) -> list[float]:
        rows = np.array([self._row[member.profiles[kind].source] for member in members], dtype=int)
        slower = self._slower[np.ix_(rows, rows)]
        np.fill_diagonal(slower, 0.0)
        total = slower.sum(axis=1)
        rates: list[float] = (1.0 / np.maximum(1.0 + total, 1.0 / 1.5)).clip(_LEAST).tolist()
        return rates

    def work(self, member: Member, kind: str) -> dict[str, float]:  # noqa: ARG002
        """Nothing: a table says no capacity, so only the longest job bounds the makespan."""
        return {}


def network_slowdowns(profiles: Sequence[Profile]) -> Array:
    """[i, j]: by how much j slows i in the network of their demands for one station."""
    use = np.array([station_use(profile) for profile in profiles])
    count = len(profiles)
    i, j = (index.ravel() for index in np.indices((count, count)))
    rates = station_rates(
        np.stack([use[i, 0], use[j, 0]], axis=1), np.stack([use[i, 1], use[j, 1]], axis=1)
    )
    slowdowns: Array = (1.0 / rates[:, 0] - 1.0).reshape(count, count)
    return slowdowns


def station_use(profile: Profile) -> Use:
    """Demand and granularity, as of a GPU that is one station."""
    demand = profile.demand.get("compute", 0.0) + profile.demand.get("bandwidth", 0.0)
    return min(1.0, demand), profile.granularity.get("compute", 1.0)


def fit_uses(names: Sequence[str], pairs: Pairs) -> dict[str, Use]:
    """Demand and granularity per workload, so that the network explains the pairs best.

    Least squares on the single rates; granularities are relative, their geometric mean is near 1.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # slow to import

    row = {name: index for index, name in enumerate(names)}
    known = [(row[a], row[b], rates) for (a, b), rates in pairs.items() if a <= b]
    left, right = np.array([i for i, *_ in known]), np.array([j for _, j, _ in known])
    measured = np.array([rates for *_, rates in known])
    count = len(names)

    def uses(x: Array) -> tuple[Array, Array]:
        return 1.0 / (1.0 + np.exp(-x[:count])), np.exp(x[count:])

    def residuals(x: Array) -> Array:
        demand, grain = uses(x)
        rates = station_rates(
            np.stack([demand[left], demand[right]], axis=1),
            np.stack([grain[left], grain[right]], axis=1),
        )
        return np.concatenate([(rates / measured - 1.0).ravel(), 1e-3 * x])

    found = least_squares(residuals, np.zeros(2 * count), max_nfev=60)
    demand, grain = uses(found.x)
    return {name: (float(demand[i]), float(grain[i])) for name, i in row.items()}
