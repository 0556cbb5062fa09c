"""``rmixer plan``: what a run would do with the jobs of a file, without starting one.

The first decision is that of a run: the same beliefs (`rmixer.runner.admit`), handed to the same
dispatcher in the same events. On another machine, where nothing was measured, jobs that all declare
a profile are believed as in a simulation. What follows is predicted with the simulator, in a world
where all beliefs hold; for that the length of every job must be known. How GPUs are shared is as
discovered or as the machine file says: no daemon is started to find out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rmixer import catalog, paths
from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.errors import RmixerError, UsageError, unknown_name
from rmixer.model import CPU, Device, Job, JobSpec, Node, Pending, Placement, Reason
from rmixer.monitor import discover_node
from rmixer.policies.base import (
    Plan,
    Policy,
    Snapshot,
    device_memory,
    eligible_devices,
    placement_of,
)
from rmixer.policies.live import OVERHEAD
from rmixer.runner.admit import Admitted, admit, trace_unknown
from rmixer.runner.run import DEFAULT_POLICY
from rmixer.simulate.compare import Comparison
from rmixer.simulate.engine import Span, StuckError
from rmixer.simulate.jobs import SimJob, jobs_from_specs
from rmixer.simulate.worlds.base import Member
from rmixer.simulate.worlds.network import NetworkWorld
from rmixer.spec import load_jobs_file
from rmixer.spec.machine import load_machine
from rmixer.store import Store

SCHEMA_VERSION = 1


def plan_file(
    file: Path,
    *,
    machine: Path | None = None,
    policy: str | None = None,
    cores: int | None = None,
    gpus: Sequence[int] | None = None,
    explain: str | None = None,
) -> dict[str, Any]:
    """What ``rmixer plan --json`` prints.

    Args:
        file: a jobs file.
        machine: a machine file; None for this machine.
        policy: by name with options; None takes the file's, or the default.
        cores: of this machine only so many.
        gpus: of this machine only those of these indices.
        explain: name or id of a job that is explained.

    Raises:
        UsageError: something is not right.
        NeverFitsError: a job can run nowhere on the machine.
    """
    if machine is not None and (cores is not None or gpus is not None):
        raise UsageError("--cores and --gpus choose from this machine; leave them or --machine out")
    jobs_file = load_jobs_file(file, require_data=machine is None)
    chosen = policy or jobs_file.policy or DEFAULT_POLICY
    built: Policy = catalog.build_policy(chosen)
    explained = None if explain is None else _named(explain, jobs_file.jobs)
    node = discover_node(cores=cores, gpus=gpus) if machine is None else load_machine(machine)
    elsewhere = machine is not None
    planned = Planned(_beliefs(jobs_file.jobs, node, elsewhere=elsewhere), node, chosen, built)
    document = {"schema_version": SCHEMA_VERSION, "file": str(file), **planned.document()}
    return document if explained is None else document | {"explained": planned.explain(explained)}


def _beliefs(specs: Sequence[JobSpec], node: Node, *, elsewhere: bool) -> list[Admitted]:
    """What a run would believe; of another machine, what all jobs declare, as in a simulation."""
    if elsewhere and all(spec.payload.get("profile") for spec in specs):
        return [
            Admitted(job.spec, job.estimate, job.profiles.get(CPU), job.profiles)
            for job in jobs_from_specs(specs, node)
        ]
    store = Store(paths.store_path())
    return admit(specs, node, store, trace_unknown(specs, node, store))


def _named(name: str, jobs: Sequence[JobSpec]) -> str:
    for spec in jobs:
        if name in (spec.id, spec.name):
            return spec.id
    raise UsageError(f"--explain: {unknown_name('job', name, [spec.name for spec in jobs])}")


@dataclass
class Planned:
    """A first decision, and what is expected to come of it.

    Args:
        admitted: the jobs with what is believed of them.
        node: the machine.
        policy_name: as it was asked for.
        policy: decides.
    """

    admitted: Sequence[Admitted]
    node: Node
    policy_name: str
    policy: Policy

    @cached_property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by id after the first decision; nothing but the dispatcher has run."""
        core = Dispatcher(self.policy)
        core.handle(
            ev.Began(wall=0.0, run="planned", name="planned", node=self.node,
                     policy=self.policy_name)
        )  # fmt: skip
        for one in self.admitted:
            core.handle(
                ev.Submitted(at=0.0, wall=0.0, spec=one.spec, estimate=one.estimate,
                             profile=one.profile, profiles=one.profiles)
            )  # fmt: skip
        core.handle(ev.QueueClosed(at=0.0, wall=0.0))
        return dict(core.state.jobs)

    @cached_property
    def unknown(self) -> list[str]:
        """Names of the jobs whose length is not known on any device that they may use."""
        return [
            job.spec.name
            for job in self._sim_jobs.values()
            if not job.profiles or any(p.solo_seconds is None for p in job.profiles.values())
        ]

    @cached_property
    def spans(self) -> dict[str, Span]:
        """By job when and where it is expected to run; empty where lengths are not known."""
        if self._comparison is None:
            return {}
        try:
            result = self._comparison.simulate(self.policy_name)
        except StuckError as error:
            raise RmixerError(f"policy {self.policy_name}: {error}") from error
        return {span.job: span for span in result.spans}

    def document(self) -> dict[str, Any]:
        """All of it, as printed; times are seconds from now."""
        found = self._comparison
        bound, bottleneck = (None, "") if found is None else found.bound
        makespan = max((span.end for span in self.spans.values()), default=None)
        rows = [self._row(job) for job in self.jobs.values()]
        started = [row for row in rows if row["starts"]]
        return {
            "policy": self.policy_name,
            "machine": self.node.name,
            "starts_now": len(started),
            "waiting": len(rows) - len(started),
            "makespan_seconds": makespan,
            "bound": {"makespan_seconds": bound, "bottleneck": bottleneck},
            "attainable_seconds": None if found is None else found.attainable_seconds,
            "length_unknown": self.unknown,
            "devices": [self._device(device) for device in self.node.devices],
            "jobs": rows,
        }

    def explain(self, id: str) -> dict[str, Any]:  # noqa: A002
        """What is believed of a job, and what each device offers it beside those that start now."""
        job = self.jobs[id]
        estimate = job.estimate
        return {
            **self._row(job),
            "memory_source": estimate.source,
            "device_memory_source": estimate.device_expected_from or estimate.source,
            "profiles": [
                {
                    "device_kind": kind,
                    "solo_seconds": profile.solo_seconds,
                    "demand": dict(profile.demand),
                    "source": profile.source,
                }
                for kind, profile in self._sim_jobs[id].profiles.items()
            ],
            "devices": [self._offer(job, device) for device in self.node.devices],
        }

    # --- inside -----------------------------------------------------------------------------

    @cached_property
    def _sim_jobs(self) -> dict[str, SimJob]:
        return {one.spec.id: _sim_job(one, self.node) for one in self.admitted}

    @cached_property
    def _world(self) -> NetworkWorld:
        """Where what is believed is true."""
        gpus = [device for device in self.node.devices if device.kind != CPU]
        return NetworkWorld(overhead=max((OVERHEAD[gpu.sharing] for gpu in gpus), default=0.0))

    @cached_property
    def _comparison(self) -> Comparison | None:
        if self.unknown or not self.admitted:
            return None
        return Comparison([*self._sim_jobs.values()], self.node, self._world)

    def _company(self, device: str) -> list[Job]:
        """The jobs that would be started on a device now."""
        return [
            job
            for job in self.jobs.values()
            if not isinstance(job.state, Pending) and placement_of(job).device == device
        ]

    @cached_property
    def _rates(self) -> dict[str, float]:
        """By id the predicted rates of the jobs that start now, where all uses are known."""
        return self._rates_with(None, None)

    def _rates_with(self, newcomer: Job | None, device: Device | None) -> dict[str, float]:
        """The rates if one more job joined a device; of devices where every use is known."""
        crowds: dict[str, list[Member]] = {}
        for one in self.node.devices:
            company = self._company(one.id)
            if newcomer is not None and device is not None and one.id == device.id:
                company = [*company, newcomer]
            sims = [self._sim_jobs[job.id] for job in company]
            if sims and all(one.kind in sim.profiles for sim in sims):
                crowds[one.id] = [self._world.member(sim, 0) for sim in sims]
        found = self._world.law(self.node, crowds)
        return {
            member.id: rate
            for id, members in crowds.items()  # noqa: A001
            for member, rate in zip(members, found[id], strict=True)
        }

    def _row(self, job: Job) -> dict[str, Any]:
        waits = isinstance(job.state, Pending)
        placement = None if waits else placement_of(job)
        span = self.spans.get(job.id)
        return {
            "id": job.id,
            "name": job.spec.name,
            "starts": not waits,
            "reason": str(job.state.reason) if isinstance(job.state, Pending) else None,
            "device": placement.device if placement else None,
            "threads": placement.threads if placement else None,
            "cpu": placement.cpu if placement else None,
            "reserved_bytes": job.estimate.memory,
            "reserved_device_bytes": (
                placement.device_memory if placement else job.estimate.device_memory
            ),
            "predicted_rate": None if waits else self._rates.get(job.id),
            "expected_device": span.device if span else None,
            "expected_start_seconds": span.start if span else None,
            "expected_end_seconds": span.end if span else None,
            "expected_mean_rate": self._mean_rate(span) if span else None,
        }

    def _mean_rate(self, span: Span) -> float | None:
        kind = self.node.device(span.device).kind
        seconds = self._sim_jobs[span.job].profiles[kind].solo_seconds
        return (
            None if seconds is None or span.end <= span.start else seconds / (span.end - span.start)
        )

    def _device(self, device: Device) -> dict[str, Any]:
        company = self._company(device.id)
        rates = [self._rates.get(job.id) for job in company]
        known = [rate for rate in rates if rate is not None]
        return {
            "id": device.id,
            "kind": device.kind,
            "jobs": [job.spec.name for job in company],
            "sum_of_rates": sum(known) if len(known) == len(rates) else None,
            "memory_bytes": device.memory,
            "reserved_device_bytes": sum(placement_of(job).device_memory for job in company),
        }

    def _offer(self, job: Job, device: Device) -> dict[str, Any]:
        """What a device is to a job: where it is, why it cannot be there, or how it would run."""
        here = not isinstance(job.state, Pending) and placement_of(job).device == device.id
        reason = None if here else self._refusal(job, device)
        rates = self._rates if here else {}
        if not here and reason is None:
            others = [one for one in self._company(device.id) if one.id != job.id]
            if job.id in self._rates:
                rates = {}  # it runs elsewhere: the company here with it is not what would be
            elif all(device.kind in self._sim_jobs[one.id].profiles for one in (*others, job)):
                rates = self._rates_with(job, device)
        company = self._company(device.id)
        return {
            "device": device.id,
            "kind": device.kind,
            "chosen": here,
            "lacks": None if reason is None else str(reason),
            "predicted_rate": rates.get(job.id),
            "co_runners": [
                {"name": one.spec.name, "predicted_rate": (rates or self._rates).get(one.id)}
                for one in company
                if one.id != job.id
            ],
        }

    def _refusal(self, job: Job, device: Device) -> Reason | None:
        """Why it does not fit on a device beside those that start now, or None if it does."""
        if device not in eligible_devices(job.spec, self.node):
            return Reason("DeviceDrained", detail=f"the job asks for device {job.spec.device}")
        active = [one for one in self.jobs.values() if not isinstance(one.state, Pending)]
        plan = Plan(Snapshot(now=0.0, node=self.node, pending=[], active=active))
        cpu = 0.0 if device.kind != CPU else 1.0
        return plan.lacks(
            Placement(
                device=device.id,
                cpu=cpu,
                memory=job.estimate.memory,
                device_memory=device_memory(device, job),
            )
        )


def _sim_job(one: Admitted, node: Node) -> SimJob:
    """A job of the simulator with the beliefs of a run; its cores are its threads if not known."""
    kinds = {device.kind for device in eligible_devices(one.spec, node)}
    profiles = {kind: profile for kind, profile in one.profiles.items() if kind in kinds}
    cpu = one.profile
    if cpu is not None and CPU in kinds:
        seconds = cpu.solo_seconds
        if seconds is None and cpu.step_seconds is not None:
            steps = one.spec.total_steps or cpu.total_steps
            seconds = cpu.step_seconds * steps + cpu.startup_seconds if steps else None
        demand = {"cores": float(cpu.threads), **cpu.demand}
        profiles[CPU] = replace(cpu, solo_seconds=seconds, demand=demand)
    return SimJob(spec=one.spec, profiles=profiles, estimate=one.estimate)
