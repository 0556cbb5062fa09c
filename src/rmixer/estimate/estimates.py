"""What an estimate says: a breakdown of a job's peak, and what to reserve for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmixer.estimate.timeline import CATEGORIES
from rmixer.model import CPU
from rmixer.resources import format_bytes

#: Where a figure comes from, best first.
SOURCES = ("history", "trace", "probe", "hint", "default")
#: An embedding narrower than this share of what was asked for is another model.
MOST_SCALE = 64
#: What ``bytes`` has in JSON; null where it is not known.
FIGURES = (*CATEGORIES, "allocated_peak", "reserved_peak", "context", "total")


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
        calls: of one step: FLOPs, bytes moved, kernels, and how many calls had these.
        notes: what the reader should know: fallbacks, stated constants.
        refusal: why it can never fit, with the options; empty if it can.
        failure: the program's own last words, where it cannot run at all; empty if it can.
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
    calls: Sequence[Sequence[float]] = ()
    notes: Sequence[str] = ()
    refusal: str = ""
    failure: str = ""

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
            "bytes": {key: self.bytes.get(key) for key in FIGURES},
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
            "failure": self.failure or None,
        }


def figures(peak: Mapping[str, Any], context: int) -> dict[str, int]:
    """``bytes`` of an estimate.

    Args:
        peak: fields of a `rmixer.estimate.timeline.Peak`.
        context: what the process holds besides, bytes.
    """
    return {
        **{key: peak["by_category"].get(key, 0) for key in CATEGORIES},
        "allocated_peak": peak["allocated"],
        "reserved_peak": peak["reserved"],
        "context": context,
        "total": peak["reserved"] + context,
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
    parameters, gradients = parts.get("parameters", 0), parts.get("gradients", 0)
    state, missing = parts.get("optimizer_state", 0), need - have
    found: list[tuple[int, str]] = []
    tables = parameters + gradients + state
    scale = 2
    while scale < MOST_SCALE and tables * (scale - 1) // scale < missing:
        scale *= 2
    found.append((tables * (scale - 1) // scale, f"embedding_dim / {scale} saves about {{}}"))
    if gradients > parameters // 2:
        saved = gradients + state
        found.append((saved, "a sparse optimizer (rowwise_adagrad, sgd) saves up to {}"))
    elif state > parameters // 2:
        found.append((state, "rowwise_adagrad or sgd, with less state, saves up to {}"))
    batch = parts.get("activations", 0) + parts.get("temporaries", 0)
    found.append((batch // 2, "half the batch_size saves up to {}"))
    helpful = [(saved, text) for saved, text in found if saved * 10 > missing]
    said = [text.format(format_bytes(saved)) for saved, text in sorted(helpful, reverse=True)]
    if device != CPU:
        host = need - parts.get("context", 0)
        said.append(f"device: cpu needs about {format_bytes(host)} of host memory instead")
    return said or ["a machine with more memory"]
