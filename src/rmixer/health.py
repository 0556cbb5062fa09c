"""Whether a GPU takes jobs: one that cannot be read takes none, and memory of others is not ours.

Pure; what is seen comes with `rmixer.events.DeviceSeen`.
"""

from __future__ import annotations

from dataclasses import replace

from rmixer import events as ev
from rmixer.model import CPU, Device, JobSpec, Node, Reason
from rmixer.policies.base import eligible_devices
from rmixer.resources import format_bytes


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
        return replace(device, closed=unreadable(device.index, event.problem))
    capacity = device.capacity or event.capacity
    foreign = min(event.foreign, capacity)
    return replace(device, closed="", memory=capacity - foreign, foreign=foreign)


def why_closed(spec: JobSpec, node: Node) -> Reason | None:
    """Why none of the devices that a job may use takes one now, or None if one does."""
    devices = eligible_devices(spec, node)
    if not devices or not all(device.closed for device in devices):
        return None
    return Reason("DeviceDrained", detail=devices[0].closed)


def remark(event: ev.DeviceSeen | ev.Strayed, node: Node, job: str, placed: str) -> str:
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
