"""How much co-location gains: one at a time, k at a time, all at once, and `complementary`.

Every repeat runs each policy once, in turn (A B C D A B C D ...), so that what the machine does
meanwhile hits all alike; ratios are taken within a repeat, and their median is quoted. Each run has
a new store: nothing is known of any job beforehand. Data are parsed once before the first run.

    python benchmarks/colocate.py                     # the quickstart's jobs, then with two readers
    python benchmarks/colocate.py --repeats 1 --smoke # seconds; checks that it works
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
RESULTS = Path(__file__).resolve().parent / "results"

ALONE = "sequential"
CROWD = "all-at-once"
HAND_TUNED = "fixed:k=2,threads=1"
OURS = "complementary"

#: Ratios that the project wants to reach, by scenario and what it is compared with.
GOALS = {
    ("quickstart", ALONE): 1.45,
    ("quickstart", HAND_TUNED): 0.97,
    ("with readers", HAND_TUNED): 1.15,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], metavar="POLICY", help="leave out")
    parser.add_argument("--smoke", action="store_true", help="tiny jobs, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS / "colocate.json")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        work = Path(folder)
        scenarios = smoke_scenarios(work) if args.smoke else full_scenarios(work)
        warm_up(scenarios, work)
        runs = [
            {"scenario": name, "repeat": repeat, **measure(file, policy, work)}
            for name, (file, policies) in scenarios.items()
            for repeat in range(args.repeats)
            for policy in policies
            if policy not in args.without
        ]
    document = {
        "command": " ".join(["python", "benchmarks/colocate.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "runs": runs,
        "ratios": ratios(runs),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(render(document))


def full_scenarios(work: Path) -> dict[str, tuple[Path, Sequence[str]]]:
    """The quickstart's eight jobs; the same with two readers of slow storage among them."""
    quickstart = YAML(typ="safe").load(EXAMPLES / "quickstart.yaml")
    for job in quickstart["jobs"]:
        if "command" in job:
            job["workdir"] = str(EXAMPLES)
    readers = json.loads(json.dumps(quickstart))
    for position, name in ((1, "reader-1"), (4, "reader-2")):
        reader = {"name": name, "command": "python slow_reader.py", "workdir": str(EXAMPLES)}
        readers["jobs"].insert(position, reader)
    return {
        "quickstart": (
            write(quickstart, work / "quickstart.yaml"),
            (ALONE, CROWD, HAND_TUNED, OURS),
        ),
        "with readers": (write(readers, work / "readers.yaml"), (HAND_TUNED, OURS)),
    }


def smoke_scenarios(work: Path) -> dict[str, tuple[Path, Sequence[str]]]:
    """Four jobs of half a second each."""
    count = "sum(range(10**7))"
    jobs = [{"name": f"count-{i}", "command": ["python3", "-c", count]} for i in range(4)]
    file = write({"jobs": jobs}, work / "smoke.yaml")
    return {
        "quickstart": (file, (ALONE, CROWD, HAND_TUNED, OURS)),
        "with readers": (file, (HAND_TUNED, OURS)),
    }


def write(document: Mapping[str, Any], path: Path) -> Path:
    YAML().dump(document, path)
    return path


def warm_up(scenarios: Mapping[str, tuple[Path, Sequence[str]]], work: Path) -> None:
    """Parse the data into the cache, so that no policy has to do it for the others."""
    file, _ = scenarios["quickstart"]
    document = YAML(typ="safe").load(file)
    document["jobs"] = [dict(job, steps=1) for job in document["jobs"] if "model" in job]
    if document["jobs"]:
        measure(write(document, work / "warm.yaml"), HAND_TUNED, work)


def measure(file: Path, policy: str, work: Path) -> dict[str, Any]:
    """One run in a process of its own, with a store of its own."""
    with tempfile.TemporaryDirectory(dir=work) as home:
        environment = os.environ | {
            "RMIXER_HOME": home,
            "RMIXER_CACHE": str(work / "cache"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [sys.executable, "-m", "rmixer", "run", str(file), "--policy", policy, "--json"]
        done = subprocess.run(
            [*command, "--runs-dir", f"{home}/runs"],
            env=environment,
            capture_output=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr.decode()}")
    document = json.loads(done.stdout)
    print(f"{file.stem:12} {policy:24} {document['makespan_seconds']:7.1f} s", file=sys.stderr)
    return {
        "policy": policy,
        "makespan_seconds": document["makespan_seconds"],
        "aggregate_samples_per_second": document["aggregate_samples_per_second"],
        "bound": document["bound"],
        "sequential": document["sequential"],
        "auc": {job["name"]: job["metrics"].get("auc") for job in document["jobs"]},
        "job_seconds": {job["name"]: job["seconds"] for job in document["jobs"]},
    }


def ratios(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ours over each of the others, within each repeat; median and spread."""
    found = []
    for scenario in dict.fromkeys(run["scenario"] for run in runs):
        here = [run for run in runs if run["scenario"] == scenario]
        ours = {run["repeat"]: run["makespan_seconds"] for run in here if run["policy"] == OURS}
        for policy in dict.fromkeys(run["policy"] for run in here if run["policy"] != OURS):
            values = [
                run["makespan_seconds"] / ours[run["repeat"]]
                for run in here
                if run["policy"] == policy
            ]
            found.append(
                {
                    "scenario": scenario,
                    "over": policy,
                    "median": statistics.median(values),
                    "least": min(values),
                    "most": max(values),
                    "goal": GOALS.get((scenario, policy)),
                }
            )
    return found


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def render(document: Mapping[str, Any]) -> str:
    """Tables for people."""
    lines = [f"{document['machine']['cores']} cores, {document['machine']['cpu']}", ""]
    for scenario in dict.fromkeys(run["scenario"] for run in document["runs"]):
        lines.append(f"{scenario}: makespan, median of the repeats")
        here = [run for run in document["runs"] if run["scenario"] == scenario]
        for policy in dict.fromkeys(run["policy"] for run in here):
            times = [run["makespan_seconds"] for run in here if run["policy"] == policy]
            spread = f"{min(times):.1f} to {max(times):.1f}"
            lines.append(f"  {policy:24} {statistics.median(times):7.1f} s   ({spread})")
        bounds = [run["bound"] for run in here if run["policy"] == OURS]
        middle = statistics.median(bound["makespan_seconds"] for bound in bounds)
        lines += [f"  {'limit':24} {middle:7.1f} s   ({bounds[0]['bottleneck']})", ""]
    lines.append(f"{OURS} is so many times faster than (median, least to most, goal)")
    for ratio in document["ratios"]:
        goal = f"goal {ratio['goal']:.2f}" if ratio["goal"] else ""
        spread = f"{ratio['least']:.2f} to {ratio['most']:.2f}"
        what = f"{ratio['scenario']:14} {ratio['over']:22}"
        lines.append(f"  {what} {ratio['median']:.2f}x  ({spread})  {goal}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    main()
