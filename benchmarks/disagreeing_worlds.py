"""Worlds that disagree with the model: policies on jobs that are not what they are said to be.

    python benchmarks/disagreeing_worlds.py [--seeds 8] [--jobs 40] [--json] [--only pairs twins]

The truth is Gavel's table of pairs that were measured on a V100. What the policies believe of each
job is wrong: demand and granularity by up to 30 %, memory by 15 %, lengths by 10 %. On one GPU and
on four, with any number of jobs per GPU and with at most two; mean over seeds that draw jobs and
errors. Lengths are those of Gavel's own generator of traces, its shorter four fifths
(log-uniform from 32 to 1,000 minutes); memory is assumed (0.5 to 6 of 16 GiB).

And twelve twins that fill the GPU: side by side two of them are done later than one after the
other (their rates sum to 0.92), but are believed to be worth it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from rmixer import catalog
from rmixer.model import Device, Estimate, JobSpec, Node, Profile, StateName
from rmixer.resources import GIB
from rmixer.simulate.compare import Comparison
from rmixer.simulate.engine import Result
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.worlds.gavel import GavelWorld

TABLE = Path("../shared/traces/gavel/gavel_pairs.csv.gz")
OURS = "complementary"
OTHERS = (
    "exclusive", "fixed:k=2", "mps-rounds", "backfill", "backfill:places=4", "shortest-first",
    "published-sequential", "published-random", "published-intensity", "published-memory",
    "published-type", "published-static", "published-cognn", "published-mix",
    "lucid", "muri", "carma",
)  # fmt: skip
ERRORS = {"demand": 0.3, "granularity": 0.3, "memory": 0.15, "duration": 0.1, "noise": 0.03}
#: GPUs, and how many jobs a GPU may have; None: any number.
SETTINGS = ((1, None), (4, None), (1, 2), (4, 2))
TWINS, TWIN_SECONDS, TWIN_SUM = 12, 300.0, 0.92


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--policies", nargs="*", default=OTHERS, help="others than ours")
    parser.add_argument("--ours", default=OURS, help="ours, perhaps with options")
    parser.add_argument("--only", nargs="*", choices=("pairs", "twins"), default=("pairs", "twins"))
    parser.add_argument("--settings", type=int, nargs="*", default=range(len(SETTINGS)))
    parser.add_argument("--verbose", action="store_true", help="each makespan as it is known")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"seeds": arguments.seeds, "jobs": arguments.jobs}
    if "pairs" in arguments.only:
        document["pairs"] = measure_pairs(arguments)
    if "twins" in arguments.only:
        document["twins"] = measure_twins(arguments)
    print(json.dumps(document, indent=2) if arguments.json else markdown(document))


def measure_pairs(arguments: Any) -> list[dict[str, Any]]:
    """One row per setting."""
    world = GavelWorld(table=str(arguments.table), **ERRORS)
    names = (arguments.ours, *arguments.policies)
    rows = []
    for gpus, places in (SETTINGS[at] for at in arguments.settings):
        node = machine(gpus, places)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        most: Counter[str] = Counter()
        for seed in range(arguments.seeds):
            jobs = draw_jobs(world, arguments.jobs, seed)
            here = Comparison(jobs, node, world, seed=seed)
            for name in names:
                found = here.simulate(name)
                check(found)
                seconds[name].append(found.state.at)
                most[name] = max(most[name], most_ooms(found))
                if arguments.verbose:
                    print(gpus, places, seed, name, found.state.at, file=sys.stderr, flush=True)
        rows.append(row(arguments.ours, gpus, places, seconds, most))
    return rows


def row(
    ours: str, gpus: int, places: int | None, seconds: dict[str, list[float]], most: Counter[str]
) -> dict[str, Any]:
    """Ours against the others: by the mean makespan, and in how many seeds ours is first."""
    means = {name: statistics.fmean(found) for name, found in seconds.items()}
    others = {name: mean for name, mean in means.items() if name != ours}
    best = min(others, key=lambda name: others[name])
    firsts = sum(
        mine <= min(seconds[name][seed] for name in others)
        for seed, mine in enumerate(seconds[ours])
    )
    return {
        "gpus": gpus,
        "places": places,
        "ours_seconds": means[ours],
        "best_other": best,
        "best_other_seconds": others[best],
        "ahead": others[best] / means[ours] - 1.0,
        "first_in_seeds": firsts,
        "most_ooms_of_a_job": most[ours],
        "mean_seconds": means,
    }


def measure_twins(arguments: Any) -> list[dict[str, Any]]:
    """One row per seed: twelve alike whose pairs do harm, against one after the other."""
    overhead = 1.0 / TWIN_SUM - 1.0
    wrong = ",".join(f"{key}={share}" for key, share in ERRORS.items())
    world = catalog.build_world(f"network:overhead={overhead},{wrong}")
    node = machine(1, None)
    rows = []
    for seed in range(arguments.seeds):
        here = Comparison(draw_twins(), node, world, seed=seed)
        found = here.simulate(arguments.ours)
        check(found)
        rows.append(
            {
                "seed": seed,
                "ours_seconds": found.state.at,
                "one_by_one_seconds": TWINS * TWIN_SECONDS,
                "slower": found.state.at / (TWINS * TWIN_SECONDS) - 1.0,
                "suspensions": sum(len(getattr(span, "stood", ())) for span in found.spans),
                "most_ooms_of_a_job": most_ooms(found),
            }
        )
    return rows


# --- jobs and machines ----------------------------------------------------------------------------


def machine(gpus: int, places: int | None) -> Node:
    return Node(
        name=f"{gpus}-v100",
        cores=tuple(range(32)),
        memory=512 * GIB,
        devices=tuple(
            Device(id=f"GPU-{i}", kind="v100", index=i, memory=16 * GIB, places=places)
            for i in range(gpus)
        ),
    )


def draw_jobs(world: GavelWorld, count: int, seed: int) -> list[SimJob]:
    """Jobs of the table's workloads; those of one workload are a family."""
    draw = Random(f"{seed}:jobs")
    found = []
    for number in range(count):
        workload = draw.choice(list(world.workloads))
        seconds, memory = 60 * 10 ** draw.uniform(1.5, 3), draw.uniform(0.5, 6)
        found.append(sim_job(f"{workload}-{number}", workload, seconds, int(memory * GIB)))
    return found


