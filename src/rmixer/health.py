"""Whether a GPU takes jobs, how much memory others leave of it, and what people read of that.

Pure. What is seen comes with `rmixer.events.DeviceSeen`, what is decided with `DeviceDrained`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmixer import events as ev
from rmixer.faults import COLLATERAL
from rmixer.model import CPU, Active, Attempt, Device, Job, JobSpec, Node, Reason
from rmixer.policies.base import eligible_devices
from rmixer.resources import format_bytes

_NAMED = 8


def unreadable(index: int | None, problem: str) -> str:
    """Why a GPU that does not answer is closed."""
    return f"GPU {index} cannot be read: {problem}"


def with_seen(node: Node, event: ev.DeviceSeen) -> Node:
    """The node after a look at one of its GPUs.

    What is not known of one that cannot be read stays as it was.
    """
    devices = [_seen(d, event) if d.id == event.device else d for d in node.devices]
    return replace(node, devices=tuple(devices))


def _seen(device: Device, event: ev.DeviceSeen) -> Device:
    if event.problem:
        return device
    capacity = device.capacity or event.capacity
    foreign = min(event.foreign, capacity)
    return replace(device, memory=capacity - foreign, foreign=foreign)


def restarting(node: Node, active: Iterable[Job]) -> dict[str, str]:
    """The GPUs whose MPS server is at an end, but not all of its clients."""
    return {
        (device := job.state.attempt.placement.device): (
            f"MPS on {name_of(device, node)} is started anew once its clients are gone"
        )
        for job in active
        if isinstance(job.state, Active)
        and job.state.stopping is not None
        and job.state.stopping.reason == COLLATERAL
    }


def drained_text(event: ev.DeviceDrained, node: Node) -> str:
    """Why a GPU is given up."""
    return (
        f"{name_of(event.device, node)} is given up: {event.fault} in {len(event.jobs)} jobs "
        f"({', '.join(event.jobs[:_NAMED])}{', ...' if len(event.jobs) > _NAMED else ''})"
    )


def without_cost(attempt: Attempt, event: ev.DeviceDrained) -> Attempt:
    """The attempt, free where it ended with that fault on that GPU."""
    fault = attempt.outcome.fault if attempt.outcome else ""
    mine = (attempt.placement.device, fault) == (event.device, event.fault)
    return replace(attempt, counted=False) if mine else attempt


def why_closed(spec: JobSpec, node: Node) -> Reason | None:
    """Why none of the devices that a job may use takes one now, or None if one does."""
    devices = eligible_devices(spec, node)
    if not devices or not all(device.closed for device in devices):
        return None
    return Reason("DeviceDrained", detail=devices[0].closed)


Remarkable = ev.DeviceSeen | ev.Strayed | ev.DeviceDrained


def remark(event: Remarkable, node: Node, job: str, placed: str) -> str:
    """What people should read of it; empty where it is no news for them.

    Args:
        event: what was seen.
        node: the machine.
        job: the name of the job that strayed.
        placed: the device that it was placed on.
    """
    match event:
        case ev.Strayed(device=device, memory=memory):
            return (
                f"job {job} holds {format_bytes(memory)} of {name_of(device, node)}, though it was "
                f"placed on {name_of(placed, node)}: it picks a GPU itself"
            )
        case ev.DeviceDrained():
            return f"{drained_text(event, node)}; its other jobs go elsewhere at no cost in tries"
        case ev.DeviceSeen(device=device, problem=problem) if problem:
            return f"{unreadable(_index(device, node), problem)}; it takes no new job until it can"
        case ev.DeviceSeen(device=device, processes=processes) if processes:
            return f"{name_of(device, node)} is also used by {', '.join(processes)}"
    return ""


def name_of(device: str, node: Node) -> str:
    """What people call a device: ``GPU 0``, ``the CPU``."""
    index = _index(device, node)
    return "the CPU" if device == CPU else device if index is None else f"GPU {index}"


def _index(device: str, node: Node) -> int | None:
    return next((one.index for one in node.devices if one.id == device), None)
