"""Several policies on the same jobs, in the same world, side by side: one document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rmixer import catalog
from rmixer.errors import RmixerError
from rmixer.model import Node, StateName
from rmixer.policies.base import Policy
from rmixer.simulate.attainable import attainable_makespan
from rmixer.simulate.engine import Result, StuckError, run_once
from rmixer.simulate.jobs import SimJob, arriving, check_fit
from rmixer.simulate.limits import makespan_limit
from rmixer.simulate.worlds.base import World

SCHEMA_VERSION = 1
#: What is compared unless policies are named.
POLICIES = ("sequential", "exclusive", "mps-rounds", "published-mix", "complementary")


@dataclass(frozen=True, slots=True)
class Simulated:
    """One policy's run.

    Attributes:
        policy: as it was asked for.
        result: what happened.
        figures: the numbers of the document.
    """

    policy: str
    result: Result
    figures: dict[str, Any]


class Comparison:
    """The same jobs on the same machine in the same world, for one policy after another.

    Args:
        jobs: with what is declared of them.
        node: the machine.
        world: the truth.
        seed: of everything that is drawn.
        load: jobs arrive at this share of the attainable throughput: at random (a Poisson process)
            if all were there from the beginning, else as they did but faster or slower; None leaves
            the arrivals that they have.

    Raises:
        UsageError: the world does not know a job.
        NeverFitsError: a job can run nowhere on the machine.
    """

    def __init__(
        self,
        jobs: Sequence[SimJob],
        node: Node,
        world: World,
        *,
        seed: int = 0,
        load: float | None = None,
    ) -> None:
        self.node, self.world, self.seed = node, world, seed
        self.jobs = [world.known(job) for job in jobs]
        check_fit(self.jobs, node)
        check_fit([world.believed(job, seed) for job in self.jobs], node)
        self.members = [world.member(job, seed) for job in self.jobs]
        if load is not None:
            seconds = self.attainable_seconds or self.solo_seconds / len(node.devices)
            self.jobs = arriving(self.jobs, seconds / load, seed)

    @cached_property
    def attainable_seconds(self) -> float | None:
        """What memory and the law allow; None where it is not computed."""
        return attainable_makespan(self.jobs, self.members, self.node, self.world)

    @cached_property
    def bound(self) -> tuple[float | None, str]:
        """What nothing can beat, and what sets it."""
        found = makespan_limit(self.jobs, self.members, self.node, self.world)
        return (None, "") if found is None else (found.seconds, found.bottleneck)

    @cached_property
    def solo_seconds(self) -> float:
        """All jobs one after the other, each where it is fastest."""
        return sum(
            min(member.seconds(kind) for kind in job.profiles)
            for job, member in zip(self.jobs, self.members, strict=True)
        )

    @cached_property
    def sequential_seconds(self) -> float:
        """The makespan of one job at a time on the machine."""
        return self._run(catalog.build_policy("sequential")).state.at

    @property
    def with_arrivals(self) -> bool:
        """Whether not all jobs are there from the beginning."""
        return any(job.arrival > 0 for job in self.jobs)

    def simulate(self, policy: str) -> Result:
        """What a policy does, without its figures."""
        return self._run(catalog.build_policy(policy))

    def run(self, policy: str, instance: Policy | None = None) -> Simulated:
        """Simulate one policy.

        Raises:
            UsageError: there is no such policy.
            RmixerError: the policy leaves jobs waiting for ever.
        """
        built = catalog.build_policy(policy) if instance is None else instance
        try:
            result = self._run(built)
        except StuckError as error:
            raise RmixerError(f"policy {policy}: {error}") from error
        return Simulated(policy, result, self._figures(policy, result))

    def _run(self, policy: Policy) -> Result:
        return run_once(self.jobs, self.node, policy, self.world, seed=self.seed)

    def _figures(self, policy: str, result: Result) -> dict[str, Any]:
        makespan = max((span.end for span in result.spans), default=0.0)
        bound, bottleneck = self.bound
        attainable = None if self.with_arrivals else self.attainable_seconds
        failed = any(job.state.name != StateName.SUCCEEDED for job in result.state.jobs.values())
        states = [job.state.name for job in result.state.jobs.values()]
        return {
            "policy": policy,
            "makespan_seconds": makespan,
            "speedup_over_sequential": _ratio(self.sequential_seconds, makespan),
            "normalized_throughput": _ratio(self.solo_seconds, makespan),
            "bound_seconds": bound,
            "bottleneck": bottleneck,
            "attainable_seconds": attainable,
            "over_bound": None if failed else _ratio(makespan, bound),
            "over_attainable": None if failed else _ratio(makespan, attainable),
            **self._waiting(result),
            "oom_count": sum(s.state == StateName.OUT_OF_MEMORY for s in result.spans),
            "attempts": len(result.spans),
            "succeeded": states.count(StateName.SUCCEEDED),
            "failed": len(states) - states.count(StateName.SUCCEEDED),
            **_rate_errors(result),
            "devices": self._devices(result, makespan),
        }

    def _waiting(self, result: Result) -> dict[str, Any]:
        """Completion times and queueing of the jobs that succeeded."""
        started: dict[str, float] = {}
        ended: dict[str, float] = {}
        for span in result.spans:
            started.setdefault(span.job, span.start)
            if span.state == StateName.SUCCEEDED:
                ended[span.job] = span.end
        done = [job for job in self.jobs if job.id in ended]
        times = [ended[job.id] - job.arrival for job in done]
        queued = [started[job.id] - job.arrival for job in done]
        slowdowns = [time / job.least_seconds for time, job in zip(times, done, strict=True)]
        return {
            "mean_jct_seconds": _mean(times),
            "p95_jct_seconds": percentile(times, 0.95),
            "p99_jct_seconds": percentile(times, 0.99),
            "mean_queueing_seconds": _mean(queued),
            "max_queueing_seconds": max(queued, default=None),
            "mean_slowdown": _mean(slowdowns),
            "p99_slowdown": percentile(slowdowns, 0.99),
            "max_slowdown": max(slowdowns, default=None),
        }

    def _devices(self, result: Result, makespan: float) -> list[dict[str, Any]]:
        return [
            {
                "id": device.id,
                "kind": device.kind,
                "busy": _ratio(result.busy_seconds[device.id], makespan),
                "mean_rate_sum": _ratio(result.solo_seconds[device.id], makespan),
                "utilisation": {
                    station: _ratio(seconds, makespan)
                    for station, seconds in sorted(result.used_seconds[device.id].items())
                },
            }
            for device in self.node.devices
        ]

    def document(self, runs: Sequence[Simulated], **about: Any) -> dict[str, Any]:
        """All of it as one document."""
        bound, bottleneck = self.bound
        return {
            "schema_version": SCHEMA_VERSION,
            **about,
            "jobs": len(self.jobs),
            "machine": {
                "name": self.node.name,
                "cores": len(self.node.cores),
                "memory_bytes": self.node.memory,
                "devices": [
                    {"id": d.id, "kind": d.kind, "memory_bytes": d.memory, "sharing": d.sharing}
                    for d in self.node.devices
                ],
            },
            "seed": self.seed,
            "sequential_seconds": self.sequential_seconds,
            "bound_seconds": bound,
            "bottleneck": bottleneck,
            "attainable_seconds": None if self.with_arrivals else self.attainable_seconds,
            "policies": [run.figures for run in runs],
        }


def _rate_errors(result: Result) -> dict[str, Any]:
    """How far the predicted rates were off the measured ones; None where none was measured."""
    errors = result.state.correction.errors
    known = errors.count > 0
    return {
        "rates_measured": errors.count,
        "rate_error": errors.of_prediction if known else None,
        "corrected_rate_error": errors.of_correction if known else None,
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed, interpolated; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(one: float, other: float | None) -> float | None:
    return one / other if other else None


def compare(
    jobs: Sequence[SimJob],
    node: Node,
    policies: Mapping[str, Policy] | Sequence[str] = POLICIES,
    *,
    world: World | str = "network",
    seed: int = 0,
    load: float | None = None,
    **about: Any,
) -> tuple[dict[str, Any], Comparison, list[Simulated]]:
    """Compare policies; the document, and what it was made of.

    Args:
        jobs: with what is declared of them.
        node: the machine.
        policies: by name, or instances by the name to show.
        world: by name, or an instance.
        seed: of everything that is drawn.
        load: see `Comparison`.
        about: further keys of the document.
    """
    found = catalog.build_world(world) if isinstance(world, str) else world
    named = policies if isinstance(policies, Mapping) else dict.fromkeys(policies)
    built = {
        name: catalog.build_policy(name) if one is None else one for name, one in named.items()
    }
    comparison = Comparison(jobs, node, found, seed=seed, load=load)
    runs = [comparison.run(name, one) for name, one in built.items()]
    text = world if isinstance(world, str) else found.name
    return comparison.document(runs, world=text, **about), comparison, runs
