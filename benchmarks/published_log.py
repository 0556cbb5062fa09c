"""Fits the world `log`: granularities that explain the published run, job by job.

    python benchmarks/published_log.py [--facts ../shared/facts]

Each GPU job of the log is followed through the companies that it really had; its predicted duration
is compared with the logged one. Free are the granularity of each workload, the demand of difm, and
the seconds alone of bert4rec, which ended sooner beside others than it is said to take alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from rmixer.simulate.network import Array, station_rates

FREE_DEMAND, FREE_SECONDS = "criteo_difm", "beauty_bert4rec"
#: Keeps what the log does not tell near 1.
RIDGE = 0.01


class Log:
    """The GPU jobs of the log, and who ran beside whom when."""

    def __init__(self, facts: Path) -> None:
        with (facts / "published-workloads.csv").open() as file:
            known = {row["workload"]: row for row in csv.DictReader(file)}
        with (facts / "balance24-log.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["device"].startswith("gpu")]
        self.jobs = [(r["model"], float(r["start_rel"]), float(r["end_rel"])) for r in rows]
        self.models = sorted({model for model, *_ in self.jobs})
        self.demand = {m: float(known[m]["gpu_utilisation_percent"]) / 100 for m in self.models}
        self.seconds = {m: float(known[m]["solo_seconds_500_iterations"]) for m in self.models}
        times = sorted({time for _, *span in self.jobs for time in span})
        self.spans = [
            (a, b, [i for i, (_, x, y) in enumerate(self.jobs) if x <= a and y >= b])
            for a, b in itertools.pairwise(times)
        ]

    def numbers(self, x: Array) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        grain = dict(zip(self.models, np.exp(x[:-2]), strict=True))
        demand = self.demand | {FREE_DEMAND: 1.0 / (1.0 + np.exp(-x[-2]))}
        return grain, demand, self.seconds | {FREE_SECONDS: x[-1]}

    def errors(self, x: Array) -> Array:
        """Per job the relative error of its duration."""
        grain, demand, seconds = self.numbers(x)
        width = max(len(members) for *_, members in self.spans)
        d, s = np.full((len(self.spans), width), -1.0), np.ones((len(self.spans), width))
        for row, (*_, members) in enumerate(self.spans):
            for column, i in enumerate(members):
                d[row, column], s[row, column] = demand[self.jobs[i][0]], grain[self.jobs[i][0]]
        rates = station_rates(d, s)
        return np.array([
            self._duration(i, seconds, rates) / (end - start) - 1.0
            for i, (_, start, end) in enumerate(self.jobs)
        ])  # fmt: skip

    def _duration(self, job: int, seconds: dict[str, float], rates: Array) -> float:
        left, now, rate = seconds[self.jobs[job][0]], self.jobs[job][1], 1.0
        for row, (begin, end, members) in enumerate(self.spans):
            if job not in members:
                continue
            rate = float(rates[row, members.index(job)])
            if rate * (end - begin) >= left:
                return begin + left / rate - self.jobs[job][1]
            left, now = left - rate * (end - begin), end
        return now + left / rate - self.jobs[job][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--facts", type=Path, default=Path("../shared/facts"))
    log = Log(parser.parse_args().facts)
    odds = np.log(log.demand[FREE_DEMAND] / (1.0 - log.demand[FREE_DEMAND]))
    first = np.array([0.0] * len(log.models) + [odds, 27.0])
    draw = np.random.default_rng(0)
    starts = [first + np.where(np.arange(len(first)) < len(log.models), noise, 0.0)
              for noise in (0.0, *draw.normal(0, 1.5, (5, len(first))))]  # fmt: skip

    def residuals(x: Array) -> Array:
        return np.concatenate([log.errors(x), RIDGE * x[:-2]])

    best = min((least_squares(residuals, x, max_nfev=200) for x in starts), key=lambda f: f.cost)
    errors = log.errors(best.x)
    grain, demand, seconds = log.numbers(best.x)
    print(f"mean error {np.abs(errors).mean():.1%}, largest {np.abs(errors).max():.1%}")
    for model in log.models:
        print(f"{model:18} granularity {grain[model]:6.3f}  demand {demand[model]:.3f} "
              f"(published {log.demand[model]:.3f})  seconds {seconds[model]:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
