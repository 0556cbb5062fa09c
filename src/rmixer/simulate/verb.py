"""``rmixer simulate``, and the same from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmixer.errors import UsageError
from rmixer.model import Node
from rmixer.monitor import discover_node
from rmixer.policies.base import Policy
from rmixer.report.comparison_figure import SpanOf
from rmixer.simulate.compare import POLICIES, Comparison, Simulated, compare
from rmixer.simulate.jobs import SimJob, jobs_from_specs
from rmixer.simulate.traces import is_trace, read_trace
from rmixer.simulate.worlds.base import World
from rmixer.spec import jobs_from_dicts, load_jobs_file
from rmixer.spec.machine import load_machine


@dataclass(frozen=True, slots=True)
class Answer:
    """A comparison and what it was made of, for the figure."""

    document: dict[str, Any]
    comparison: Comparison
    runs: list[Simulated]

    @property
    def spans(self) -> dict[str, list[SpanOf]]:
        """Per policy its attempts, as they are drawn."""
        names = {job.id: job.spec.name for job in self.comparison.jobs}
        return {
            run.policy: [
                SpanOf(names[span.job], span.device, span.start, span.end, span.state)
                for span in run.result.spans
            ]
            for run in self.runs
        }


def simulate(
    jobs: Path | str | Sequence[Mapping[str, Any]],
    *,
    machine: Path | str | Node | None = None,
    policies: Mapping[str, Policy] | Sequence[str] | str = POLICIES,
    world: World | str = "network",
    seed: int = 0,
    load: float | None = None,
    like: Path | str | None = None,
    first: int | None = None,
    gpu_memory: int = 0,
) -> dict[str, Any]:
    """Simulate policies on the same jobs, side by side, in virtual time.

    Args:
        jobs: a jobs file, or mappings with its keys, each with a ``profile`` that has a length; or
            the trace of a cluster (`rmixer.simulate.traces`).
        machine: a machine file or a node; None for this machine.
        policies: names with options, one or several; or instances by the name to show.
        world: what decides the true rates, by name with options, or an instance.
        seed: of everything that is drawn.
        load: jobs arrive at this share of the attainable throughput, at random or as in the trace
            but faster or slower; None: all are there from the beginning, or come as the trace says.
        like: for a trace, a jobs file whose jobs say what those of the trace use.
        first: of a trace, only so many jobs.
        gpu_memory: for a trace, of jobs whose memory is not known, bytes; 0: the whole GPU.

    Returns:
        What ``rmixer simulate --json`` prints.

    Raises:
        UsageError: something is not right.
        NeverFitsError: a job can run nowhere on the machine.
    """
    return answer(
        jobs, machine=machine, policies=policies, world=world, seed=seed, load=load,
        like=like, first=first, gpu_memory=gpu_memory,
    ).document  # fmt: skip


def answer(
    jobs: Path | str | Sequence[Mapping[str, Any]],
    *,
    machine: Path | str | Node | None = None,
    policies: Mapping[str, Policy] | Sequence[str] | str = POLICIES,
    world: World | str = "network",
    seed: int = 0,
    load: float | None = None,
    like: Path | str | None = None,
    first: int | None = None,
    gpu_memory: int = 0,
) -> Answer:
    """The same with what it was made of; see `simulate`."""
    if load is not None and not load > 0:
        raise UsageError(f"a load of {load:g} is not above 0")
    node = _node(machine)
    about: dict[str, Any] = {"file": _name(jobs)}
    if isinstance(jobs, Path | str) and is_trace(Path(jobs)):
        others = [] if like is None else _jobs(like, node)
        trace = read_trace(
            Path(jobs), node, like=others, first=first, gpu_memory=gpu_memory, seed=seed
        )
        found, about["left_out"] = trace.jobs, trace.left_out
    elif like is not None or first is not None or gpu_memory:
        raise UsageError("like, first and gpu_memory go with the trace of a cluster")
    else:
        found = _jobs(jobs, node)
    names = [policies] if isinstance(policies, str) else policies
    document, comparison, runs = compare(
        found, node, names, world=world, seed=seed, load=load, **about
    )
    return Answer(document, comparison, runs)


def _node(machine: Path | str | Node | None) -> Node:
    if machine is None:
        return discover_node()
    return machine if isinstance(machine, Node) else load_machine(machine)


def _jobs(jobs: Path | str | Sequence[Mapping[str, Any]], node: Node) -> list[SimJob]:
    if isinstance(jobs, Path | str):
        return jobs_from_specs(load_jobs_file(jobs, require_data=False).jobs, node)
    return jobs_from_specs(jobs_from_dicts(jobs, require_data=False), node)


def _name(jobs: Path | str | Sequence[Mapping[str, Any]]) -> str | None:
    return str(jobs) if isinstance(jobs, Path | str) else None
