"""RMixer against what people start a queue of trainings with: the numbers of docs/results.md.

    python benchmarks/bench.py            # under half an hour; writes results/bench.json, the page
    python benchmarks/bench.py --quick    # under five minutes, ratios only, nothing is written
    python benchmarks/bench.py --full     # more repeats, batches, optimizers; no limit of time
    python benchmarks/bench.py --table    # the tables of the last results again

Mixed: twelve plain scripts (`plain_script.py`), three of each of four kinds. Sweep: sixteen
trainings of DLRM on one text, by RMixer's trainer against the plain script. A runner is measured
for a window of steady state, which begins with the first step of any job; runners take turns. Work
is counted in seconds that it takes alone, one script after the other (mixed), or in samples
(sweep). Overhead: one plain script, bare and under RMixer, in turns.

The exit code is 1 if a goal is missed by more than the spread of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import pages
from bench_tables import ratios, tables
from plain_models import PlainDLRM
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset, in_order
from runners import CORES, CROWD, LOOP, ONE_EACH, OURS, RUNNERS, Queue
from windows import Window, measure, plain

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bench.json"
KINDS = ("dense_adam", "input", "compute", "storage")
#: A loss of a script may be so far from that alone, relative.
LOSSES_APART = 1e-3
#: Larger than what any runner does in a window.
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        seconds: of a window.
        mixed, sweep: the runners.
        sizes, optimizers, sweep_rows: of the sweep.
        script_seconds: what a plain script takes alone.
        alone: how many of the three of a kind are measured alone.
    """

    seconds: float = 40.0
    repeats: int = 2
    mixed: Sequence[str] = tuple(RUNNERS)
    sweep: Sequence[str] = (LOOP, ONE_EACH, "ray tune, half a core", OURS)
    sizes: Sequence[int] = (256, 2048)
    optimizers: Sequence[str] = ("adam",)
    sweep_rows: int = 1_000_000
    script_seconds: float = 12.0
    alone: int = 3


DEFAULT = Plan()
QUICK = Plan(
    seconds=12.0, repeats=1, mixed=(LOOP, CROWD, ONE_EACH, OURS), sweep=(LOOP, ONE_EACH, OURS),
    sizes=(256,), sweep_rows=300_000, script_seconds=6.0, alone=1,
)  # fmt: skip
FULL = Plan(repeats=3, sweep=tuple(RUNNERS), optimizers=("adam", "rowwise_adagrad"))
SMOKE = Plan(
    seconds=3.0, repeats=1, mixed=(LOOP, OURS), sweep=(LOOP, OURS), sizes=(256,),
    sweep_rows=2000, script_seconds=12.0, alone=1,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group()
    for name in ("quick", "full", "smoke", "table"):
        how.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", choices=["mixed", "sweep", "overhead"], nargs="*")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.table:
        pages.put("results.md", "bench", tables(json.loads(RESULTS.read_text())))
        return 0
    plan = QUICK if args.quick else FULL if args.full else SMOKE if args.smoke else DEFAULT
    document = run(plan, args.only or ("mixed", "sweep", "overhead"))
    if not (args.quick or args.smoke) or args.out != RESULTS:
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    if args.out == RESULTS and not (args.quick or args.smoke or args.only):
        pages.put("results.md", "bench", tables(document))
    print(tables(document))
    print(headline(document))
    return 1 if any(ratio["missed"] for ratio in document["ratios"]) or differ(document) else 0


def run(plan: Plan, parts: Sequence[str]) -> dict[str, Any]:
    """All parts; the document has every raw run."""
    document: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/bench.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{CORES}-core {platform.machine()} VM, Python {platform.python_version()}",
        "seconds": plan.seconds, "left_out": {}, "mixed": None, "sweep": [], "overhead": None,
    }  # fmt: skip
    plan = present(plan, document["left_out"])
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("TMPDIR")) as name:
        work = Path(name)
        if "mixed" in parts:
            document["mixed"] = mixed(plan, work)
        if "sweep" in parts:
            document["sweep"] = [
                sweep(plan, work, size, optimizer)
                for optimizer in plan.optimizers
                for size in plan.sizes
            ]
        if "overhead" in parts:
            document["overhead"] = overhead(plan, work)
    document["ratios"] = ratios(document)
    return document


