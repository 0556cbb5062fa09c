"""What an estimate says: a breakdown of a job's peak, and what to reserve for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmixer.model import CPU
from rmixer.resources import format_bytes

#: Where a figure comes from, best first.
SOURCES = ("history", "trace", "probe", "hint", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """The peak memory of one job before it runs.

    Attributes:
        id, name: of the job.
        device: ``cpu``, ``cuda``, or a kind of GPU.
        source: one of `SOURCES`.
        bytes: per category of tensors at the peak, and ``allocated_peak``, ``reserved_peak``,
            ``context`` (GPU: the CUDA context; CPU: interpreter and libraries) and ``total``.
        host_bytes: resident peak on the host, ``shared_bytes`` included.
        shared_bytes: pages of files: libraries, and mapped data that all jobs on them share. They
            count once per machine, and not in a reservation.
        reserve_host_bytes, reserve_device_bytes: what the dispatcher books.
        seconds: that the estimate took.
        operator, phase: where the peak is reached.
        largest: name, category and bytes of the five largest tensors there.
        costs: of one step: ``flops``, ``moved_bytes``, ``kernels``.
        notes: what the reader should know: fallbacks, stated constants.
        refusal: why it can never fit, with the options; empty if it can.
    """

    id: str
    name: str
    device: str
    source: str
    bytes: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0
    shared_bytes: int = 0
    reserve_host_bytes: int = 0
    reserve_device_bytes: int = 0
    seconds: float = 0.0
    operator: str = ""
    phase: str = ""
    largest: Sequence[Mapping[str, Any]] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    refusal: str = ""

    @property
    def own_host_bytes(self) -> int:
        """What the process needs on the host for itself alone."""
        return max(0, self.host_bytes - self.shared_bytes)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "device": self.device,
            "source": self.source,
            "bytes": dict(self.bytes),
            "host_bytes": self.host_bytes,
            "shared_bytes": self.shared_bytes,
            "reserve": {
                "host_bytes": self.reserve_host_bytes,
                "device_bytes": self.reserve_device_bytes,
            },
            "seconds": round(self.seconds, 3),
            "peak": {
                "operator": self.operator,
                "phase": self.phase,
                "largest": [dict(row) for row in self.largest],
            },
            "costs": dict(self.costs),
            "notes": list(self.notes),
            "refusal": self.refusal or None,
        }


def refusal(name: str, device: str, need: int, have: int, parts: Mapping[str, int]) -> str:
    """Why a job can never fit on a device, and what would help."""
    where = "this machine" if device == CPU else f"a device of {format_bytes(have)} ({device})"
    lines = [f"job {name} can never fit on {where}: {format_bytes(need)} > {format_bytes(have)}"]
    lines += [f"  {key.replace('_', ' ')}: {format_bytes(size)}" for key, size in parts.items()]
    lines.append("options: " + "; ".join(options(device, need, have, parts)))
    return "\n".join(lines)


def options(device: str, need: int, have: int, parts: Mapping[str, int]) -> list[str]:
    """What would make a job smaller, the most effective first, with numbers."""
    parameters = parts.get("parameters", 0)
    state, gradients = parts.get("optimizer_state", 0), parts.get("gradients", 0)
    found: list[tuple[int, str]] = []
    if parameters:
        scale = 2
        while scale < 64 and need - (need * (scale - 1)) // scale > have:  # noqa: PLR2004
            scale *= 2
        saved = (parameters + state + gradients) * (scale - 1) // scale
        found.append((saved, f"embedding_dim / {scale} saves about {format_bytes(saved)}"))
    if state + gradients > parameters // 2:
        saved = state + gradients
        text = f"a sparse optimizer (rowwise_adagrad, sgd) saves up to {format_bytes(saved)}"
        found.append((saved, text))
    activations = parts.get("activations", 0)
    if activations > need // 10:
        text = f"half the batch_size saves about {format_bytes(activations // 2)}"
        found.append((activations // 2, text))
    said = [text for _, text in sorted(found, reverse=True)]
    if device != CPU:
        said.append(f"device: cpu needs about {format_bytes(need)} of host memory instead")
    return said or ["a machine with more memory"]
