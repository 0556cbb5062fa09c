"""How near estimates of peak memory are: every model of ours and plain scripts, really trained.

For each configuration the estimate is made first (nothing of it has been measured then), then a few
steps and an evaluation are trained on the CPU, in the environment that jobs have, and the kernel's
high-water mark of the process is read.

    python benchmarks/estimate.py             # all; writes results/estimate.json, docs/memory.md
    python benchmarks/estimate.py --only dpin # those with that in their name, in place of the old
    python benchmarks/estimate.py --smoke     # two configurations; checks that it works
    python benchmarks/estimate.py --table     # the table of the last results again, nothing is run
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pages
from rmixer.estimate.estimator import Estimator, Target, job_like_environment
from rmixer.estimate.host import train_once
from rmixer.estimate.quantiles import MISS, upper_factor
from rmixer.execute.environment import thread_settings
from rmixer.model import JobSpec
from rmixer.models import MODELS
from rmixer.models.features import HISTORY_MODELS
from rmixer.monitor import sample_tree
from rmixer.resources import MIB
from rmixer.spec import jobs_from_dicts
from rmixer.store import Store

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "estimate.json"
ERRORS = ROOT / "src" / "rmixer" / "estimate" / "errors.json"
DOCS = ROOT / "docs" / "memory.md"
STEPS = 8
#: A training takes seconds; beside other work, minutes, which changes nothing of its memory.
PATIENCE_SECONDS = 1200.0
BATCH_SIZES = (512, 2048, 8192)
#: Rows of data and of the largest table: the tables have some 20k to 2M rows together.
SIZES = ((60_000, 1_500), (200_000, 60_000), (800_000, 2_000_000))
SCRIPTS = (
    ["plain_mlp.py", "--epochs", "1"],
    ["plain_dcn.py"],
    ["plain_tables.py"],
)


@dataclass(frozen=True)
class Configuration:
    """One row of the table."""

    group: str  # left out together when the quantile is checked
    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)


def configurations() -> Iterator[Configuration]:
    """Models x optimizers x batch sizes x table sizes (each batch size with two), and scripts."""
    chosen = [(b, s) for b, s in itertools.product(range(3), range(3)) if (b + s) % 3 != 1]
    for model, optimizer in itertools.product(
        ("dlrm", "deepfm", "din"), ("rowwise_adagrad", "adam", "sgd")
    ):
        for b, s in chosen if optimizer != "sgd" else chosen[:3]:
            rows, table = SIZES[s]
            like = "behaviour" if model == "din" else "criteo"
            size = {"items": table} if model == "din" else {"max_table_rows": table}
            keys = {
                "model": model,
                "optimizer": {"name": optimizer, "lr": 0.01},
                "batch_size": BATCH_SIZES[b],
                "steps": STEPS,
                "threads": 1 if b != 1 else 2,
                "data": {"format": "generated", "like": like, "rows": rows, "seed": 1, **size},
            }
            name = f"{model} {optimizer} batch {BATCH_SIZES[b]} tables {table}"
            yield Configuration(model, name, keys)
    yield from _other_models()
    for words in SCRIPTS:
        keys = {"command": [sys.executable, *words], "threads": 1}
        yield Configuration("scripts", " ".join(words), keys)


def _other_models() -> Iterator[Configuration]:
    """Twice each of the models that are not looked at more closely."""
    for model in sorted(set(MODELS) - {"dlrm", "deepfm", "din"}):
        history = model in HISTORY_MODELS
        like = {"dpin": "kdd2012"}.get(model, "behaviour" if history else "criteo")
        for optimizer, batch_size, (rows, table) in (
            ("adam", 512, SIZES[0]),
            ("rowwise_adagrad", 2048, SIZES[1]),
        ):
            size = {"items": table, "categories": 100} if history else {"max_table_rows": table}
            keys = {
                "model": model,
                "optimizer": {"name": optimizer, "lr": 0.001},
                "batch_size": batch_size,
                "steps": STEPS,
                "threads": 1,
                "data": {"format": "generated", "like": like, "rows": rows, "seed": 1, **size},
            }
            name = f"{model} {optimizer} batch {batch_size} tables {table}"
            yield Configuration(model, name, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two configurations")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--only", default="", help="configurations whose name has this in it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.table:
        write_documents(json.loads(args.out.read_text()))
        return
    wanted = [c for c in configurations() if args.only in c.name]
    if args.smoke:
        wanted = [c for c in wanted if "batch 512 tables 1500" in c.name][:1] + wanted[-1:]
    began = time.time()
    rows: list[dict[str, Any]] = []
    for row in run(wanted):
        rows.append(row)
        print(line(row), flush=True)
        if not args.smoke:  # at once: a run that breaks off has not been for nothing
            args.out.parent.mkdir(exist_ok=True)
            document = merged(args.out, rows)
            args.out.write_text(json.dumps(document, indent=1) + "\n")
    if not args.smoke:
        write_documents(document)
    print(summary(rows, time.time() - began))


def merged(out: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results with these rows in place of those of the same names, in the table's order."""
    before = json.loads(out.read_text())["rows"] if out.exists() else []
    found = {row["name"]: row for row in (*before, *rows)}
    names = [c.name for c in configurations() if c.name in found]
    kept = [found[name] for name in names]
    return {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "rows": kept}


