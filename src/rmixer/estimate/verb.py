"""What ``rmixer estimate`` does with its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmixer import paths
from rmixer.errors import UsageError
from rmixer.estimate.contexts import context_key, context_of, device_name
from rmixer.estimate.estimates import JobEstimate
from rmixer.estimate.estimator import Estimator, Target
from rmixer.model import CPU, JobSpec
from rmixer.monitor import discover_gpus, usable_memory
from rmixer.resources import MIB, parse_bytes
from rmixer.store import Store

#: No GPU has less: a number without its unit.
SMALLEST_MEMORY = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """The options of the verb, checked.

    Attributes:
        device: ``cpu``, ``cuda``, or a kind of GPU; None: what each job says.
        device_memory: of the GPU, bytes.
        limit_seconds: None: by the number of jobs.
    """

    device: str | None = None
    device_memory: int | None = None
    limit_seconds: float | None = None

    @classmethod
    def parse(
        cls, *, device: str | None, device_memory: str | None, limit: float | None
    ) -> EstimateOptions:
        """From the words of the command line.

        Raises:
            UsageError: naming the option and what would be right.
        """
        name = None if device is None else device_name(device)
        if device_memory is None:
            return cls(device=name, limit_seconds=limit)
        if name in (CPU, None):
            raise UsageError("--device-memory goes with a GPU: give --device cuda, or its name")
        try:
            size = parse_bytes(device_memory)
        except ValueError as error:
            raise UsageError(f"--device-memory {device_memory}: {error}") from None
        if size < SMALLEST_MEMORY:
            raise UsageError(f"--device-memory {device_memory}: write a size like 80GiB")
        return cls(device=name, device_memory=size, limit_seconds=limit)


def estimate_jobs(
    jobs: Sequence[JobSpec],
    options: EstimateOptions,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> list[JobEstimate]:
    """The estimates of jobs on this machine's host and the devices asked for, in order.

    Args:
        jobs: validated.
        options: of the verb.
        say: gets a line for people when something begins that may take long.
    """
    store = Store(paths.store_path())
    estimator = Estimator(store)
    wanted = {job.id: options.device or _own_device(job) for job in jobs}
    found: dict[str, JobEstimate] = {}
    for device in dict.fromkeys(wanted.values()):
        some = estimator.estimate(
            [job for job in jobs if wanted[job.id] == device],
            _target(device, options, store),
            parse=True,
            measure=True,
            commands=True,
            limit_seconds=options.limit_seconds,
            say=say,
        )
        found |= {one.id: one for one in some}
    return [found[job.id] for job in jobs]


def _own_device(job: JobSpec) -> str:
    """Where a job is to run by its own words."""
    return CPU if job.device in ("auto", CPU) and not job.gpus else "cuda"


def _target(device: str, options: EstimateOptions, store: Store) -> Target:
    """A device as the options and this machine say."""
    host_memory = usable_memory()
    if device == CPU:
        return Target(host_memory=host_memory)
    memory, kind = options.device_memory, device
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
