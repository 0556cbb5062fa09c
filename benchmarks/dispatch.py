"""What deciding costs: one decision with many waiting jobs, and a cluster's whole trace.

    python benchmarks/dispatch.py [--parts decisions growth philly] [--traces ../shared/traces]

decisions  1,000 GPUs that are full, 10,000 and 100,000 waiting jobs; jobs end and others come, and
           each time the dispatcher is asked what to do. Milliseconds per event, the log's words
           included; the first plan, which fills the empty cluster, is told apart.
growth     the same with 1,250 to 80,000 waiting jobs on a tenth of so many GPUs, and the exponent b
           of median = a * n ** b, n the waiting jobs (n log n grows with about b = 1.1 there).
philly     the jobs of Philly's trace, those of several GPUs on whole ones, on 1,000 and on 390 GPUs
           (load 0.96), simulated with the default policy. What the jobs of one GPU use is drawn
           from the 24 published workloads; the world is the network of these demands.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.model import Active, Device, Estimate, JobSpec, Node, Outcome, Profile, StateName
from rmixer.policies.complementary import Complementary
from rmixer.resources import GIB
from rmixer.simulate.compare import percentile
from rmixer.simulate.engine import Engine, Result
from rmixer.simulate.jobs import SimJob, jobs_from_specs
from rmixer.simulate.traces import read_trace
from rmixer.simulate.worlds.network import NetworkWorld
from rmixer.spec import load_jobs_file
from rmixer.spec.machine import load_machine

EXAMPLES = Path(__file__).parents[1] / "examples"
KIND = "Tesla V100-SXM2-32GB"
PHILLY = "pollux_philly/philly.csv.gz"
DONE = Outcome(state=StateName.SUCCEEDED)
SIZES = tuple(1250 * 2**k for k in range(7))


def clock() -> float:
    """Seconds by the clock on the wall, or of the processor if `main` was asked for that."""
    return CLOCKS[0]()


CLOCKS = [time.perf_counter]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--gpus", type=int, nargs="*", default=[1000, 390], help="of philly")
    parser.add_argument("--first", type=int, help="of philly, only so many jobs")
    parser.add_argument("--queued", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--events", type=int, default=1000, help="per number of waiting jobs")
    parser.add_argument("--workloads", type=int, default=14, help="of decisions: different uses")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="of growth")
    parser.add_argument("--cpu-time", action="store_true", help="of the processor: others run too")
    parser.add_argument("--out", type=Path, help="JSON")
    arguments = parser.parse_args()
    CLOCKS[0] = time.process_time if arguments.cpu_time else time.perf_counter
    found = {part: PARTS[part](arguments) for part in arguments.parts}
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def cluster(gpus: int) -> Node:
    """V100 of 32 GiB under MPS, 16 cores and 256 GiB of host memory for each."""
    devices = (
        Device(id=f"GPU-{i}", kind=KIND, index=i, memory=32 * GIB, sharing="mps")
        for i in range(gpus)
    )
    return Node(
        name=f"{gpus}-gpus",
        cores=tuple(range(16 * gpus)),
        memory=256 * gpus * GIB,
        devices=(Device(places=0), *devices),
    )


# --- single decisions ----------------------------------------------------------------------------


class Load:
    """A dispatcher of a full cluster, and jobs that come and go."""

    def __init__(self, gpus: int, queued: int, workloads: int, seed: int = 0) -> None:
        self.draw, self.now, self.count = Random(seed), 0.0, 0
        self.uses = [
            (self.draw.uniform(0.05, 0.9), 2 ** self.draw.uniform(-2, 2), self.draw.uniform(1, 16))
            for _ in range(workloads)
        ]
        self.core = Dispatcher(Complementary())
        self.core.handle(ev.Began(wall=0.0, run="r", name="r", node=cluster(gpus), policy=""))
        places = 0
        while places < queued:  # the cluster takes some of them
            for _ in range(queued - places):
                self.submit()
            self.seconds_to_fill = self.ask(ev.Woke(at=self.now, wall=self.now))
            places = len(self.core.state.pending)
        self.running = [job.id for job in self.core.state.active]

    def submit(self) -> None:
        demand, grain, memory = self.draw.choice(self.uses)
        profile = Profile(
            device_kind=KIND,
            solo_seconds=self.draw.expovariate(1 / 3600),
            demand={"compute": demand},
            granularity={"compute": grain},
            source="declared",
        )
        name = f"job-{self.count}"
        self.count += 1
        spec = JobSpec(id=name, name=name, kind="command", device="gpu")
        estimate = Estimate(memory=0, device_memory=int(memory * GIB), source="hint")
        self.ask(
            ev.Submitted(
                at=self.now, wall=self.now, spec=spec, estimate=estimate, profiles={KIND: profile}
            )
        )

    def ask(self, event: ev.Observed) -> float:
        """How long the dispatcher takes for an event, seconds."""
        began = clock()
        actions = self.core.handle(event)
        seconds = clock() - began
        if not isinstance(event, ev.Submitted):
            for action in actions:
                if isinstance(action, ev.Placed) and hasattr(self, "running"):
                    self.running.append(action.job)
        return seconds

    def decisions(self, events: int) -> Iterator[float]:
        """A job ends, another comes: what each of the two decisions takes."""
        for _ in range(events // 2):
            self.now += self.draw.expovariate(1.0)
            at = self.draw.randrange(len(self.running))
            self.running[at], self.running[-1] = self.running[-1], self.running[at]
            job = self.core.state.jobs[self.running.pop()]
            assert isinstance(job.state, Active)
            yield self.ask(
                ev.Exited(
                    at=self.now, wall=self.now, job=job.id, token=job.state.attempt.token,
                    outcome=DONE,
                )
            )  # fmt: skip
            self.submit()
            yield self.ask(ev.Woke(at=self.now, wall=self.now))


def measure(gpus: int, queued: int, events: int, workloads: int) -> dict[str, float]:
    """Milliseconds per decision on a full cluster with so many waiting jobs."""
    load = Load(gpus, queued, workloads)
    gc.collect()
    times = [1000.0 * seconds for seconds in load.decisions(events)]
    return {
        "gpus": gpus,
        "queued": len(load.core.state.pending),
        "running": len(load.core.state.active),
        "seconds_to_fill": load.seconds_to_fill,
        "median_ms": percentile(times, 0.5) or 0.0,
        "p99_ms": percentile(times, 0.99) or 0.0,
        "max_ms": max(times),
    }


def decisions(arguments: Any) -> list[dict[str, float]]:
    """10,000 and 100,000 waiting jobs on 1,000 GPUs."""
    print("| GPUs | waiting | running | median, ms | p99, ms | longest, ms |")
    print("|---|---|---|---|---|---|")
    rows = []
    for queued in arguments.queued:
        row = measure(1000, queued, arguments.events, arguments.workloads)
        print(
            f"| {row['gpus']} | {row['queued']} | {row['running']} | {row['median_ms']:.2f} "
            f"| {row['p99_ms']:.2f} | {row['max_ms']:.2f} |",
            flush=True,
        )
        rows.append(row)
    return rows


def growth(arguments: Any) -> dict[str, Any]:
    """How the cost of a decision grows with the size of the problem."""
    sizes: list[int] = arguments.sizes
    rows = [measure(n // 10, n, arguments.events, arguments.workloads) for n in sizes]
    found: dict[str, Any] = {"rows": rows}
    for key in ("median_ms", "p99_ms"):
        found[f"exponent_of_{key}"] = exponent(sizes, [row[key] for row in rows])
        print(
            f"{key}: "
            + ", ".join(f"{n}: {row[key]:.2f}" for n, row in zip(sizes, rows, strict=True))
            + f"; grows as n ** {found[f'exponent_of_{key}']:.2f}"
        )
    return found


def exponent(sizes: list[int], values: list[float]) -> float:
    """B of values = a * sizes ** b, by least squares of the logarithms."""
    x, y = [math.log(n) for n in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True))
    return above / sum((one - mean_x) ** 2 for one in x)


# --- a cluster's trace ---------------------------------------------------------------------------


def philly(arguments: Any) -> list[dict[str, Any]]:
    """The whole trace on clusters of so many GPUs."""
    rows = []
    for gpus in arguments.gpus:
        node = cluster(gpus)
        trace = read_trace(
            arguments.traces / PHILLY, node, like=workloads(), first=arguments.first, gangs=True
        )
        engine = Engine(trace.jobs, node, Complementary(), NetworkWorld())
        gc.collect()
        began = clock()
        result = engine.run()
        rows.append(figures(gpus, trace.jobs, result, clock() - began))
        show(rows[-1])
    return rows


def workloads() -> list[SimJob]:
    """The 24 published jobs on one V100."""
    node = load_machine(EXAMPLES / "machines/v100-32gb.yaml")
    file = load_jobs_file(EXAMPLES / "published/balance_24.yaml", require_data=False)
    return jobs_from_specs(file.jobs, node)


def figures(gpus: int, jobs: list[SimJob], result: Result, seconds: float) -> dict[str, Any]:
    """What it took, and how the jobs fared."""
    job = {one.id: one for one in jobs}
    waits = [span.start - job[span.job].arrival for span in result.spans]
    times = [span.end - job[span.job].arrival for span in result.spans]
    makespan = max(span.end for span in result.spans)
    events = 2 * len(jobs)
    return {
        "gpus": gpus,
        "jobs": len(jobs),
        "of_several_gpus": sum((one.spec.gpus or 1) > 1 for one in jobs),
        "load": sum((one.spec.gpus or 1) * one.least_seconds for one in jobs)
        / (gpus * max(one.arrival for one in jobs)),
        "succeeded": sum(j.state.name == StateName.SUCCEEDED for j in result.state.jobs.values()),
        "seconds_to_simulate": seconds,
        "ms_per_decision": 1000.0 * seconds / events,
        "most_waiting": most_waiting(jobs, result),
        "mean_wait_seconds": sum(waits) / len(waits),
        "mean_jct_seconds": sum(times) / len(times),
        "makespan_seconds": makespan,
    }


def most_waiting(jobs: list[SimJob], result: Result) -> int:
    """The longest that the queue was."""
    steps = [(one.arrival, 1) for one in jobs] + [(span.start, -1) for span in result.spans]
    waiting = most = 0
    for _, step in sorted(steps):
        waiting += step
        most = max(most, waiting)
    return most


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['jobs']} jobs, {row['of_several_gpus']} of several GPUs, on {row['gpus']} GPUs, "
        f"load {row['load']:.2f}: simulated in {row['seconds_to_simulate']:.1f} s "
        f"({row['ms_per_decision']:.2f} ms per decision); at most {row['most_waiting']} waited, "
        f"mean wait {row['mean_wait_seconds']:.0f} s, mean JCT {row['mean_jct_seconds']:.0f} s, "
        f"{row['succeeded']} succeeded",
        flush=True,
    )


PARTS = {"decisions": decisions, "growth": growth, "philly": philly}

if __name__ == "__main__":
    main()
