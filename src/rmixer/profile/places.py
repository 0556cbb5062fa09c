"""Which device is meant: one of this machine, or a kind that is somewhere else."""

from __future__ import annotations

from dataclasses import dataclass

from rmixer.errors import UsageError
from rmixer.estimate.contexts import device_name
from rmixer.model import CPU, Device, JobSpec, Node
from rmixer.profile.peaks import TABLE, known_peaks, peaks_of


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of device, and the one of this machine where there is one."""

    kind: str
    device: Device | None


def own_device(job: JobSpec) -> str:
    """Where a job is to run by its own words."""
    if job.device not in ("auto", CPU):
        return job.device
    return "gpu" if job.gpus else CPU


def place_of(text: str, node: Node) -> Place:
    """A device as people say it.

    Raises:
        UsageError: there is no such device, and no row of peaks.
    """
    here = [device for device in node.devices if device.kind != CPU]
    for device in here:
        if text in (device.id, device.kind):
            return Place(device.kind, device)
    name = device_name(text)
    if name == CPU:
        return Place(CPU, node.device(CPU))
    if name == "cuda":
        if not here:
            kinds = ", ".join(row.kind for row in TABLE)
            raise UsageError(f"device {text}: this machine has no GPU; name a kind: {kinds}")
        return Place(here[0].kind, here[0])
    row = known_peaks(name)
    match = next((device for device in here if peaks_of(device.kind) == row), None)
    return Place(match.kind, match) if match else Place(row.kind, None)
