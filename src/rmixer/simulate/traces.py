"""Traces of clusters as jobs: when each came, how long it ran, what is said of its use.

    Gavel      .trace: tab-separated, a type of job per line (msr_*, physical_*)
    Philly     CSV: timestamp, duration, num_gpus (as the authors of Pollux filtered it)
    Muri       CSV: submit_time, duration, milliseconds per iteration on each resource
    Alibaba    CSV: creation_time, deletion_time, gpu_milli (the openb pods of 2023)

Only the jobs of one GPU are taken, or with `gangs` those of several as well, which have them whole;
the others are counted. Of a trace that says nothing of use it
is taken from jobs that do (`like`), stretched to the length in the trace; without them a job keeps
its GPU busy all the time. A pod of Alibaba's has the share of a GPU that it asked for, of the
memory too; memory that a trace does not say is that of `like`, else as given.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import TextIO

from rmixer.errors import UsageError
from rmixer.model import CPU, GPU_STATIONS, Estimate, JobSpec, Node, Profile
from rmixer.simulate.files import open_text
from rmixer.simulate.jobs import SimJob, seconds_of
from rmixer.spec.identity import unique_ids

_SUFFIXES = (".trace", ".csv")
_GAVEL = re.compile(r"(?P<job>\S+)( \(batch size (?P<batch>\d+)\))?")


@dataclass(frozen=True, slots=True)
class Row:
    """One job of a trace."""

    name: str
    arrival: float
    seconds: float
    gpus: int = 1
    demand: Mapping[str, float] | None = None
    memory_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace, and how many were left out: those of no GPU, or of too many."""

    jobs: list[SimJob]
    left_out: int


def is_trace(path: Path) -> bool:
    """Whether a file is a trace, by its name."""
    name = path.name.removesuffix(".gz")
    return name.endswith(_SUFFIXES)


def read_trace(
    path: Path,
    node: Node,
    *,
    like: Sequence[SimJob] = (),
    first: int | None = None,
    gpu_memory: int = 0,
    seed: int = 0,
    gangs: bool = False,
) -> Trace:
    """The jobs of a trace on a machine.

    Args:
        path: the file.
        node: the machine; every GPU of it counts as the one that the trace was made on.
        like: where use and memory are from if the trace does not say, drawn by the seed.
        first: only so many jobs.
        gpu_memory: of a job whose memory is not known, bytes; 0: the whole GPU.
        seed: of what is drawn.
        gangs: take the jobs of several GPUs too, as far as the machine has so many of a kind.

    Raises:
        UsageError: it cannot be read, or is no trace that is known.
    """
    with open_text(path) as file:
        try:
            rows = sorted(_rows(file, path), key=lambda row: row.arrival)
        except (KeyError, ValueError, IndexError, csv.Error) as error:
            raise UsageError(f"{path}: is no trace of a known form: {error!r}") from error
    kinds = Counter(device.kind for device in node.devices if device.kind != CPU)
    most = max(kinds.values(), default=1) if gangs else 1
    usable = [row for row in rows if 1 <= row.gpus <= most and row.seconds > 0]
    if not usable:
        few = f"1 to {most} GPUs" if most > 1 else "one GPU"
        raise UsageError(f"{path}: has no job of {few}")
    chosen = list(islice(usable, first))
    start = chosen[0].arrival
    gpus = {d.kind: d.memory for d in node.devices if d.kind != CPU}
    if not gpus:
        raise UsageError(f"{path}: its jobs train on GPUs, and {node.name} has none")
    draw = Random(f"{seed}:like")
    names = unique_ids([row.name for row in chosen])
    return Trace(
        [
            _job(row, name, start, gpus, draw.choice(like) if like else None, gpu_memory)
            for row, name in zip(chosen, names, strict=True)
        ],
        sum(not 1 <= row.gpus <= most for row in rows),
    )


