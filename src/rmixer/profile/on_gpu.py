"""What a job alone uses of a GPU, from looks at it; what the driver does not tell stays unknown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rmixer.monitor import GpuSample

#: GPM wants looks that are further apart than 0.1 s, and PCIe's counters take 40 ms.
LOOK_SECONDS = 0.5


@dataclass(slots=True)
class GpuUse:
    """Collects looks at a GPU on which one job runs.

    ``busy`` is the share of time in which its kernels ran: of its processes where the driver tells
    that, else of the whole GPU, on which it is alone. ``moving`` is the share of the memory's
    bandwidth (GPM), else of time in which memory was read or written. As stations: what is moving
    is ``bandwidth``, the rest of what is busy is ``compute``; the published tables of Lucid have
    the same two numbers, and predict pairs to 8 % (`docs/interference.md`).
    """

    busy: list[float] = field(default_factory=list)
    moving: list[float] = field(default_factory=list)
    link: list[float] = field(default_factory=list)
    memory_peak_bytes: int | None = None
    _looked_at: float | None = None

    def is_due(self, at: float) -> bool:
        """Whether to look again."""
        return self._looked_at is None or at - self._looked_at >= LOOK_SECONDS

    def see(self, sample: GpuSample, pids: Collection[int], at: float) -> None:
        """Take a look in.

        Args:
            sample: of the GPU.
            pids: the job's processes.
            at: seconds.
        """
        self._looked_at = at
        own = [one for pid, one in (sample.processes or {}).items() if pid in pids]
        _note(self.busy, _total([one.sm for one in own]), sample.utilisation)
        _note(
            self.moving,
            sample.dram_active,
            _total([one.memory for one in own]),
            sample.memory_utilisation,
        )
        rates = (sample.pcie_sent_bytes_per_second, sample.pcie_received_bytes_per_second)
        told = [rate for rate in rates if rate is not None]
        if told and sample.pcie_capacity_bytes_per_second:
            _note(self.link, max(told) / sample.pcie_capacity_bytes_per_second)
        held = [one.memory_bytes for one in own if one.memory_bytes is not None]
        if held:
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, sum(held))

    def demand(self) -> dict[str, float]:
        """The shares of its stations; those that are not known are missing."""
        found = {}
        if self.busy:
            moving = min(fmean(self.busy), fmean(self.moving)) if self.moving else 0.0
            found["compute"] = fmean(self.busy) - moving
        if self.moving:
            found["bandwidth"] = fmean(self.moving)
        if self.link:
            found["transfer"] = fmean(self.link)
        return {name: round(min(1.0, share), 3) for name, share in found.items()}


def _total(shares: Sequence[float | None]) -> float | None:
    """Of all processes together; None where one does not tell, or there is none."""
    told = [share for share in shares if share is not None]
    return sum(told) if told and len(told) == len(shares) else None


def _note(into: list[float], *shares: float | None) -> None:
    """Keep the first that is known."""
    known = next((share for share in shares if share is not None), None)
    if known is not None:
        into.append(known)
