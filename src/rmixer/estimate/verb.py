"""What ``rmixer estimate`` does with its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmixer import paths
from rmixer.errors import UsageError
from rmixer.estimate.contexts import context_key, context_of
from rmixer.estimate.estimates import JobEstimate
from rmixer.estimate.estimator import Estimator, Target
from rmixer.model import CPU, JobSpec
from rmixer.monitor import discover_gpus, usable_memory
from rmixer.resources import parse_bytes
from rmixer.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """The options of the verb, checked.

    Attributes:
        device: ``cpu``, ``cuda``, or a kind of GPU.
        device_memory: of the GPU, bytes.
        limit_seconds: None: by the number of jobs.
    """

    device: str = CPU
    device_memory: int | None = None
    limit_seconds: float | None = None

    @classmethod
    def parse(
        cls, *, device: str, device_memory: str | None, limit: float | None
    ) -> EstimateOptions:
        """From the words of the command line.

        Raises:
            UsageError: naming the option and what would be right.
        """
        name = device.strip()
        if not name:
            raise UsageError("--device: write cpu, cuda, or the name of a GPU")
        if name.lower() in ("cpu", "cuda", "gpu"):
            name = "cuda" if name.lower() == "gpu" else name.lower()
        if device_memory is None:
            return cls(device=name, limit_seconds=limit)
        if name == CPU:
            raise UsageError("--device-memory goes with a GPU: give --device cuda, or its name")
        try:
            size = parse_bytes(device_memory)
        except ValueError as error:
            raise UsageError(f"--device-memory {device_memory}: {error}") from None
        if size < 1:
            raise UsageError(f"--device-memory {device_memory}: must be above 0")
        return cls(device=name, device_memory=size, limit_seconds=limit)


def estimate_jobs(jobs: Sequence[JobSpec], options: EstimateOptions) -> list[JobEstimate]:
    """The estimates of jobs on this machine's host and the device asked for."""
    store = Store(paths.store_path())
    return Estimator(store).estimate(
        jobs,
        _target(options, store),
        parse=True,
        measure=True,
        commands=True,
        limit_seconds=options.limit_seconds,
    )


def _target(options: EstimateOptions, store: Store) -> Target:
    """The device as the options and this machine say."""
    host_memory = usable_memory()
    if options.device == CPU:
        return Target(host_memory=host_memory)
    memory, kind = options.device_memory, options.device
    found = [gpu for gpu in discover_gpus() if kind in ("cuda", gpu.kind)]
    if found:
        kind = found[0].kind
        memory = memory or max(gpu.memory for gpu in found)
    return Target(
        device=kind,
        device_memory=memory,
        host_memory=host_memory,
        context=context_of(store.context(context_key(kind))),
    )
