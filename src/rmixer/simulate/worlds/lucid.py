"""The world of Lucid's measured pairs (ASPLOS 2023; its data are for non-commercial use)."""

from __future__ import annotations

import csv
from pathlib import Path

from rmixer.errors import UsageError
from rmixer.model import Profile
from rmixer.simulate.files import open_text
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.gavel import workload_of
from rmixer.simulate.worlds.pairs import Pairs, PairWorld

_KEYS = ("model", "dataset", "batchsize", "amp")


class LucidWorld(PairWorld):
    """Pairs of 66 configurations on one GPU of 24 GB; demands straight from their solo table.

    Compute is the GPU's utilisation less that of its memory, bandwidth the latter. Jobs are known
    by name: ``ResNet18-CIFAR-10-64-0`` (model, data, batch size, mixed precision), then perhaps a
    number.

    Args:
        folder: with ``single_data.csv`` and ``colocate_info.csv.gz``.
        errors: demand, granularity, duration, memory, noise, failures; see `World`.
    """

    name = "lucid"

    def __init__(
        self,
        *,
        folder: str,
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
        profiles = _read_single(Path(folder) / "single_data.csv")
        self._learn(_read_pairs(Path(folder) / "colocate_info.csv.gz", profiles), profiles)

    def workload(self, job: SimJob) -> str | None:
        """By its name."""
        return workload_of(job.spec.name, self.workloads)


def _read_single(path: Path) -> dict[str, Profile]:
    found = {}
    try:
        with open_text(path) as file:
            for row in csv.DictReader(file):
                busy, bandwidth = float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100
                demand = {"compute": max(0.0, busy - bandwidth), "bandwidth": bandwidth}
                name = "-".join(row[key] for key in _KEYS)
                found[name] = Profile(device_kind="gpu", demand=demand, source="table")
    except (KeyError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: is no table of single jobs: {error!r}") from error
    if not found:
        raise UsageError(f"{path}: has no rows")
    return found


def _read_pairs(path: Path, known: dict[str, Profile]) -> Pairs:
    pairs: dict[tuple[str, str], tuple[float, float]] = {}
    try:
        with open_text(path) as file:
            for row in csv.DictReader(file):
                one, other = ("-".join(row[f"{key}{x}"] for key in _KEYS) for x in "12")
                rates = float(row["speed1"]), float(row["speed2"])
                if one in known and other in known and min(rates) > 0:
                    pairs[one, other] = rates
                    pairs.setdefault((other, one), (rates[1], rates[0]))
    except (KeyError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: is no table of pairs: {error!r}") from error
    return pairs
