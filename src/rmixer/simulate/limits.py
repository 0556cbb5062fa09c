"""The two limits of a simulation, from the truth of its world.

`bound` is what nothing can beat (`rmixer.bound`); devices of one kind count as one with that many
times the capacity, which changes nothing, as a mean over equal devices is as good as any split.
With arrivals no schedule ends before a job's arrival and its own time, nor before the jobs that
arrive from some time on could be done after that time.

`attainable` is what memory and the law of rates allow: `rmixer.simulate.attainable`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmixer.bound import LONGEST_JOB, Bound, Load, makespan_bound
from rmixer.model import CPU, HOST_STATIONS, Node
from rmixer.policies.base import eligible_devices
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.base import Member, World

#: Beyond so many jobs the program is not solved; the longest job and the sums are left.
MOST_JOBS = 3000
#: With arrivals the bound is taken from so many of them on.
_RELEASES = 12


def makespan_limit(
    jobs: Sequence[SimJob], members: Sequence[Member], node: Node, world: World
) -> Bound | None:
    """What nothing can beat, or None where there are too many jobs.

    Args:
        jobs: `World.known` ones.
        members: the truth about each.
        node: the machine.
        world: says how long each job keeps what busy.
    """
    if len(jobs) > MOST_JOBS:
        return None
    capacity = _capacity(node)
    loads = [_loads(job, member, node, world) for job, member in zip(jobs, members, strict=True)]
    arrivals = sorted({job.arrival for job in jobs})
    releases = arrivals[:: max(1, len(arrivals) // _RELEASES)]
    best = Bound(0.0, "")
    for release in releases:
        later = [one for one, job in zip(loads, jobs, strict=True) if job.arrival >= release]
        found = makespan_bound(later, capacity)
        if release + found.seconds > best.seconds:
            best = Bound(release + found.seconds, found.bottleneck)
    ends = [
        job.arrival + min(load.solo_seconds for load in loads_of.values())
        for job, loads_of in zip(jobs, loads, strict=True)
    ]
    return max(best, Bound(max(ends, default=0.0), LONGEST_JOB), key=lambda bound: bound.seconds)


def kinds_of(job: SimJob, node: Node) -> list[str]:
    """The kinds of device on which a job may train."""
    kinds = dict.fromkeys(device.kind for device in eligible_devices(job.spec, node))
    return [kind for kind in kinds if kind in job.profiles]


def _loads(job: SimJob, member: Member, node: Node, world: World) -> dict[str, Load]:
    found = {}
    for kind in kinds_of(job, node):
        seconds = member.seconds(kind)
        work = {
            name if name in HOST_STATIONS else f"{kind} {name}": busy
            for name, busy in world.work(member, kind).items()
        }
        work[f"places on {kind}"] = seconds
        found[kind] = Load(solo_seconds=seconds, work=work)
    return found


def _capacity(node: Node) -> dict[str, float]:
    """What each station serves per second, devices of a kind taken together."""
    capacity = dict.fromkeys(HOST_STATIONS, 1.0) | {"cores": float(len(node.cores))}
    for kind in dict.fromkeys(device.kind for device in node.devices):
        alike = [device for device in node.devices if device.kind == kind]
        places = sum(device.most_jobs for device in alike)
        if places < float("inf"):
            capacity[f"places on {kind}"] = places
        for name in ("compute", "bandwidth", "transfer", "rate") if kind != CPU else ():
            capacity[f"{kind} {name}"] = float(len(alike))
    return capacity
