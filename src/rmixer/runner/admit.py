"""What is believed of a job before it runs, and whether it can ever fit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rmixer.errors import NeverFitsError, UsageError
from rmixer.estimate.contexts import context_key, context_of
from rmixer.estimate.estimates import JobEstimate
from rmixer.estimate.estimator import (
    DEFAULT_MEMORY,
    HISTORY_GPU,
    TRACE_GPU,
    Estimator,
    Target,
    reserve_measured,
)
from rmixer.execute.environment import declared_threads
from rmixer.model import CPU, Estimate, JobSpec, Node, Profile
from rmixer.policies.base import eligible_devices, never_fits
from rmixer.profile.merge import known_profile
from rmixer.spec import declared_profiles
from rmixer.store import Store, machine_key

logger = logging.getLogger(__name__)

#: Traces of one batch may take so long before the run goes on without them.
TRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A job with what is believed of it: its profile on the CPU, and per kind of device."""

    spec: JobSpec
    estimate: Estimate
    profile: Profile | None
    profiles: Mapping[str, Profile] = field(default_factory=dict)


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
    kinds = list(dict.fromkeys(device.kind for device in node.devices))
    admitted = []
    for spec in jobs:
        declared = declared_profiles(spec, [CPU] if spec.kind == "model" else kinds)
        estimate = estimate_memory(spec, node, store, traced.get(spec.id))
        known = known_profile(store, spec.signature, spec.family, machine)
        is_seen = known is not None and known.source != "static"
        profile = known if is_seen else declared.get(CPU) or known
        profiles = declared or profiles_by_kind(spec, node, store)
        admitted.append(Admitted(spec, estimate, profile, profiles))
    refused = [
        _refused(one, node, reason, traced.get(one.spec.id))
        for one in admitted
        if (reason := never_fits(one.spec, one.estimate, node)) is not None
    ]
    if refused:
        raise NeverFitsError("\n".join(refused))
    _check_trainable(jobs, node)
    return admitted


def profiles_by_kind(spec: JobSpec, node: Node, store: Store) -> dict[str, Profile]:
    """What is known of a job on each kind of device that it may use, where one is a GPU.

    Empty where one of them is not known: a kind that is missing would be one where it cannot train.
    """
    kinds = {device.kind for device in eligible_devices(spec, node)}
    if not kinds - {CPU}:
        return {}
    found = {
        kind: known_profile(
            store, spec.signature, spec.family, machine_key(node.name, len(node.cores), kind)
        )
        for kind in sorted(kinds)
    }
    known = {kind: profile for kind, profile in found.items() if profile is not None}
    return known if len(known) == len(kinds) else {}


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
    """Traces of the jobs of which no peak was measured, by job id.

    Trainings of ours; and commands that go to a GPU, which would book the whole of it: of each
    family one member is run for a few steps on tensors without memory. Commands on the CPU are not:
    a wrong guess of host memory is mended while they run, and what a script does to its files in
    those steps it would do twice.

    Made in processes of their own. A job that cannot be traced (its data are not parsed yet, or the
    trace fails or takes too long) is left out: it starts from the user's hint or a default, and the
    log says why.
    """
    models = [
        spec
        for spec in jobs
        if spec.kind == "model" and store.memory_peak(spec.signature, spec.family) is None
    ]
    found = _traces(models, Target(host_memory=node.memory), store, node, should_stop)
    for target, members in _unknown_on_gpus(jobs, node, store):
        first = {spec.family or spec.id: spec for spec in reversed(members)}
        traces = _traces([*first.values()], target, store, node, should_stop)
        for spec in members:
            like = traces.get(first[spec.family or spec.id].id)
            if like is not None:
                found[spec.id] = replace(like, id=spec.id, name=spec.name)
    return found


def _unknown_on_gpus(
    jobs: Sequence[JobSpec], node: Node, store: Store
) -> list[tuple[Target, list[JobSpec]]]:
    """Commands that must have a GPU and of whose memory on it nothing is known, by kind of GPU."""
    found: dict[str, tuple[Target, list[JobSpec]]] = {}
    for spec in jobs:
        devices = eligible_devices(spec, node)
        if spec.kind != "command" or spec.gpu_memory or any(d.kind == CPU for d in devices):
            continue
        if not devices or store.device_peak(spec.signature, spec.family) is not None:
            continue
        kind = devices[0].kind
        target = Target(
            device=kind,
            device_memory=max(device.capacity for device in devices),
            host_memory=node.memory,
            context=context_of(store.context(context_key(kind))),
        )
        found.setdefault(kind, (target, []))[1].append(spec)
    return list(found.values())


def _traces(
    jobs: Sequence[JobSpec],
    target: Target,
    store: Store,
    node: Node,
    should_stop: Callable[[], bool],
) -> dict[str, JobEstimate]:
    if not jobs:
        return {}
    try:
        found = Estimator(store).estimate(
            jobs,
            target,
            commands=True,
            at_once=len(node.cores),
            limit_seconds=TRACE_SECONDS,
            should_stop=should_stop,
            say=logger.info,
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
    """Memory to reserve: a measured peak of the job or its family, a trace, hint or default.

    The hint counts only where it is larger than what was measured or traced.
    """
    peak = store.memory_peak(spec.signature, spec.family)
    hint = spec.memory or 0
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
    estimate = Estimate(
        memory=max(needed, hint),
        source="hint" if hint > needed else source,
        expected=expected,
        expected_from=source if expected else "",
    )
    return _with_device(estimate, spec, node, store, traced)


def _with_device(
    estimate: Estimate, spec: JobSpec, node: Node, store: Store, traced: JobEstimate | None
) -> Estimate:
    """The estimate with memory on the GPU, where it may go to one; 0 where nothing is known."""
    gpus = [device for device in eligible_devices(spec, node) if device.kind != CPU]
    if not gpus:
        return replace(estimate, device_memory=spec.gpu_memory or 0)
    most = max(device.capacity for device in gpus)
    peak = store.device_peak(spec.signature, spec.family)
    expected, source, needed = 0, "", 0
    if peak is not None:
        expected, source = peak, HISTORY_GPU
        needed = min(reserve_measured(peak, store.estimate_errors(source), source), most)
    elif traced is not None and traced.device != CPU:
        expected, source = traced.bytes["total"], TRACE_GPU
        needed = traced.reserve_device_bytes
        if expected <= most:  # only the room above it does not fit
            needed = min(needed, most)
    return replace(
        estimate,
        device_memory=max(needed, spec.gpu_memory or 0),
        device_expected=expected,
        device_expected_from=source,
    )
