"""What a person who watches a run sees at one moment, whatever shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rmixer.model import (
    CPU,
    FINAL_STATES,
    Active,
    Final,
    Job,
    Node,
    Outcome,
    Pending,
    Progress,
    Reason,
    StateName,
)
from rmixer.report.text import finite, one_line
from rmixer.resources import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job. None is not known.

    Attributes:
        name: as the user wrote it, safe to print.
        state: what it is doing.
        reason: why it waits, stops or has ended, with numbers.
        device: ``CPU`` or ``GPU 0``.
        cores: ids of the cores it is pinned to.
        threads: threads given to it.
        memory_bytes: host memory it holds now.
        reserved_bytes: host memory reserved for it.
        samples_per_second: training samples, newest measurement.
        progress: share of its steps that are done, in [0, 1].
        eta_seconds: until it ends.
        tries: attempts begun that count.
        max_tries: attempts that it may have.
    """

    id: str
    name: str
    state: StateName
    reason: str = ""
    device: str | None = None
    cores: tuple[int, ...] = ()
    threads: int | None = None
    memory_bytes: int | None = None
    reserved_bytes: int | None = None
    samples_per_second: float | None = None
    progress: float | None = None
    eta_seconds: float | None = None
    tries: int = 0
    max_tries: int = 1

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good."""
        return self.state in FINAL_STATES

    @property
    def active(self) -> bool:
        """Whether the job has a process."""
        return not self.ended and self.state not in {StateName.PENDING, StateName.HELD}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run at one moment: the header's numbers and a row per job.

    Attributes:
        elapsed_seconds: since the run began.
        cores_booked: cores' worth that running jobs have booked.
        cores_busy: cores' worth in use; None where nothing was measured.
        memory_bytes: host memory that the jobs hold; None where nothing was measured.
        reserved_bytes: host memory reserved for running jobs.
        notice: what the person should know now, for example that the run is stopping.
    """

    elapsed_seconds: float
    cores_booked: float = 0.0
    cores_busy: float | None = None
    memory_bytes: int | None = None
    reserved_bytes: int = 0
    samples_per_second: float | None = None
    rows: tuple[JobRow, ...] = ()
    notice: str = ""

    def count(self, *states: StateName) -> int:
        """How many jobs are in one of these states."""
        return sum(row.state in states for row in self.rows)


class Display(Protocol):
    """Something that shows a run while it runs."""

    def update(self, view: RunView) -> None:
        """Show the run as it is now."""

    def close(self) -> None:
        """Show nothing more."""


def view_of(
    jobs: Iterable[Job], node: Node, at: float, sample: Mapping[str, Any] | None = None
) -> RunView:
    """The view of a run's jobs at the second `at`, with the newest line of telemetry, if any."""
    measured = sample or {}
    of_jobs, of_node = _mapping(measured, "jobs"), _mapping(measured, "node")
    jobs = list(jobs)
    placements = [job.state.attempt.placement for job in jobs if isinstance(job.state, Active)]
    rows = tuple(_row(job, node, _mapping(of_jobs, job.id)) for job in jobs)
    rates = [row.samples_per_second for row in rows if row.samples_per_second is not None]
    rss = finite(of_node.get("rss_bytes"))
    return RunView(
        elapsed_seconds=at,
        cores_booked=sum(placement.cpu for placement in placements),
        cores_busy=finite(of_node.get("cpu")),
        memory_bytes=int(rss) if rss is not None else None,
        reserved_bytes=sum(placement.memory for placement in placements),
        samples_per_second=sum(rates) if rates else None,
        rows=rows,
    )


def _row(job: Job, node: Node, values: Mapping[str, Any]) -> JobRow:
    row = JobRow(
        id=job.id,
        name=one_line(job.spec.name),
        state=job.state.name,
        reason=one_line(reason_of(job)),
        progress=_share(job.progress) if isinstance(job.state, Active) else None,
        tries=job.tries_used,
        max_tries=job.spec.retries + 1,
    )
    return _running(row, job.state, node, values) if isinstance(job.state, Active) else row


def _running(row: JobRow, state: Active, node: Node, values: Mapping[str, Any]) -> JobRow:
    """The row with the placement and, if they are of this attempt, the measured values."""
    placement = state.attempt.placement
    mine = values if values.get("token") == state.attempt.token else {}
    rss, steps = finite(mine.get("rss_bytes")), finite(mine.get("total_steps"))
    step, share = finite(mine.get("step")), finite(mine.get("share"))
    told = share if share is not None else row.progress
    return replace(
        row,
        device=_device(node, placement.device),
        cores=placement.cores,
        threads=placement.threads,
        memory_bytes=int(rss) if rss is not None else None,
        reserved_bytes=placement.memory,
        samples_per_second=finite(mine.get("samples_per_second")),
        progress=min(1.0, step / steps) if step is not None and steps else told,
        eta_seconds=finite(mine.get("eta_seconds")),
        tries=row.tries + 1,
    )


def reason_of(job: Job) -> str:
    """Why a job is in its state, and what its memory was when it ran out before."""
    match job.state:
        case Pending(reason=reason):
            said = str(reason)
        case Active(name=StateName.SUSPENDED, reason=Reason() as why):
            said = str(why)
        case Active(stopping=Outcome() as outcome) | Final(outcome=outcome):
            said = outcome.reason
        case _:
            said = ""
    short = [
        attempt
        for attempt in job.attempts
        if attempt.outcome is not None and attempt.outcome.state == StateName.OUT_OF_MEMORY
    ]
    if not short or job.state.name == StateName.OUT_OF_MEMORY:
        return said
    assert short[-1].outcome is not None
    had = format_bytes(short[-1].placement.memory)
    before = f"after OUT_OF_MEMORY({short[-1].outcome.reason}) with {had}"
    return f"{before}; {said}" if said else before


def _share(progress: Progress | None) -> float | None:
    if progress is None or not progress.total_steps:
        return None
    return min(1.0, progress.step / progress.total_steps)


def _device(node: Node, id_: str) -> str:
    if id_ == CPU:
        return "CPU"
    index = next((device.index for device in node.devices if device.id == id_), None)
    return f"GPU {index}" if index is not None else one_line(id_)


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = values.get(key)
    return inner if isinstance(inner, Mapping) else {}