def _job(
    row: Row, name: str, start: float, gpus: Mapping[str, int], like: SimJob | None, memory: int
) -> SimJob:
    arrival = row.arrival - start
    if row.demand is None and like is not None:
        gpus_asked = row.gpus if row.gpus > 1 else like.spec.gpus
        spec = replace(like.spec, id=name, name=like.spec.name, after=(), gpus=gpus_asked)
        factor = row.seconds / like.least_seconds
        profiles = {
            kind: replace(profile, solo_seconds=seconds_of(profile) * factor)
            for kind, profile in like.profiles.items()
        }
        return SimJob(spec=spec, profiles=profiles, estimate=like.estimate, arrival=arrival)
    profiles = {
        kind: Profile(
            device_kind=kind,
            solo_seconds=row.seconds,
            demand=dict(row.demand or {GPU_STATIONS[0]: 1.0}),
            source="trace",
        )
        for kind in gpus
    }
    memory = int(row.memory_share * min(gpus.values())) or memory
    spec = JobSpec(
        id=name, name=row.name, kind="command", family=row.name, device="gpu",
        gpus=row.gpus if row.gpus > 1 else None,
    )  # fmt: skip
    estimate = Estimate(memory=0, device_memory=memory, source="hint")
    return SimJob(spec=spec, profiles=profiles, estimate=estimate, arrival=arrival)


def _rows(file: TextIO, path: Path) -> Iterator[Row]:
    if path.name.removesuffix(".gz").endswith(".trace"):
        yield from _gavel(file, path)
        return
    reader = csv.DictReader(file)
    columns = set(reader.fieldnames or ())
    for needed, read in _FORMS:
        if needed <= columns:
            yield from (read(row) for row in reader if _is_whole(row))
            return
    known = "; ".join(", ".join(sorted(needed)) for needed, _ in _FORMS)
    raise UsageError(f"{path}: is no trace of a known form; a CSV has the columns {known}")


def _is_whole(row: Mapping[str, str]) -> bool:
    """Whether a pod of Alibaba's was ever scheduled; the rows of others are whole."""
    return all(row.get(key, "0") != "" for key in ("scheduled_time", "deletion_time"))


def _philly(row: Mapping[str, str]) -> Row:
    at = datetime.fromisoformat(row["timestamp"]).timestamp()
    return Row(f"philly-{row['cluster']}", at, float(row["duration"]), int(row["num_gpus"]))


def _muri(row: Mapping[str, str]) -> Row:
    """Times are milliseconds; the shares of an iteration on the GPU and on the network."""
    iteration = float(row["iteration_time"])
    demand = {
        "compute": min(1.0, float(row["resource_time_1"]) / iteration),
        "transfer": min(1.0, float(row["resource_time_2"]) / iteration),
    }
    name = f"{row['model_name']}-{row['batch_size']}"
    arrival, seconds = float(row["submit_time"]) / 1000, float(row["duration"]) / 1000
    return Row(name, arrival, seconds, int(row["num_gpu"]), demand)


def _alibaba(row: Mapping[str, str]) -> Row:
    share = float(row["gpu_milli"] or 0) / 1000
    seconds = float(row["deletion_time"]) - float(row["scheduled_time"])
    return Row(
        row["name"], float(row["creation_time"]), seconds, int(row["num_gpu"]),
        {"compute": min(1.0, share)}, share,
    )  # fmt: skip


_FORMS = (
    (frozenset({"timestamp", "duration", "num_gpus", "cluster"}), _philly),
    (frozenset({"submit_time", "duration", "iteration_time", "resource_time_1"}), _muri),
    (frozenset({"creation_time", "deletion_time", "scheduled_time", "gpu_milli"}), _alibaba),
)


def _gavel(file: TextIO, path: Path) -> Iterator[Row]:
    """Lines of ten fields (physical) or seven (msr); the speeds alone stand beside the trace."""
    speeds = gavel_speeds(path.parent / "gavel_pairs.csv.gz")
    for line in file:
        fields = line.rstrip("\n").split("\t")
        steps, arrival, gpus = (
            (fields[5], fields[9], fields[6]) if len(fields) >= 10  # noqa: PLR2004
            else (fields[4], fields[5], fields[6])
        )  # fmt: skip
        match = _GAVEL.fullmatch(fields[0])
        if match is None or (match["job"], match["batch"] or "") not in speeds:
            raise ValueError(f"no speed is known of {fields[0]!r}")
        seconds = float(steps) / speeds[match["job"], match["batch"] or ""]
        yield Row(fields[0], float(arrival), seconds, int(gpus))


def gavel_speeds(path: Path, gpu: str = "v100") -> dict[tuple[str, str], float]:
    """Steps per second alone, by job and batch size, from the table ``simulation``."""
    with open_text(path) as file:
        return {
            (row["job_a"], row["batch_a"]): float(row["alone_a"])
            for row in csv.DictReader(file)
            if (row["table"], row["gpu"]) == ("simulation", gpu)
        }
