"""The jobs of a simulation: what is declared of each, and when it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from rmixer.errors import NeverFitsError, UsageError
from rmixer.model import CPU, Estimate, JobSpec, Node, Profile
from rmixer.policies.base import never_fits
from rmixer.spec import declared_profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One job of a simulation.

    Attributes:
        spec: as in a run.
        profiles: what it uses per kind of device of the machine, each with ``solo_seconds``.
        estimate: its memory.
        arrival: when it is submitted, seconds.
    """

    spec: JobSpec
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    estimate: Estimate
    arrival: float = 0.0

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    @property
    def least_seconds(self) -> float:
        """Its time alone where it is fastest."""
        return min(seconds_of(profile) for profile in self.profiles.values())


def seconds_of(profile: Profile) -> float:
    """The time alone of a profile that has one."""
    assert profile.solo_seconds is not None
    return profile.solo_seconds


def jobs_from_specs(specs: Sequence[JobSpec], node: Node) -> list[SimJob]:
    """The jobs of a jobs file, all there from the beginning.

    Raises:
        UsageError: a job declares no length.
        NeverFitsError: a job can run nowhere on the machine.
    """
    kinds = list(dict.fromkeys(device.kind for device in node.devices))
    silent = [spec.name for spec in specs if not _has_length(spec, kinds)]
    if silent:
        raise UsageError(
            f"{_names(silent)}: the length is not declared; a simulation needs it, for example "
            "`profile: {solo_seconds: 60, demand: {compute: 0.3}}`, or step_seconds with steps"
        )
    free_cpu = any(d.kind == CPU and d.places is None for d in node.devices)
    jobs = [_job(spec, kinds, cores_unknown=free_cpu) for spec in specs]
    check_fit(jobs, node)
    return jobs


def check_fit(jobs: Iterable[SimJob], node: Node) -> None:
    """Refuse jobs that can run nowhere on the machine.

    Raises:
        NeverFitsError: with the numbers for every such job.
    """
    refused = []
    for job in jobs:
        able = tuple(d for d in node.devices if d.kind in job.profiles)
        if not able:
            kinds = ", ".join(sorted({device.kind for device in node.devices}))
            refused.append(f"job {job.spec.name} has no profile for {kinds}")
            continue
        reason = never_fits(job.spec, job.estimate, replace(node, devices=able))
        if reason is not None:
            refused.append(f"job {job.spec.name} can never fit on {node.name}: {reason}")
    if refused:
        raise NeverFitsError("\n".join(refused))


def _has_length(spec: JobSpec, kinds: Sequence[str]) -> bool:
    """Whether every declared profile has a length; one that has none for these kinds may."""
    declared = declared_profiles(spec, kinds)
    if not declared and spec.payload.get("profile"):
        return True  # another refusal has the right words
    return bool(declared) and all(p.solo_seconds is not None for p in declared.values())


def _job(spec: JobSpec, kinds: Sequence[str], *, cores_unknown: bool) -> SimJob:
    """A job; where nothing else limits those on the CPU, one that does not say uses its threads."""
    profiles = declared_profiles(spec, kinds)
    cpu = profiles.get(CPU)
    if cores_unknown and cpu is not None and "cores" not in cpu.demand:
        profiles[CPU] = replace(cpu, demand={**cpu.demand, "cores": float(cpu.threads)})
    memory = max([spec.memory or 0, *(profile.memory for profile in profiles.values())])
    runs_on_gpu = any(kind != CPU for kind in profiles)
    return SimJob(
        spec=spec,
        profiles=profiles,
        estimate=Estimate(
            memory=memory,
            device_memory=(spec.gpu_memory or 0) if runs_on_gpu else 0,
            source="hint",
        ),
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004
    return f"job{'s' * (len(names) > 1)} {shown}{more}"


def arriving(jobs: Sequence[SimJob], mean_seconds: float, seed: int) -> list[SimJob]:
    """The jobs, arriving within so many seconds: as before but faster or slower, or at random.

    Args:
        jobs: with the arrivals of a trace, or all there from the beginning; then they come one
            after the other by a Poisson process.
        mean_seconds: between the first and the last of them, on the average.
        seed: of the gaps.
    """
    last = max((job.arrival for job in jobs), default=0.0)
    if last > 0:
        return [replace(job, arrival=job.arrival * mean_seconds / last) for job in jobs]
    draw = Random(f"{seed}:arrivals")
    at, found = 0.0, []
    for job in jobs:
        found.append(replace(job, arrival=at))
        at += draw.expovariate(len(jobs) / mean_seconds)
    return found