def draw_twins() -> list[SimJob]:
    return [
        sim_job(f"twin-{number}", "twin", TWIN_SECONDS, 2 * GIB, compute=1.0)
        for number in range(TWINS)
    ]


def sim_job(name: str, family: str, seconds: float, memory: int, **demand: float) -> SimJob:
    profile = Profile(device_kind="v100", solo_seconds=seconds, demand=demand, source="declared")
    return SimJob(
        spec=JobSpec(id=name, name=name, kind="command", family=family, device="gpu"),
        profiles={"v100": profile},
        estimate=Estimate(memory=0, device_memory=memory, source="hint"),
    )


# --- what happened --------------------------------------------------------------------------------


def check(found: Result) -> None:
    states = {job.state.name for job in found.state.jobs.values()}
    assert states == {StateName.SUCCEEDED}, f"not all jobs succeeded: {states}"


def most_ooms(found: Result) -> int:
    """The most attempts of one job that ended out of memory."""
    ends = Counter(s.job for s in found.spans if s.state == StateName.OUT_OF_MEMORY)
    return max(ends.values(), default=0)


def markdown(document: dict[str, Any]) -> str:
    lines = []
    if "pairs" in document:
        lines += [
            "| GPUs | jobs per GPU | ours, s | best other | its, s | ahead | first in | OOMs |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['gpus']} | {r['places'] or 'any'} | {r['ours_seconds']:.0f} "
            f"| {r['best_other']} | {r['best_other_seconds']:.0f} | {r['ahead']:+.1%} "
            f"| {r['first_in_seeds']} of {document['seeds']} | {r['most_ooms_of_a_job']} a job |"
            for r in document["pairs"]
        ]
    if "twins" in document:
        slower = [r["slower"] for r in document["twins"]]
        lines.append(
            f"\ntwins: {statistics.fmean(slower):+.1%} in the mean over one by one, "
            f"{max(slower):+.1%} at worst"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
