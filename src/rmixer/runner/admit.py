"""What is believed of a job before it runs, and whether it can ever fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rmixer.errors import NeverFitsError, UsageError
from rmixer.execute.environment import declared_threads
from rmixer.model import CPU, Estimate, JobSpec, Node, Profile
from rmixer.policies.base import eligible_devices, never_fits
from rmixer.resources import GIB
from rmixer.state import MEMORY_MARGIN
from rmixer.store import Store, machine_key

#: Reserved for a job of which nothing is known: imports of a training framework and a small model.
#: It is replaced by what the job is seen to use once its first steps are done.
DEFAULT_MEMORY = GIB


@dataclass(frozen=True, slots=True)
class Admitted:
    """A job with what is believed of it."""

    spec: JobSpec
    estimate: Estimate
    profile: Profile | None


def admit(jobs: Sequence[JobSpec], node: Node, store: Store) -> list[Admitted]:
    """Look up what is known of each job; refuse the batch if one of them can never fit.

    Raises:
        NeverFitsError: with the numbers for every such job.
        UsageError: a training of ours is to run on a GPU.
    """
    machine = machine_key(node.name, len(node.cores))
    jobs = [charge_threads(spec, node) for spec in jobs]
    admitted = [
        Admitted(
            spec,
            estimate_memory(spec, node, store),
            store.profile(spec.signature, spec.family, machine),
        )
        for spec in jobs
    ]
    refused = [
        f"job {one.spec.name} can never fit on {node.name}: {reason}"
        for one in admitted
        if (reason := never_fits(one.spec, one.estimate, node)) is not None
    ]
    if refused:
        raise NeverFitsError("\n".join(refused))
    _check_trainable(jobs, node)
    return admitted


def charge_threads(spec: JobSpec, node: Node, inherited: Mapping[str, str] = os.environ) -> JobSpec:
    """The job with the threads that its user set in the environment, so that they are booked.

    The key ``threads`` comes first, then the job's own environment, then that of the run, which
    counts only as far as the machine has cores.
    """
    if spec.threads is not None:
        return spec
    own = declared_threads(spec.payload.get("env") or {})
    outer = declared_threads(inherited)
    threads = own or (min(outer, len(node.cores)) if outer else None)
    return replace(spec, threads=threads)


def _check_trainable(jobs: Sequence[JobSpec], node: Node) -> None:
    """Refuse what this version cannot do: train its own models on a GPU, give a job several."""
    for spec in jobs:
        if spec.gpus is not None and spec.gpus > 1:
            raise UsageError(f"job {spec.name}: gpus {spec.gpus}: this version gives a job one GPU")
        if spec.kind == "model" and all(d.kind != CPU for d in eligible_devices(spec, node)):
            raise UsageError(
                f"job {spec.name}: device {spec.device}: this version trains its own models on the "
                "CPU; leave device out, or give a command that trains on the GPU"
            )


def estimate_memory(spec: JobSpec, node: Node, store: Store) -> Estimate:
    """Host memory to reserve: a measured peak of the job or its family, the hint, or a default.

    The hint counts only where it is larger than what was measured.
    """
    peak = store.memory_peak(spec.signature, spec.family)
    hint = spec.memory or 0
    device_memory = spec.gpu_memory or 0
    if peak is not None:
        measured = min(int(peak * MEMORY_MARGIN), node.memory)
        source = "history" if measured >= hint else "hint"
        return Estimate(memory=max(measured, hint), device_memory=device_memory, source=source)
    if hint:
        return Estimate(memory=hint, device_memory=device_memory, source="hint")
    memory = min(DEFAULT_MEMORY, node.memory)
    return Estimate(memory=memory, device_memory=device_memory, source="default")
