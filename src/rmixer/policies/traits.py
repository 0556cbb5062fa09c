"""What rules of thumb know of a job: its length, its use of a GPU, its memory, its label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rmixer.model import CPU, Device, Job, Node, Placement, Profile, Reason
from rmixer.policies.base import Plan, attempt_of, device_memory, eligible_devices, placement_of
from rmixer.resources import GIB

#: At this utilisation a job is compute-heavy, below it memory-heavy at so many bytes: the limits
#: that give each of the fourteen published workloads its published type.
COMPUTE_HEAVY = 0.10
MEMORY_HEAVY = 2 * GIB
#: Cores are booked in steps of this, upwards, so that noise does not move the bookings.
CPU_STEP = 0.05
#: The labels, in the order in which the published system lists them.
LABELS = ("compute", "memory", "low")


def devices_of(job: Job, node: Node) -> tuple[Device, ...]:
    """The devices that a job may use and has a profile for; all it may use where it has none.

    Those that take no job now, and those on which it has met a fault, only where there are no
    others.
    """
    devices = eligible_devices(job.spec, node)
    if job.profiles:
        devices = tuple(device for device in devices if device.kind in job.profiles)
    opened = tuple(device for device in devices if not device.closed) or devices
    if not job.attempts:
        return opened
    met = job.faulted_on()
    return tuple(device for device in opened if device.id not in met) or opened


def profile_on(job: Job, kind: str) -> Profile | None:
    """The job's profile on a kind of device; what is known of it elsewhere only on the CPU."""
    found = job.profiles.get(kind)
    return job.profile if found is None and kind == CPU else found


def seconds_on(job: Job, kind: str) -> float:
    """The job's time alone on a kind of device, infinite where it is not known."""
    profile = profile_on(job, kind)
    if profile is None:
        return math.inf
    if profile.solo_seconds is not None:
        return profile.solo_seconds
    steps = job.spec.total_steps or profile.total_steps
    if profile.step_seconds is None or not steps:
        return math.inf
    return profile.startup_seconds + steps * profile.step_seconds


def least_seconds(job: Job, node: Node) -> float:
    """The job's time alone where it is fastest, infinite where it is not known."""
    return min((seconds_on(job, d.kind) for d in devices_of(job, node)), default=math.inf)


def gpu_profile(job: Job) -> Profile | None:
    """The job's profile on a GPU, where it has one."""
    return next((p for kind, p in job.profiles.items() if kind != CPU), None)


def utilisation(job: Job) -> float:
    """The share of its time in which a job alone keeps a GPU busy; all of it where not known.

    Of a job without a profile for a GPU the share of its threads that it keeps busy.
    """
    profile = gpu_profile(job)
    if profile is not None:
        busy = profile.demand.get("compute", 0.0) + profile.demand.get("bandwidth", 0.0)
        return min(1.0, busy)
    profile = profile_on(job, CPU)
    if profile is None or "cores" not in profile.demand:
        return 1.0
    return min(1.0, profile.demand["cores"] / profile.threads)


def label(job: Job) -> str:
    """One of the three published types of jobs, by utilisation and memory."""
    if utilisation(job) >= COMPUTE_HEAVY:
        return "compute"
    return "memory" if job.estimate.device_memory >= MEMORY_HEAVY else "low"


def booked_memory(job: Job, device: Device, margin: float) -> int:
    """What a rule with a margin books for a job on a device; never more than the device has."""
    return min(math.ceil(margin * device_memory(device, job)), device.capacity)


def cores_of(profile: Profile | None) -> float:
    """Cores' worth to book beside a GPU: what a job is known to use, rounded up."""
    used = profile.demand.get("cores", 0.0) if profile else 0.0
    return round(max(CPU_STEP, math.ceil(round(used / CPU_STEP, 6)) * CPU_STEP), 3)


@dataclass(slots=True)
class Crowd:
    """The jobs on one device: those that run, and those that this plan has started."""

    device: Device
    jobs: list[Job] = field(default_factory=list)
    booked: int = 0

    @property
    def load(self) -> float:
        """The sum of their utilisations."""
        return sum(utilisation(job) for job in self.jobs)

    def join(self, job: Job, placement: Placement) -> None:
        """Count a job in."""
        self.jobs.append(job)
        self.booked += placement.device_memory


def crowds(plan: Plan) -> dict[str, Crowd]:
    """Who is on each device of the node, GPUs first, in the order of the node."""
    devices = sorted(plan.snapshot.node.devices, key=lambda device: device.kind == CPU)
    found = {device.id: Crowd(device) for device in devices}
    for job in sorted(plan.snapshot.active, key=_started):
        placement = placement_of(job)
        if placement.device in found:
            found[placement.device].join(job, placement)
    return found


def gpus_of(found: Iterable[Crowd]) -> list[Crowd]:
    """Those on GPUs; all of them where the node has none."""
    everywhere = list(found)
    return [one for one in everywhere if one.device.kind != CPU] or everywhere


def place(
    plan: Plan,
    job: Job,
    device: Device,
    *,
    margin: float = 1.0,
    parts: float = 1.0,
    threads: int | None = None,
) -> Placement:
    """A job's place on a device by a rule that knows nothing of cores.

    Args:
        plan: with the node.
        job: to be placed.
        device: where.
        margin: what is booked on a GPU, times the job's memory.
        parts: so many jobs share the cores.
        threads: for a job that does not say itself.
    """
    node = plan.snapshot.node
    return Placement(
        device=device.id,
        threads=job.spec.threads or threads,
        cpu=math.floor(1000 * len(node.cores) / parts) / 1000,
        memory=min(job.estimate.memory, node.memory),
        device_memory=booked_memory(job, device, margin),
    )


def start_on_first(
    plan: Plan,
    job: Job,
    usable: Iterable[Crowd],
    otherwise: Reason,
    *,
    margin: float,
    parts: float,
    why_not: Callable[[Crowd], Reason | None] = lambda _: None,
) -> Reason | None:
    """Start a job on the first of these devices that may take it and has room.

    Args:
        plan: with the bookings so far.
        job: to be started.
        usable: the devices, the best first; the job is counted in where it starts.
        otherwise: the reason where there is no such device.
        margin: what is booked on a GPU, times the job's memory.
        parts: so many jobs share the cores.
        why_not: what a rule has against a device, whatever its room.

    Returns:
        None if it has started, else why not on the first of them.
    """
    first: Reason | None = None
    for crowd in usable:
        placement = place(plan, job, crowd.device, margin=margin, parts=parts)
        reason = why_not(crowd) or plan.lacks(placement)
        if reason is None:
            plan.start(job, placement)
            crowd.join(job, placement)
            return None
        first = first or reason
    return first or otherwise


def _started(job: Job) -> float:
    return attempt_of(job).started_at
