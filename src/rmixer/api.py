"""The Python interface: jobs as values, run to their end in the foreground."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmixer.events import Event
from rmixer.policies.base import Policy
from rmixer.runner.run import Run, Settings, stop_on_signals
from rmixer.spec import jobs_from_dicts
from rmixer.state import RunState


@dataclass(frozen=True, slots=True)
class Job:
    """One job, by the keys of a jobs file: ``Job("a", model="dlrm", data={...})``.

    Args:
        name: of the job.
        keys: all other keys, see the jobs file.
    """

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    def __init__(self, name: str, **keys: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "keys", keys)

    def as_dict(self) -> dict[str, Any]:
        """The job as it would stand in a jobs file."""
        return {"name": self.name, **self.keys}


@dataclass(frozen=True, slots=True)
class Sweep:
    """A job per combination of values: ``Sweep(Job("a-{lr}", ...), lr=[0.1, 0.01])``.

    Args:
        job: with ``{key}`` where a value goes.
        values: per key the values, at least one.
    """

    job: Job
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __init__(self, job: Job, **values: Sequence[Any]) -> None:
        object.__setattr__(self, "job", job)
        object.__setattr__(self, "values", values)

    def as_dict(self) -> dict[str, Any]:
        """The sweep as it would stand in a jobs file."""
        return {**self.job.as_dict(), "sweep": {k: list(v) for k, v in self.values.items()}}


def run(
    jobs: Sequence[Job | Sweep | Mapping[str, Any]],
    *,
    policy: str | Policy | None = None,
    name: str = "run",
    base_dir: Path | str = ".",
    on_event: Callable[[Run, Event], None] | None = None,
    **settings: Any,
) -> Run:
    """Run jobs to their end, in the foreground.

    Args:
        jobs: `Job`, `Sweep`, or mappings with the keys of a jobs file.
        policy: by name with options (``"fixed:k=2"``) or an instance; None takes the default.
        name: of the run; its files are under ``runs/name``.
        base_dir: what the jobs' paths are relative to.
        on_event: is called with the run and each event once it is on disk; may `Run.cancel`.
        settings: further `Settings`, for example ``cores=4`` or ``fail_fast=True``.

    Returns:
        The finished run: ``run.document`` is the report, ``run.exit_code`` says how it went.

    Raises:
        UsageError: a job, the policy or the run's directory is not right. Nothing was started.
        NeverFitsError: a job needs more than the machine has. Nothing was started.
    """
    dicts = [job if isinstance(job, Mapping) else job.as_dict() for job in jobs]
    specs = jobs_from_dicts(dicts, base_dir)
    this = Run(specs, Settings(name=name, policy=policy, **settings))

    if on_event is not None:
        tell = on_event

        def forward(event: Event, _state: RunState) -> None:
            tell(this, event)

        this.on_event = forward
    with stop_on_signals(this):
        this.execute()
    return this
