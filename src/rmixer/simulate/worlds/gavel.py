"""The world of Gavel's measured pairs (OSDI 2020)."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from rmixer.errors import UsageError
from rmixer.model import Profile
from rmixer.simulate.files import open_text
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.pairs import Pairs, PairWorld, fit_uses

#: A pair with a rate below this was not measured, or did not fit into the memory.
_MEASURED = 0.01
GPUS = ("v100", "p100", "k80")
_NAME = re.compile(r"(?P<workload>.+?)(-\d+)?")
_TRACE_NAME = re.compile(r"(?P<job>\S+) \(batch size (?P<batch>\d+)\)")


class GavelWorld(PairWorld):
    """Pairs of 26 workloads on one GPU.

    Jobs are known by name: ``Recommendation-512``, then perhaps a number, as in
    ``Recommendation-512-3``; or as Gavel's traces have it, ``Recommendation (batch size 512)``.

    Args:
        table: the file of pairs: CSV with table, gpu, job_a, batch_a, job_b, batch_b, rel_a, rel_b.
        gpu: v100, p100 or k80.
        errors: demand, granularity, duration, memory, noise, failures; see `World`.
    """

    name = "gavel"

    def __init__(
        self,
        *,
        table: str,
        gpu: str = "v100",
        demand: float = 0.0,
        granularity: float = 0.0,
        duration: float = 0.0,
        memory: float = 0.0,
        noise: float = 0.0,
        failures: float = 0.0,
    ) -> None:
        super().__init__(
            demand=demand, granularity=granularity, duration=duration, memory=memory,
            noise=noise, failures=failures,
        )  # fmt: skip
        if gpu not in GPUS:
            raise ValueError(f"world gavel: gpu must be one of {', '.join(GPUS)}, not {gpu!r}")
        names, pairs = read_pairs(Path(table), gpu)
        uses = fit_uses(names, pairs)
        self._learn(
            pairs,
            {
                name: Profile(
                    device_kind=gpu, demand={"compute": d}, granularity={"compute": s}, source="fit"
                )
                for name, (d, s) in uses.items()
            },
        )

    def workload(self, job: SimJob) -> str | None:
        """By its name, as in a jobs file or as in a trace."""
        return workload_of(job.spec.name, self.workloads)


def workload_of(name: str, known: Any) -> str | None:
    """The workload of a name: with its batch size, in either way of writing."""
    traced = _TRACE_NAME.match(name)
    if traced:
        name = f"{traced['job']}-{traced['batch']}"
    if name in known:
        return name
    match = _NAME.fullmatch(name)
    found = match["workload"] if match else ""
    return found if found in known else None


def read_pairs(path: Path, gpu: str) -> tuple[list[str], Pairs]:
    """The workloads and the measured pairs of the table ``oracle`` for one kind of GPU.

    Raises:
        UsageError: the file cannot be read, or is no such table.
    """
    names: dict[str, None] = {}
    pairs: dict[tuple[str, str], tuple[float, float]] = {}
    try:
        with open_text(path) as file:
            for row in csv.DictReader(file):
                if (row["table"], row["gpu"]) != ("oracle", gpu):
                    continue
                one, other = (_workload(row[f"job_{x}"], row[f"batch_{x}"]) for x in "ab")
                names |= {one: None, other: None}
                rates = float(row["rel_a"] or 0), float(row["rel_b"] or 0)
                if min(rates) > _MEASURED:
                    pairs[one, other] = rates
    except (KeyError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: is no table of pairs: {error!r}") from error
    if not pairs:
        raise UsageError(f"{path}: has no measured pairs of table oracle on {gpu}")
    return list(names), pairs


def _workload(job: str, batch: str) -> str:
    return f"{job}-{batch}" if batch else job