def run(wanted: Sequence[Configuration]) -> Iterator[dict[str, Any]]:
    """Estimate all, then train all, a row each."""
    with tempfile.TemporaryDirectory(prefix="estimate-") as name:
        folder = Path(name)
        cache = Path(os.environ.get("RMIXER_BENCH_CACHE", folder / "cache"))
        store = Store(folder / "store.sqlite")
        jobs = [
            jobs_from_dicts([{"name": f"c{i}", **c.keys}], ROOT / "examples")[0]
            for i, c in enumerate(wanted)
        ]
        estimator = Estimator(store, cache)
        estimates = [
            estimator.estimate([job], Target(), parse=True, measure=True, commands=True)[0]
            for job in jobs
        ]
        for configuration, job, estimate in zip(wanted, jobs, estimates, strict=True):
            measured = train(job, folder, cache)
            yield {
                "group": configuration.group,
                "name": configuration.name,
                "source": estimate.source,
                "estimated_bytes": estimate.host_bytes,
                "measured_bytes": measured,
                "seconds": round(estimate.seconds, 2),
                "parts": dict(estimate.bytes),
                "notes": list(estimate.notes),
            }


def train(job: JobSpec, folder: Path, cache: Path) -> int:
    """Train for real; the kernel's high-water mark of the process, bytes."""
    environment = job_like_environment()
    environment |= thread_settings(job.threads, environment)
    if job.kind == "command":
        return watched([str(word) for word in job.payload["argv"]], environment)
    asked = {key: value for key, value in job.payload.items() if value is not None}
    wanted = {**asked, "name": job.name, "threads": job.threads}
    measured = train_once(wanted, folder, cache, environment, limit_seconds=PATIENCE_SECONDS)
    return measured["peak_bytes"]


def watched(command: list[str], environment: Mapping[str, str]) -> int:
    """The high-water mark of a program, read until it ends: the mark never falls."""
    process = subprocess.Popen(
        command, env=dict(environment), cwd=ROOT / "examples", stdout=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, sample_tree([process.pid]).process_peak_bytes)
        time.sleep(0.01)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return peak


# --- figures --------------------------------------------------------------------------------------


def error(row: Mapping[str, Any]) -> float:
    """How far the estimate is above (positive) or below what was measured, as a share of it."""
    return float(row["estimated_bytes"]) / float(row["measured_bytes"]) - 1


def left_out(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """For each row: whether its reservation held, the quantile being fitted without its group."""
    held = []
    for row in rows:
        others = [
            float(r["measured_bytes"]) / float(r["estimated_bytes"])
            for r in rows
            if r["group"] != row["group"]
        ]
        reserved = float(row["estimated_bytes"]) * upper_factor(others)
        held.append((str(row["name"]), reserved >= float(row["measured_bytes"])))
    return held


def line(row: Mapping[str, Any]) -> str:
    estimated, measured = row["estimated_bytes"] / MIB, row["measured_bytes"] / MIB
    return (
        f"{row['name']:52} {row['source']:8} {estimated:8.0f} MiB {measured:8.0f} MiB "
        f"{100 * error(row):+6.1f} %  {row['seconds']:5.1f} s"
    )


def summary(rows: Sequence[Mapping[str, Any]], seconds: float) -> str:
    errors = [100 * error(row) for row in rows]
    misses = [name for name, held in left_out(rows) if not held] if len(rows) > 3 else []
    mean = sum(map(abs, errors)) / len(errors)
    return (
        f"{len(rows)} configurations in {seconds:.0f} s: mean absolute error {mean:.2f} %, "
        f"lowest {min(errors):+.1f} %, highest {max(errors):+.1f} %; reservations too small, the "
        f"group left out: {len(misses)} of {len(rows)} {misses or ''}"
    )


def machine() -> str:
    python, torch = platform.python_version(), version("torch")
    return f"{os.cpu_count()}-core x86 VM, Python {python}, torch {torch}"


def write_documents(document: Mapping[str, Any]) -> None:
    """The errors that the quantile is fitted to, and the table in the docs."""
    errors: dict[str, list[float]] = {}
    for row in document["rows"]:
        ratio = row["measured_bytes"] / row["estimated_bytes"]
        errors.setdefault(row["source"], []).append(round(ratio, 4))
    kept = {"measured": f"{document['machine']}, {document['date']}", "errors": errors}
    ERRORS.write_text(json.dumps(kept, indent=1) + "\n")
    pages.put(DOCS, "table", table(document))


def table(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    errors = [100 * error(row) for row in rows]
    misses = sum(not held for _, held in left_out(rows))
    mean = sum(map(abs, errors)) / len(errors)
    result = (
        f"{len(rows)} configurations: mean absolute error {mean:.2f} %, from {min(errors):+.1f} % "
        f"to {max(errors):+.1f} %. With the quantile for {100 * MISS:.1f} % misses fitted without "
        f"the row's own group, {misses} of {len(rows)} reservations were too small."
    )
    lines = [
        f"`python benchmarks/estimate.py`, {document['machine']}, {document['date']}.",
        result,
        "",
        "| configuration | source | estimated MiB | measured MiB | error | seconds |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['source']} | {row['estimated_bytes'] / MIB:.0f} | "
        f"{row['measured_bytes'] / MIB:.0f} | {100 * error(row):+.1f} % | {row['seconds']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
