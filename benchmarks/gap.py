"""How far policies are from the exhaustive optimum: random small cases on two GPUs.

python benchmarks/gap.py [--cases 200] [--jobs 8]
"""

from __future__ import annotations

import argparse
import statistics
from random import Random

from rmixer.model import Device, Estimate, JobSpec, Node, Profile
from rmixer.resources import GIB
from rmixer.simulate.compare import Comparison
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.oracle import best_makespan
from rmixer.simulate.worlds.network import NetworkWorld

POLICIES = ("complementary", "published-mix", "shortest-first", "lucid", "muri")
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
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=8, help="at most; at least 4")
    arguments = parser.parse_args()
    gaps: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    cut_off = 0
    for seed in range(arguments.cases):
        here = Comparison(case(seed, arguments.jobs), NODE, NetworkWorld())
        ends = {
            policy: max(span.end for span in here.simulate(policy).spans) for policy in POLICIES
        }
        found = best_makespan(here.jobs, here.members, NODE, here.world, at_most=min(ends.values()))
        cut_off += not found.exact
        for policy, end in ends.items():
            gaps[policy].append(end / found.seconds - 1.0)
    print(f"{arguments.cases} cases of 4 to {arguments.jobs} jobs; {cut_off} searches cut off")
    for policy, values in gaps.items():
        print(f"{policy:16} mean {statistics.mean(values):7.2%}  worst {max(values):7.2%}")


def case(seed: int, most: int) -> list[SimJob]:
    """Jobs of 10 to 100 s, demands of 0.03 to 0.9, granularities of 1/4 to 4, 1 to 8 of 16 GiB."""
    draw = Random(seed)
    return [_job(f"j{number}", draw) for number in range(draw.randint(4, most))]


def _job(name: str, draw: Random) -> SimJob:
    profile = Profile(
        device_kind="V100",
        solo_seconds=draw.uniform(10, 100),
        demand={"compute": draw.uniform(0.03, 0.9)},
        granularity={"compute": 2 ** draw.uniform(-2, 2)},
    )
    memory = int(draw.uniform(1, 8) * GIB)
    return SimJob(
        spec=JobSpec(id=name, name=name, kind="command"),
        profiles={"V100": profile},
        estimate=Estimate(memory=0, device_memory=memory),
    )


if __name__ == "__main__":
    main()