def present(plan: Plan, left_out: dict[str, str]) -> Plan:
    """The plan without the runners that this machine lacks; why is kept and said."""
    for name in {*plan.mixed, *plan.sweep}:
        if why := RUNNERS[name].lack():
            left_out[name] = why
            print(f"{name} is left out: {why}", file=sys.stderr)
    return replace(
        plan,
        mixed=[name for name in plan.mixed if name not in left_out],
        sweep=[name for name in plan.sweep if name not in left_out],
    )


def mixed(plan: Plan, work: Path) -> dict[str, Any]:
    """Twelve scripts under each runner; alone first, for how long a step takes, and its losses."""
    names = {f"{kind}-{seed}": kind for seed in range(3) for kind in KINDS}
    options = {
        f"{kind}-{seed}": {**kind_options(kind, work), "seed": seed, "lr": 0.001 * (1 + seed)}
        for seed in range(3)
        for kind in KINDS
    }
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    losses = {}
    for name, kind in names.items():
        if int(name.rpartition("-")[2]) < plan.alone:
            found = solo(kind, name, options[name], plan.script_seconds / 3, work)
            speeds[kind].append(sum(found.done.values()) / found.seconds)
            losses[name] = found.losses[name]
    alone = {kind: statistics.median(each) for kind, each in speeds.items()}
    steps = {kind: max(3, round(rate * plan.script_seconds)) for kind, rate in alone.items()}
    queue = Queue(
        {
            name: plain(kind, name, steps=steps[kind], **options[name])
            for name, kind in names.items()
        }
    )
    runs = []
    for repeat in range(plan.repeats):
        for runner in plan.mixed:
            window = measure(runner, queue, plan.seconds, work)
            work_done = sum(window.done[name] / alone[kind] for name, kind in names.items())
            apart = max_apart(window.losses, losses)
            runs.append(
                {
                    "runner": runner, "repeat": repeat, "rate": work_done / window.seconds,
                    "startup_seconds": window.startup_seconds, "seconds": window.seconds,
                    "runner_cores": window.cpu_seconds / window.seconds, "losses_apart": apart,
                    "steps": dict(window.done),
                }
            )  # fmt: skip
            say(f"mixed: {runner}", runs[-1]["rate"], "of one at a time", window)
    return {"alone_steps_per_second": alone, "steps": steps, "runs": runs}


def differ(document: Mapping[str, Any]) -> bool:
    """Whether a loss is not the one alone; other numbers of threads round otherwise."""
    runs = document["mixed"]["runs"] if document["mixed"] else []
    return any(run["losses_apart"] > LOSSES_APART for run in runs)


def kind_options(kind: str, work: Path) -> dict[str, Any]:
    if kind == "input":
        return {"tsv": text(work, 20_000), "batch_size": 512}
    return {"compute": {"batch_size": 1024}}.get(kind, {})


def solo(kind: str, name: str, options: Mapping[str, Any], seconds: float, work: Path) -> Window:
    queue = Queue({name: plain(kind, name, steps=ENDLESS, **options)})
    return measure(LOOP, queue, seconds, work, least=3)


def max_apart(
    found: Mapping[str, Mapping[int, float]], alone: Mapping[str, Mapping[int, float]]
) -> float:
    """The largest difference of the loss of any job, at any step, from that alone; relative."""
    return max(
        (
            abs(loss - wanted[step]) / max(abs(wanted[step]), 0.1)
            for name, wanted in alone.items()
            for step, loss in found.get(name, {}).items()
            if step in wanted
        ),
        default=0.0,
    )


