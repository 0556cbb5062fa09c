"""The eight task lists on 1 and 4 GPUs, with and without two CPU places: every policy, two margins.

    python benchmarks/published_cells.py [--cells balance_24:1] [--parts ours] [--out FILE.json]

One cell is a list on a machine. Per cell: the bound and what is attainable, the makespan of each
policy with its published margin of memory and with 1.05 (part published), ours (part ours), and the
best published policy at any number of places, chosen after the fact, also without the CPU where
there is one (part hindsight, many minutes).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rmixer.simulate.compare import Comparison
from rmixer.simulate.jobs import jobs_from_specs
from rmixer.simulate.worlds.network import NetworkWorld
from rmixer.spec import load_jobs_file
from rmixer.spec.machine import load_machine

EXAMPLES = Path(__file__).parents[1] / "examples"
KINDS = ("balance", "bandwidth", "computing", "memory")
LISTS = [f"{kind}_{count}" for count in (24, 72) for kind in KINDS]
MACHINES = {
    "1": "v100-32gb", "1+cpu": "v100-32gb-cpu2", "4": "v100-32gb-x4", "4+cpu": "v100-32gb-x4-cpu2",
}  # fmt: skip
BASELINES = ("monolithic", "exclusive")
JOB_POLICIES = ("sequential", "random", "intensity", "memory", "type", "static", "cognn", "mix")
PUBLISHED = ["mps-rounds", *(f"published-{name}" for name in JOB_POLICIES)]
OURS = "complementary"
OUR_MARGIN = 1.05
PLACES = (2, 3, 4, 6, 8, 12, 16, 24)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="*", metavar="LIST:GPUS", help="for example balance_24:1")
    parser.add_argument("--parts", nargs="*", default=["published", "ours"], choices=PARTS)
    parser.add_argument("--out", type=Path, help="JSON; parts that are not asked for are kept")
    parser.add_argument("--markdown", action="store_true", help="only print what --out holds")
    arguments = parser.parse_args()
    if arguments.markdown:
        table(json.loads(arguments.out.read_text()))
        return
    wanted = arguments.cells or [":".join(cell) for cell in itertools.product(LISTS, MACHINES)]
    known: dict[str, Any] = {}
    if arguments.out and arguments.out.exists():
        known = json.loads(arguments.out.read_text())
    for cell in wanted:
        found = known.setdefault(cell, {})
        for part in arguments.parts:
            found |= PARTS[part](*cell.split(":"))
        print(line(cell, found), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(known, indent=1) + "\n")


def comparison(name: str, machine: str) -> Comparison:
    node = load_machine(EXAMPLES / "machines" / f"{MACHINES[machine]}.yaml")
    file = load_jobs_file(EXAMPLES / "published" / f"{name}.yaml", require_data=False)
    return Comparison(jobs_from_specs(file.jobs, node), node, NetworkWorld())


def published(name: str, machine: str) -> dict[str, Any]:
    """Limits, baselines and the published policies at their four places, seconds."""
    here = comparison(name, machine)
    return {
        "bound": here.bound[0],
        "bottleneck": here.bound[1],
        "attainable": here.attainable_seconds,
        "sequential": here.sequential_seconds,
        "baselines": {policy: makespan(here, policy) for policy in BASELINES},
        "published": {policy: makespan(here, policy) for policy in PUBLISHED},
        "published_1.05": {p: makespan(here, f"{p}:margin={OUR_MARGIN}") for p in PUBLISHED},
    }


def ours(name: str, machine: str) -> dict[str, Any]:
    """Ours, with both margins, seconds; and how long it took to simulate it."""
    here, began = comparison(name, machine), time.monotonic()
    found = {"ours": makespan(here, OURS)}
    found["seconds_to_simulate"] = round(time.monotonic() - began, 2)
    return found | {"ours_1.2": makespan(here, f"{OURS}:margin=1.2")}


def hindsight(name: str, machine: str) -> dict[str, Any]:
    """The best published policy at any number of places, with both margins."""
    return {
        "hindsight": best_of(name, machine, ""),
        "hindsight_1.05": best_of(name, machine, f",margin={OUR_MARGIN}"),
    }


PARTS = {"published": published, "ours": ours, "hindsight": hindsight}


def makespan(here: Comparison, policy: str) -> float:
    """Without the limits, which take longer than a run."""
    spans = here.simulate(policy).spans
    return max(span.end for span in spans)


def best_of(name: str, machine: str, margin: str) -> dict[str, Any]:
    """The best published policy at any number of places."""
    best: dict[str, Any] = {"seconds": math.inf}
    for kind in dict.fromkeys([machine, machine.removesuffix("+cpu")]):
        here = comparison(name, kind)
        devices = ["fewest-workers"] if kind[0] == "1" else ["fewest-workers", "lowest-utilisation"]
        for places, job in itertools.product(PLACES, JOB_POLICIES):
            for device in ["mix"] if job == "mix" else devices:
                policy = f"published-{job}:places={places},device={device}{margin}"
                result = makespan(here, policy)
                if result < best["seconds"]:
                    best = {"seconds": result, "policy": policy, "machine": kind}
    return best


def table(known: dict[str, Any]) -> None:
    """The cells as two tables of Markdown: how many times as long others take."""
    for key, words in (("", "published margins (1.2; ours 1.05)"), ("_1.05", "all with 1.05")):
        print(f"\n{words}\n")
        print("| list | machine | ours, s | x attainable | best published, 4 places "
              "| in hindsight, any places | monolithic | exclusive |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|")
        for cell, found in known.items():
            mine = found["ours"]
            after = found.get(f"hindsight{key}")
            rounds, refilled = (found["baselines"][name] / mine for name in BASELINES)
            print(
                f"| {cell.split(':')[0]} | {cell.split(':')[1]} | {mine:.0f} "
                f"| {mine / found['attainable']:.2f} "
                f"| {min(found[f'published{key}'].values()) / mine:.2f} "
                f"| {_ratio(after, mine)} "
                f"| {rounds:.2f} | {refilled:.2f} |"
            )


def _ratio(after: dict[str, Any] | None, mine: float) -> str:
    return "-" if after is None else f"{after['seconds'] / mine:.2f}"


def line(cell: str, found: dict[str, Any]) -> str:
    """A cell for people: how many times as long others take."""
    parts = [f"{cell:18}"]
    mine = found.get("ours")
    if mine is None:
        return f"{cell:18} best published {min(found['published'].values()):.1f}"
    parts += [f"ours {mine:7.1f}", f"{mine / found['attainable']:.3f} x attainable"]
    for key in ("published", "published_1.05"):
        parts.append(f"{key} {min(found[key].values()) / mine:.3f}")
    for key in ("hindsight", "hindsight_1.05"):
        parts += [f"{key} {found[key]['seconds'] / mine:.3f}"] if key in found else []
    parts += [f"{name} {found['baselines'][name] / mine:.2f}" for name in BASELINES]
    return "  ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
