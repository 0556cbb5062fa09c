"""The published system's own policy: CPU and GPUs together."""

from __future__ import annotations

from collections.abc import Sequence

from rmixer.model import CPU, Job
from rmixer.policies.base import Plan, whole_number
from rmixer.policies.published import Published, by_utilisation, other_type
from rmixer.policies.traits import Crowd, devices_of, utilisation


class PublishedMix(Published):
    """Jobs of different types on the GPUs, the lightest ones on the CPU, while many are left.

    1. The GPU with the least used memory takes the first job that fits and whose type is not the
       commonest there, else the first that fits, of the queue by utilisation, descending.
    2. Where there is none, and fewer than N - beta * (GPU places) of the N jobs have ended, the CPU
       takes the last job that fits, if it stands at or behind the place
       N * (GPU places) / (GPU and CPU places) of the list of all N jobs.

    Args:
        device, places, margin: as for all published policies.
        beta: how early the CPU stops, in fillings of the GPUs.
    """

    name = "published-mix"

    def __init__(
        self, *, device: str = "mix", places: int = 4, margin: float = 1.2, beta: int = 4
    ) -> None:
        super().__init__(device=device, places=places, margin=margin)
        self.beta = whole_number(self.name, "beta", beta, 0)

    def order(self, jobs: Sequence[Job], seed: int) -> list[Job]:  # noqa: ARG002
        """The queue."""
        return by_utilisation(jobs)

    def pick(self, queue: Sequence[Job], crowd: Crowd, started: int) -> Job | None:  # noqa: ARG002
        """On a GPU another type than most jobs there."""
        return other_type(queue, crowd)

    def next(self, plan: Plan, found: dict[str, Crowd], queue: Sequence[Job]) -> Job | None:
        """A job on a GPU, else one on the CPU."""
        free = self.devices(plan, found)
        for crowd in free:
            if crowd.device.kind == CPU:
                continue
            job = self.start_on(plan, crowd, queue)
            if job is not None:
                return job
        cpu = next((crowd for crowd in free if crowd.device.kind == CPU), None)
        return None if cpu is None else self._on_cpu(plan, cpu, queue)

    def _on_cpu(self, plan: Plan, cpu: Crowd, queue: Sequence[Job]) -> Job | None:
        gpu_places = sum(self.places_on(d) for d in plan.snapshot.node.devices if d.kind != CPU)
        fitting = self.fitting(plan, cpu, queue)
        if not fitting:
            return None
        job = fitting[-1]
        wants_gpu = any(d.kind != CPU for d in devices_of(job, plan.snapshot.node))
        if wants_gpu and not self._may_use_cpu(plan, job, gpu_places, cpu):
            return None
        self.start(plan, cpu, job)
        return job

    def _may_use_cpu(self, plan: Plan, job: Job, gpu_places: float, cpu: Crowd) -> bool:
        """The published condition."""
        snapshot = plan.snapshot
        everybody = [*snapshot.jobs.values()] or [*snapshot.active, *snapshot.pending]
        total = len(everybody)
        ended = sum(one.is_final for one in everybody)
        share = gpu_places / (gpu_places + self.places_on(cpu.device))
        rank = sum(utilisation(one) > utilisation(job) for one in everybody)
        alike = [one.id for one in everybody if utilisation(one) == utilisation(job)]
        position = rank + alike.index(job.id)
        return ended < total - self.beta * gpu_places and position >= share * total