def sweep(plan: Plan, work: Path, size: int, optimizer: str) -> dict[str, Any]:
    """Sixteen learning rates of one DLRM: our trainer against the plain script; samples/s."""
    path = text(work, plan.sweep_rows)
    rates = [round(0.0005 * 1.15**i, 7) for i in range(16)]
    sizes = Path(path).with_suffix(".sizes").read_text()
    options = {"optimizer": optimizer, "batch_size": size, "tsv": path, "rows": sizes}
    commands = {
        f"lr-{lr}": plain("dlrm", f"lr-{lr}", steps=ENDLESS, lr=lr, **options) for lr in rates
    }
    dense, sparse = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
    columns = {"label": "label", "dense": dense, "sparse": sparse}
    data = {
        "format": "csv", "path": path, "valid": {"fraction": 0.0},
        "schema": {**columns, "columns": ["label", *dense, *sparse], "delimiter": "\t"},
    }  # fmt: skip
    jobs = [
        {
            "name": f"lr-{lr}", "model": "dlrm", "optimizer": {"name": optimizer, "lr": lr},
            "batch_size": size, "steps": ENDLESS, "threads": 1, "data": data,
        }
        for lr in rates
    ]  # fmt: skip
    measure(OURS, Queue({}, [{**jobs[0], "steps": 20}]), 1.0, work)  # parses the text
    runs = []
    for repeat in range(plan.repeats):
        for runner in plan.sweep:
            queue = Queue(commands, jobs if runner == OURS else ())
            window = measure(runner, queue, plan.seconds, work)
            rate = sum(window.done.values()) * size / window.seconds
            runs.append(
                {
                    "runner": runner, "repeat": repeat, "rate": rate,
                    "startup_seconds": window.startup_seconds, "seconds": window.seconds,
                }
            )  # fmt: skip
            say(f"sweep {optimizer} {size}: {runner}", rate, "samples/s", window)
    return {
        "batch_size": size, "optimizer": optimizer, "rows": plan.sweep_rows, "runs": runs,
        "flop_per_sample": flop_per_sample(), "flop_per_second": flop_per_second(),
    }  # fmt: skip


def flop_per_sample() -> float:
    """Of a training step of the DLRM of the sweep: three products per layer, two FLOP per weight.

    The dot products of 27 vectors of 16 come to it, forward and twice backward.
    """
    model = PlainDLRM([1] * 26, 13)
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    return 6.0 * (weights + 27 * 27 * 16)


def flop_per_second(seconds: float = 1.0) -> float:
    """What all cores do of a product of matrices of 1024 in float32: the best of some."""
    torch.set_num_threads(CORES)
    a = torch.randn(1024, 1024)
    best, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    return best


def text(work: Path, rows: int) -> str:
    """A Criteo-shaped text: label, numbers, ids; each column's ids numbered from 0."""
    path = work / f"rows-{rows}.tsv"
    if path.exists():
        return str(path)
    data = {"format": "generated", "like": "criteo", "rows": rows, "seed": 1}
    spec = schema.parse({**data, "valid": {"fraction": 0.0}})
    dataset = Dataset(cache.prepare(spec, work / "made"))
    path.with_suffix(".sizes").write_text(",".join(str(t.rows) for t in dataset.info.tables))
    with path.open("wb") as file:
        for some in in_order(np.arange(rows), 100_000):
            batch = dataset.batch(some)
            columns = [batch.label_B.int().numpy()]
            columns += [*batch.dense_BN.numpy().T, *batch.sparse_BF.numpy().T]
            frame = pl.DataFrame({str(i): column for i, column in enumerate(columns)})
            frame.write_csv(file, include_header=False, separator="\t")
    return str(path)


def overhead(plan: Plan, work: Path) -> dict[str, Any]:
    """One script, bare and under RMixer, in turns: steps/s, time to the first step, own CPU."""
    runs = []
    queue = Queue({"compute": plain("compute", "compute", steps=ENDLESS, batch_size=1024)})
    for repeat in range(max(3, plan.repeats) if plan.seconds > 2 else 1):
        for runner in (LOOP, OURS):
            window = measure(runner, queue, plan.seconds / 3, work)
            runs.append(
                {
                    "runner": runner, "repeat": repeat,
                    "rate": sum(window.done.values()) / window.seconds,
                    "startup_seconds": window.startup_seconds,
                    "runner_cores": window.cpu_seconds / window.seconds,
                }
            )  # fmt: skip
            say(f"overhead: {runner}", runs[-1]["rate"], "steps/s", window)
    return {"runs": runs}


def headline(document: Mapping[str, Any]) -> str:
    """One line."""
    return "; ".join(
        f"{r['what']} {r['median']:.2f}x over {r['over']}" for r in document["ratios"] if r["goal"]
    )


def say(what: str, value: float, unit: str, window: Window) -> None:
    print(f"{what}: {value:.2f} {unit}, start {window.startup_seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
