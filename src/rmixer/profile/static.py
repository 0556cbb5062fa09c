"""A profile from what a step consists of: FLOPs, bytes and kernels, against a device's peaks.

Each kernel takes the longest of: its FLOPs at the share of the peak that real kernels reach, its
bytes likewise, and the least that any kernel takes. On a GPU the host launches kernels ahead of it:
a step takes as long as the slower of both. Waiting for input is not in a trace; it is not seen
here, so what reads slowly is predicted too fast and too busy (`docs/profile.md` has the errors).

Source: the roofline model (Williams et al. 2009, doi 10.1145/1498765.1498785); the constants below
say where they are from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rmixer.model import CPU, Profile
from rmixer.profile.peaks import Peaks

#: Share of the peaks that large kernels reach: matrix products and streaming of cuBLAS and PyTorch.
FLOPS_REACHED, BANDWIDTH_REACHED = 0.6, 0.75
#: The shortest kernel, from start to start of the next on one stream; seconds.
SHORTEST_KERNEL = 4e-6
#: What a call of an operator costs the host: Python, autograd and the launch; seconds.
HOST_PER_KERNEL = 10e-6
#: The same on the CPU, where nothing is launched; seconds.
CALL_ON_CPU = 3e-6
#: Granularity is given in tenths of a millisecond.
GRAIN_SECONDS = 1e-4
#: A prediction from peaks is off by tens of per cent.
CONFIDENCE = 0.3

#: FLOPs, bytes moved, kernels, and how many calls have these.
Call = Sequence[float]


@dataclass(slots=True)
class _Busy:
    """What one station does in a step: its seconds, and their sum of squares by kernel."""

    seconds: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float, count: float) -> None:
        self.seconds += count * seconds
        self.squares += count * seconds * seconds

    @property
    def grain(self) -> float:
        """The length-biased mean of its visits, in `GRAIN_SECONDS`; 0 where there are none."""
        return self.squares / self.seconds / GRAIN_SECONDS if self.seconds else 0.0


@dataclass(slots=True)
class _Step:
    stations: dict[str, _Busy] = field(default_factory=dict)
    kernels: float = 0.0

    def add(self, station: str, seconds: float, count: float) -> None:
        self.stations.setdefault(station, _Busy()).add(seconds, count)

    def seconds(self, *stations: str) -> float:
        return sum(self.stations[name].seconds for name in stations if name in self.stations)


def static_profile(
    kind: str, calls: Iterable[Call], peaks: Peaks, *, input_bytes: int = 0, memory: int = 0
) -> Profile | None:
    """The profile of a job of which a step was traced; None where the step has no kernels.

    Args:
        kind: of device, ``cpu`` or a GPU's type.
        calls: of one step, see `rmixer.estimate.estimates.JobEstimate`.
        peaks: of the device.
        input_bytes: that a step moves to a GPU.
        memory: of the host, bytes.
    """
    calls = list(calls)
    if not calls:
        return None
    step = _on_cpu(calls, peaks) if kind == CPU else _on_gpu(calls, peaks, input_bytes)
    if kind == CPU:
        seconds = step.seconds(*step.stations)
        demand = {"cores": 1.0, "memory_bandwidth": step.seconds("memory_bandwidth") / seconds}
    else:
        host = step.kernels * HOST_PER_KERNEL
        seconds = max(host, step.seconds(*step.stations))
        demand = {name: busy.seconds / seconds for name, busy in step.stations.items()}
        demand["cores"] = min(1.0, host / seconds)
    return Profile(
        device_kind=kind,
        threads=1,
        step_seconds=seconds,
        demand={name: round(share, 3) for name, share in demand.items()},
        granularity=_grains(step.stations, kind),
        memory=memory,
        source="static",
        confidence=CONFIDENCE,
    )


def _on_gpu(calls: Iterable[Call], peaks: Peaks, input_bytes: int) -> _Step:
    """A kernel that is short because it is small holds the GPU as one that computes does."""
    step = _Step({"compute": _Busy(), "bandwidth": _Busy(), "transfer": _Busy()})
    for flops, moved, kernels, count in calls:
        computing = max(flops / kernels / (peaks.flops * FLOPS_REACHED), SHORTEST_KERNEL)
        moving = moved / kernels / (peaks.bandwidth * BANDWIDTH_REACHED)
        station = "bandwidth" if moving > computing else "compute"
        step.add(station, max(computing, moving), count * kernels)
        step.kernels += count * kernels
    if input_bytes and peaks.link:
        step.add("transfer", input_bytes / peaks.link, 1)
    return step


def _on_cpu(calls: Iterable[Call], peaks: Peaks) -> _Step:
    """One thread."""
    step = _Step({"cores": _Busy(), "memory_bandwidth": _Busy()})
    for flops, moved, kernels, count in calls:
        computing = flops / (peaks.flops * FLOPS_REACHED) + CALL_ON_CPU * kernels
        moving = moved / (peaks.bandwidth * BANDWIDTH_REACHED)
        station = "memory_bandwidth" if moving > computing else "cores"
        step.add(station, max(computing, moving), count)
        step.kernels += count * kernels
    return step


def _grains(stations: Mapping[str, _Busy], kind: str) -> dict[str, float]:
    """Of a GPU's stations; on the host they are not held by the kernel but by time slices."""
    if kind == CPU:
        return {}
    return {name: round(busy.grain, 4) for name, busy in stations.items() if busy.grain}
