"""What is believed of a job before it runs, and whether it can ever fit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rmixer.errors import NeverFitsError, UsageError
from rmixer.estimate.estimates import JobEstimate
from rmixer.estimate.estimator import DEFAULT_MEMORY, Estimator, Target, reserve_measured
from rmixer.execute.environment import declared_threads
from rmixer.model import CPU, Estimate, JobSpec, Node, Profile
from rmixer.policies.base import eligible_devices, never_fits
from rmixer.store import Store, machine_key

logger = logging.getLogger(__name__)

#: Traces of one batch may take so long before the run goes on without them.
TRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A job with what is believed of it."""

    spec: JobSpec
    estimate: Estimate
    profile: Profile | None


def admit(
    jobs: Sequence[JobSpec],
    node: Node,
    store: Store,
    traced: Mapping[str, JobEstimate] | None = None,
) -> list[Admitted]:
    """Look up what is known of each job; refuse the batch if one of them can never fit.

    Args:
        jobs: validated.
        node: the machine.
        store: what earlier runs showed.
        traced: estimates of jobs of which nothing was measured, by id; see `trace_unknown`.

    Raises:
        NeverFitsError: with the numbers for every such job.
        UsageError: a training of ours is to run on a GPU.
    """
    machine = machine_key(node.name, len(node.cores))
    traced = traced or {}
    jobs = [charge_threads(spec, node) for spec in jobs]
    admitted = [
        Admitted(
            spec,
            estimate_memory(spec, node, store, traced.get(spec.id)),
            store.profile(spec.signature, spec.family, machine),
        )
        for spec in jobs
    ]
    refused = [
        _refused(one, node, reason, traced.get(one.spec.id))
        for one in admitted
        if (reason := never_fits(one.spec, one.estimate, node)) is not None
    ]
    if refused:
        raise NeverFitsError("\n".join(refused))
    _check_trainable(jobs, node)
    return admitted


def _refused(one: Admitted, node: Node, reason: object, traced: JobEstimate | None) -> str:
    if traced is not None and traced.refusal:
        return traced.refusal
    return f"job {one.spec.name} can never fit on {node.name}: {reason}"


def trace_unknown(
    jobs: Sequence[JobSpec],
    node: Node,
    store: Store,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, JobEstimate]:
    """Traces of the trainings of ours of which no peak was measured, by job id.

    Made in a process of their own. A job that cannot be traced (its data are not parsed yet, or the
    trace fails or takes too long) is left out: it starts from the user's hint or a default, and the
    log says why.
    """
    unknown = [
        spec
        for spec in jobs
        if spec.kind == "model" and store.memory_peak(spec.signature, spec.family) is None
    ]
    if not unknown:
        return {}
    target = Target(host_memory=node.memory)
    try:
        found = Estimator(store).estimate(
            unknown, target, limit_seconds=TRACE_SECONDS, should_stop=should_stop
        )
    except Exception as error:  # noqa: BLE001 - an estimate never disturbs a run
        logger.warning("no estimates of memory: %s", error)
        return {}
    for one in found:
        if one.source != "trace":
            known = any("not parsed yet" in note for note in one.notes)
            logger.log(
                logging.INFO if known else logging.WARNING,
                "%s: memory is not estimated: %s",
                one.name,
                "; ".join(one.notes),
            )
    return {one.id: one for one in found if one.source == "trace"}


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


def estimate_memory(
    spec: JobSpec, node: Node, store: Store, traced: JobEstimate | None = None
) -> Estimate:
    """Host memory to reserve: a measured peak of the job or its family, a trace, hint or default.

    The hint counts only where it is larger than what was measured or traced.
    """
    peak = store.memory_peak(spec.signature, spec.family)
    hint = spec.memory or 0
    device_memory = spec.gpu_memory or 0
    expected, source = 0, "default"
    if peak is not None:
        expected, source = peak, "history"
        needed = min(reserve_measured(peak, store.estimate_errors("history")), node.memory)
    elif traced is not None:
        expected, source = traced.own_host_bytes, "trace"
        needed = traced.reserve_host_bytes
        if expected <= node.memory:  # only the room above it does not fit
            needed = min(needed, node.memory)
    else:
        needed = 0 if hint else min(DEFAULT_MEMORY, node.memory)
    return Estimate(
        memory=max(needed, hint),
        device_memory=device_memory,
        source="hint" if hint > needed else source,
        expected=expected,
        expected_from=source if expected else "",
    )
