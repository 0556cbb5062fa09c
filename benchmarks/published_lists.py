"""Writes examples/published/*.yaml: the published task lists as jobs files with declared profiles.

    python benchmarks/published_lists.py [--facts ../shared/facts] [--out examples/published]

Sources: the 14 workloads of the published system (GPU utilisation, memory, seconds of 500
iterations alone on a V100) and its list balance_24; the other seven lists are ours, drawn with the
published shares of job types. CPU: 2.45 times as long for din, 2.9 for deepfm (from the published
log), 6 times for compute-heavy jobs and 3 times for the others (assumed).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

#: Times as long on the CPU as on the GPU.
MEASURED_ON_CPU = {"amazon_din": 2.45, "criteo_deepfm": 2.9}
ASSUMED_ON_CPU = {"compute": 6.0, "memory": 3.0, "low": 3.0}
#: MiB where the source gives none.
ASSUMED_MIB = {"beauty_bert4rec": 2000.0}

HEADER = """\
# {title}
# From the authors' public code and log (Gardenia-Tian/RMixer, 2024): GPU utilisation as `compute`,
# memory, and the seconds of 500 iterations alone on a V100. On the CPU: measured for din and
# deepfm, assumed for the others (6 times as long for compute-heavy jobs, else 3 times).
# Written by benchmarks/published_lists.py. These jobs have no data: they are for `rmixer simulate`.
jobs:
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--facts", type=Path, default=Path("../shared/facts"))
    parser.add_argument("--out", type=Path, default=Path("examples/published"))
    arguments = parser.parse_args()
    with (arguments.facts / "published-workloads.csv").open() as file:
        workloads = {row["workload"]: row for row in csv.DictReader(file)}
    lists: dict[str, list[str]] = defaultdict(list)
    with (arguments.facts / "task-lists.csv").open() as file:
        for row in sorted(csv.DictReader(file), key=lambda row: int(row["position"])):
            lists[row["list"]].append(row["workload"])
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, members in lists.items():
        stem = name.rstrip("0123456789")
        path = arguments.out / f"{stem}_{name.removeprefix(stem)}.yaml"
        path.write_text(_title(name, len(members)) + _jobs(members, workloads))
        print(f"{path}: {len(members)} jobs")


def _title(name: str, jobs: int) -> str:
    whose = "the published one" if name == "balance24" else "ours, by the published shares"
    return HEADER.format(title=f"Task list {name}: {jobs} jobs, {whose}.")


def _jobs(members: list[str], workloads: dict[str, dict[str, str]]) -> str:
    seen: dict[str, int] = defaultdict(int)
    lines = []
    for workload in members:
        seen[workload] += 1
        lines.append(_job(f"{workload}-{seen[workload]}", workloads[workload]))
    return "".join(lines)


def _job(name: str, row: dict[str, str]) -> str:
    workload, solo = row["workload"], float(row["solo_seconds_500_iterations"])
    slower = MEASURED_ON_CPU.get(workload, ASSUMED_ON_CPU[row["type"]])
    memory = float(row["published_memory_mib"] or ASSUMED_MIB[workload])
    demand = float(row["gpu_utilisation_percent"]) / 100
    return (
        f"  - name: {name}\n"
        f"    model: {row['model']}\n"
        f"    batch_size: {row['batch_size']}\n"
        f"    optimizer: {row['optimizer']}\n"
        f"    steps: 500\n"
        f"    gpu_memory: {memory:g}MiB\n"
        f"    profile:\n"
        f"      devices:\n"
        f"        gpu: {{solo_seconds: {solo:g}, demand: {{compute: {demand:g}}}}}\n"
        f"        cpu: {{solo_seconds: {solo * slower:g}}}\n"
    )


if __name__ == "__main__":
    main()
