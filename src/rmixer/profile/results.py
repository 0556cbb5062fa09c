"""What ``rmixer profile`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rmixer.model import CPU, GPU_STATIONS, HOST_STATIONS, Device, JobSpec, Profile
from rmixer.monitor import GpuSample
from rmixer.profile.label import label_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """What is known of one job on one kind of device.

    Attributes:
        spec: the job.
        kind: of device.
        profile: of all sources; None where none knows anything.
        sources: what each source says, the surest first.
        device_memory: on a GPU, bytes; None where not known.
        notes: what the reader should know.
        failure: why it cannot run; empty if it can.
        seconds: that it took.
    """

    spec: JobSpec
    kind: str
    profile: Profile | None = None
    sources: Sequence[Profile] = ()
    device_memory: int | None = None
    notes: Sequence[str] = ()
    failure: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is not known is null."""
        profile = self.profile
        stations = HOST_STATIONS if self.kind == CPU else (*GPU_STATIONS, *HOST_STATIONS)
        known = profile or Profile(device_kind=self.kind, source="", confidence=0.0)
        return {
            "id": self.spec.id,
            "name": self.spec.name,
            "device": self.kind,
            "label": label_of(profile) if profile else None,
            "source": known.source or None,
            "sources": [one.source for one in self.sources],
            "confidence": round(known.confidence, 3) if profile else None,
            "threads": known.threads if profile else None,
            "step_seconds": known.step_seconds,
            "startup_seconds": known.startup_seconds or None,
            "total_steps": known.total_steps or None,
            "demand": {name: known.demand.get(name) for name in stations},
            "granularity": {name: known.granularity.get(name) for name in stations},
            "steps_per_second_by_threads": {str(n): s for n, s in sorted(known.speeds.items())},
            "memory_bytes": known.memory or None,
            "device_memory_bytes": self.device_memory,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
            "failure": self.failure or None,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What the verb answers.

    Attributes:
        jobs: in the order of the file.
        gpus: the GPUs of this machine that were asked for, each with a look at it.
    """

    jobs: Sequence[JobProfile]
    gpus: Sequence[tuple[Device, GpuSample]] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema_version": 1,
            "jobs": [job.as_dict() for job in self.jobs],
            "gpus": [
                {"id": device.id, "kind": device.kind, "index": device.index, **asdict(sample)}
                for device, sample in self.gpus
            ],
        }
