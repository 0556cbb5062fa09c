"""What ``rmixer doctor`` checks of GPUs: whether each can be read, and who else is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping

from rmixer.execute.mps import CONTROL, foreign_daemons, own_daemons
from rmixer.model import CPU, Device, Node
from rmixer.monitor import GpuMeter, GpuReading, process_name
from rmixer.report.check import Check
from rmixer.resources import format_bytes


def gpu_checks(node: Node) -> list[Check]:
    """None where the machine has no GPU."""
    gpus = [device for device in node.devices if device.kind != CPU]
    if not gpus:
        return []
    meter = GpuMeter()
    try:
        readings = {gpu.id: meter.read(gpu.id) for gpu in gpus}
    finally:
        meter.close()
    return [*_unreadable(gpus, readings), _others(gpus, readings), mps()]


def mps() -> Check:
    """Whether NVIDIA's Multi-Process Service is there, and which daemons run."""
    control, others = shutil.which(CONTROL), foreign_daemons()
    words = [f"pid {pid} in {folder}, not of RMixer" for pid, folder in others]
    words += [f"one of a run of RMixer's in {folder}" for folder in own_daemons()]
    runs = f"running: {'; '.join(words)}" if words else "no daemon runs"
    if control is None:
        return Check(
            name="MPS",
            state="missing",
            found=f"no {CONTROL} on the PATH; {runs}",
            follows="jobs take turns on a GPU",
            mend="install the driver's compute utilities (nvidia-compute-utils-NNN)",
        )
    follows = "a run starts a daemon of its own per GPU, in a directory of its own"
    if others:
        follows = "it is left alone, and jobs take turns, unless a run has `--sharing mps`"
    return Check(name="MPS", state="ok", found=f"{control}; {runs}", follows=follows)


def _unreadable(gpus: Iterable[Device], readings: Mapping[str, GpuReading]) -> list[Check]:
    return [
        Check(
            name=f"GPU {gpu.index}",
            state="problem",
            found=f"it cannot be read: {readings[gpu.id].problem}",
            follows="it takes no job until it can",
            mend="see `nvidia-smi` and the kernel's log (`dmesg | grep -i nvrm`)",
        )
        for gpu in gpus
        if readings[gpu.id].problem
    ]


def _others(gpus: Iterable[Device], readings: Mapping[str, GpuReading]) -> Check:
    words = [
        f"GPU {gpu.index}: {process_name(pid) or 'a process that is not seen here'} "
        f"(pid {pid}, {format_bytes(size)})"
        for gpu in gpus
        for pid, size in sorted((readings[gpu.id].processes or {}).items())
    ]
    return Check(
        name="others on GPUs",
        state="ok",
        found="; ".join(words) or "nobody",
        follows="their memory is booked out, and they are left alone" if words else "",
    )
