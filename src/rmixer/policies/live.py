"""Jobs that share a device, as they are measured: who they are, and what was predicted of them.

What was measured of one job holds for all of its kind: those of its family, since they differ in
nothing that counts here; a job without a family is a kind of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rmixer.interference import UNKNOWN, Companies, host_sharing, predict_rates
from rmixer.model import CPU, Device, Job, Node, Placement, Profile, Rate, StateName
from rmixer.policies.base import attempt_of, placement_of
from rmixer.policies.outlook import Use, rates_of
from rmixer.policies.traits import profile_on

#: What a co-runner costs where kernels take turns; under MPS nothing, until it is measured.
OVERHEAD = {"time-slicing": 0.02, "mps": 0.0, "exclusive": 0.0}
#: Sources of a profile that was measured with a number of threads; others do not say any.
_WITH_THREADS = ("history", "probe")


def kind_of(job: Job) -> str:
    """The name under which what was measured of a job is kept."""
    return job.spec.family or job.id


def alone_key(job: Job, node: Node) -> str:
    """The name under which the job's time per step alone is kept, where it runs now."""
    placement = placement_of(job)
    kind = node.device(placement.device).kind
    threads = f"/{placement.threads}" if kind == CPU else ""
    return f"{kind_of(job)} on {kind}{threads}"


def company_on(device: str, active: Iterable[Job]) -> list[Job]:
    """The jobs that run on a device now, the first that came first; not those that stand still."""
    there = [
        job
        for job in active
        if job.state.name != StateName.SUSPENDED and placement_of(job).device == device
    ]
    return sorted(there, key=lambda job: (attempt_of(job).started_at, job.id))


def step_seconds_alone(
    job: Job, node: Node, companies: Companies, total_steps: int
) -> float | None:
    """What a step takes of a job alone where it runs now; None where nothing trustworthy tells.

    Measured alone, or as its profile says; what was inverted from a crowd does not tell.

    Args:
        job: an active one.
        node: the machine.
        companies: what was measured.
        total_steps: of the whole job, 0 where not known.
    """
    known = companies.alone.get(alone_key(job, node))
    if known is not None:
        return known
    kind = node.device(placement_of(job).device).kind
    told = (job.profiles.get(kind), job.told if kind == CPU else None)
    found = (_step_seconds_of(job, profile, kind, total_steps) for profile in told)
    return next((seconds for seconds in found if seconds is not None), None)


def _step_seconds_of(
    job: Job, profile: Profile | None, kind: str, total_steps: int
) -> float | None:
    """What a step takes alone by a profile that was known before the job began."""
    if profile is None or profile.source in (UNKNOWN.source, "live"):
        return None
    threads = placement_of(job).threads
    if kind == CPU and profile.source in _WITH_THREADS and profile.threads != threads:
        return None
    if profile.source != "history" and profile.step_seconds is not None:
        return profile.step_seconds
    steps = total_steps or job.spec.total_steps or profile.total_steps
    if profile.solo_seconds is None or not steps:
        return None
    return max(0.0, profile.solo_seconds - profile.startup_seconds) / steps or None


def predicted_rates(
    members: Sequence[Job], device: Device, node: Node, active: Sequence[Job]
) -> list[float] | None:
    """The network's rates of jobs on a device, uncorrected; None where one has no profile."""
    if device.kind == CPU:
        return _predicted_on_cpu(members, node, active)
    profiles = [profile_on(job, device.kind) for job in members]
    if any(profile is None for profile in profiles):
        return None
    return list(rates_of(tuple(map(gpu_use, profiles)), OVERHEAD[device.sharing]))


def _predicted_on_cpu(
    members: Sequence[Job], node: Node, active: Sequence[Job]
) -> list[float] | None:
    """Beside all that runs on the node: jobs on its GPUs use the host too."""
    if any(job.profile is None or not job.profile.demand for job in members):
        return None
    ids = {job.id for job in members}
    others = [job for job in active if job.id not in ids and job.state.name != StateName.SUSPENDED]
    uses = [use_within(job.profile, placement_of(job)) for job in (*members, *others)]
    rates = predict_rates([profile for profile, _ in uses], host_sharing(node))
    capped = [min(float(rate), cap) for rate, (_, cap) in zip(rates, uses, strict=True)]
    return capped[: len(members)]


def rates_of_company(
    device: str,
    node: Node,
    active: Sequence[Job],
    companies: Companies,
    paces: Mapping[str, tuple[float | None, int]],
) -> dict[str, Rate]:
    """What is told of a company that was watched.

    Args:
        device: where.
        node: the machine.
        active: all active jobs of the node.
        companies: what was measured before.
        paces: by job steps per second, None where they are not seen, and all steps of the job, 0
            where not known.
    """
    members = company_on(device, active)
    predicted = predicted_rates(members, node.device(device), node, active)
    told = {}
    for at, job in enumerate(members):
        pace, total = paces.get(job.id, (None, 0))
        told[job.id] = Rate(
            token=attempt_of(job).token,
            steps_per_second=pace or None,
            step_seconds=step_seconds_alone(job, node, companies, total),
            predicted=None if predicted is None else predicted[at],
        )
    return told


# --- what jobs use, as numbers --------------------------------------------------------------------


def gpu_use(profile: Profile | None) -> Use:
    """A GPU as one station: the shares of its parts together, the granularity of the largest."""
    demand: Mapping[str, float] = profile.demand if profile else {"compute": 1.0}
    parts = {name: demand.get(name, 0.0) for name in ("compute", "bandwidth", "transfer")}
    largest = max(parts, key=lambda name: parts[name])
    grain = profile.granularity.get(largest, 1.0) if profile else 1.0
    return min(1.0, sum(parts.values())), grain


def at_threads(profile: Profile | None, threads: int) -> Profile:
    """A profile at that number of threads; all threads busy where nothing is known."""
    if profile is None or not profile.demand:
        return replace(UNKNOWN, threads=threads, demand={"cores": float(threads)})
    if profile.threads == threads:
        return profile
    cores = min(float(threads), profile.demand.get("cores", 1.0) * threads / profile.threads)
    return replace(profile, threads=threads, demand={**profile.demand, "cores": cores})


def use_within(profile: Profile | None, placement: Placement) -> tuple[Profile, float]:
    """What a job uses in its place, on no more cores than are booked, and the rate that allows."""
    belief = at_threads(profile, placement.threads or 1)
    wanted = belief.demand.get("cores", 0.0)
    if wanted <= placement.cpu:
        return belief, 1.0
    demand = {**belief.demand, "cores": placement.cpu}
    return replace(belief, demand=demand), placement.cpu / wanted
