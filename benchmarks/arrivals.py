"""Jobs that arrive over time: published traces with recommendation jobs, on two GPUs.

    python benchmarks/arrivals.py [--jobs 150] [--loads 0.7 0.85 0.95] [--traces ../shared/traces]

Arrivals and lengths are those of the traces of Philly and Gavel; what jobs use is Gavel's
Recommendation workloads (fitted to its pairs), their memory is assumed (1 to 6 GiB of 16). With
--large 0.03 so many of the jobs need nearly a whole GPU. Lengths are cut at a hundred times the
median: a few jobs of weeks would be all that the means tell.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from rmixer.model import Device, Estimate, JobSpec, Node, Profile
from rmixer.resources import GIB
from rmixer.simulate.compare import Comparison
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.traces import read_trace
from rmixer.simulate.worlds.gavel import GavelWorld

POLICIES = (
    "fifo:places=4", "fifo", "backfill", "shortest-first", "lucid", "muri", "complementary",
)  # fmt: skip
BATCHES = (512, 1024, 2048, 4096, 8192)
TRACES = {"philly": "pollux_philly/philly.csv.gz", "gavel": "gavel/msr_seed0_2869ce.trace.gz"}
NODE = Node(
    name="two-gpus",
    cores=tuple(range(32)),
    memory=256 * GIB,
    devices=tuple(
        Device(id=f"GPU-{i}", kind="V100", index=i, memory=16 * GIB, sharing="mps")
        for i in range(2)
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.7, 0.85, 0.95])
    parser.add_argument("--large", type=float, default=0.0)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--only", nargs="*", choices=TRACES, default=list(TRACES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    arguments = parser.parse_args()
    world = GavelWorld(table=str(arguments.traces / "gavel/gavel_pairs.csv.gz"))
    print("| trace | load | policy | mean JCT | p99 slowdown | max slowdown | makespan |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.only:
        jobs = read(arguments.traces / TRACES[name], arguments)
        for load in arguments.loads:
            here = Comparison(jobs, NODE, world, seed=arguments.seed, load=load)
            for policy in arguments.policies:
                show(name, load, here.run(policy).figures)


def read(path: Path, arguments: Any) -> list[SimJob]:
    """The jobs of a trace, with use and memory of recommendation jobs."""
    rows = read_trace(path, NODE, first=arguments.jobs).jobs
    median = statistics.median(job.least_seconds for job in rows)
    draw = Random(arguments.seed)
    jobs = []
    for number, row in enumerate(rows):
        batch = draw.choice(BATCHES)
        memory = 14 if draw.random() < arguments.large else 1 + BATCHES.index(batch)
        name = f"Recommendation-{batch}-{number}"
        profile = Profile(
            device_kind="V100", solo_seconds=min(row.least_seconds, 100 * median), source="trace"
        )
        jobs.append(
            replace(
                row,
                spec=JobSpec(id=name, name=name, kind="command", device="gpu"),
                profiles={"V100": profile},
                estimate=Estimate(memory=0, device_memory=memory * GIB, source="hint"),
            )
        )
    return jobs


def show(trace: str, load: float, figures: dict[str, Any]) -> None:
    print(
        f"| {trace} | {load:g} | {figures['policy']} | {figures['mean_jct_seconds']:.0f} "
        f"| {figures['p99_slowdown']:.1f} | {figures['max_slowdown']:.1f} "
        f"| {figures['makespan_seconds']:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
