"""How fast Criteo's text comes into the cache, and what a second job on the same data adds.

Rows per second on one core, from the text to the finished and synced data set, in a process of its
own, the kinds in turns: plain, gzip, zstd, without the compiled loops, and for scale polars that
only reads the text. Then two processes go through all rows of the data set, shuffled: what the
first one has of it in memory (its share of the mapped pages and what it allocated), and what the
second one adds to the sum.

    python benchmarks/reading.py            # all; writes results/reading.json, docs/data.md
    python benchmarks/reading.py --smoke    # few rows; checks that it works
    python benchmarks/reading.py --json     # the document on stdout
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pages
from rmixer.data import cache, schema
from rmixer.data.generate import write
from rmixer.data.generated import sizes_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "reading.json"
DOCS = ROOT / "docs" / "data.md"
zstd = importlib.import_module(
    "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
)
#: Kind, what it is called in the table, the goal in rows per second.
KINDS = (
    ("plain", "text", 300_000),
    ("gz", "text, gzip", 0),
    ("zst", "text, zstd", 0),
    ("slow", "text, without numba", 0),
    ("polars", "polars `read_csv` alone", 0),
)
SHARE_GOAL = 0.10

PREPARE = """
import sys, time, pathlib
kind, path, folder = sys.argv[1:]
if kind == "slow":
    sys.modules["numba"] = None
import polars
from rmixer.data import cache, compiled, schema
began = time.perf_counter()
if kind != "slow":
    compiled.kernels()
ready = time.perf_counter()
if kind == "polars":
    polars.read_csv(path, separator="\\t", has_header=False, infer_schema_length=10000)
else:
    spec = schema.parse({"format": "criteo", "path": path})
    cache.prepare(spec, pathlib.Path(folder))
print(time.perf_counter() - ready, ready - began)
"""

#: Goes through all rows of a data set, tells what it allocated for it, and waits to be let go.
USE = """
import pathlib, sys
import numpy as np, torch
from rmixer.data.dataset import Dataset, shuffled
from rmixer.monitor import own_memory
torch.set_num_threads(1)
torch.zeros(4096, 40).sum()
before = own_memory()["anonymous_bytes"]
data = Dataset(pathlib.Path(sys.argv[1]))
for rows in shuffled(data.train_rows, 2048, 0, 1):
    data.batch(rows)
print(own_memory()["anonymous_bytes"] - before, flush=True)
sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few rows, one repeat")
    parser.add_argument("--json", action="store_true", help="the document on stdout")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rows, repeats = (4_000, 1) if args.smoke else (1_500_000, args.repeats)
    with tempfile.TemporaryDirectory(prefix="reading-") as name:
        folder = Path(name)
        paths = prepare(folder, rows)
        runs = [
            {kind: seconds(kind, paths, folder) for kind, _, _ in KINDS} for _ in range(repeats)
        ]
        memory = shared(paths["plain"], folder)
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "versions": {p: version(p) for p in ("numba", "polars", "numpy")},
        "date": time.strftime("%Y-%m-%d"),
        "rows": rows,
        "seconds": {kind: [run[kind] for run in runs] for kind, _, _ in KINDS},
        "memory": memory,
    }
    if not args.smoke:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        write_table(document)
    print(json.dumps(document) if args.json else table(document))


def prepare(folder: Path, rows: int) -> dict[str, Path]:
    """The same rows as plain, gzip and zstd text."""
    plain = folder / "train.tsv"
    write("criteo", sizes_of("criteo", rows=rows, seed=1), plain)
    raw = plain.read_bytes()
    packed = {"gz": folder / "train.tsv.gz", "zst": folder / "train.tsv.zst"}
    packed["gz"].write_bytes(gzip.compress(raw, 6))
    packed["zst"].write_bytes(zstd.compress(raw))
    return {"plain": plain, "slow": plain, "polars": plain, **packed}


def seconds(kind: str, paths: Mapping[str, Path], folder: Path) -> float:
    """From the text to the data set, in a fresh process on one core; its imports do not count."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-c", PREPARE, kind, str(paths[kind]), place]
        done = subprocess.run(
            command,
            env={**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
            stdout=subprocess.PIPE,
            check=True,
        )
    return float(done.stdout.split()[0])


def shared(path: Path, folder: Path) -> dict[str, int]:
    """Bytes of the data set that one job has in memory, and what a second one adds to them."""
    built = cache.prepare(schema.parse({"format": "criteo", "path": str(path)}), folder / "cache")
    users: list[subprocess.Popen[str]] = []
    own: list[int] = []
    sums = []
    try:
        for _ in range(2):
            command = [sys.executable, "-c", USE, str(built)]
            pipe = subprocess.PIPE
            user = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            users.append(user)
            assert user.stdout is not None
            own.append(max(0, int(user.stdout.readline())))
            sums.append(sum(mapped(one.pid, built) for one in users) + sum(own))
    finally:
        for user in users:
            user.communicate("")
    return {"first_bytes": sums[0], "second_adds_bytes": sums[1] - sums[0]}


def mapped(pid: int, folder: Path) -> int:
    """A process's share (PSS) of the mapped files of a folder, bytes."""
    total, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            ours = str(folder) in line
        elif ours and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def table(document: Mapping[str, Any]) -> str:
    rows, memory = document["rows"], document["memory"]
    share = memory["second_adds_bytes"] / max(1, memory["first_bytes"])
    repeats = len(document["seconds"]["plain"])
    lines = [
        f"`python benchmarks/reading.py`, {document['machine']}, {document['date']}:",
        f"{rows:,} rows of Criteo's text on one core, medians of {repeats} repeats in turns.",
        "",
        "| source | rows/s | lowest to highest | goal |",
        "|---|---:|---|---:|",
    ]
    for kind, what, goal in KINDS:
        speeds = sorted(rows / s for s in document["seconds"][kind])
        wanted = f"{goal:,}" if goal else ""
        middle = statistics.median(speeds)
        lines.append(
            f"| {what} | {middle:,.0f} | {speeds[0]:,.0f} to {speeds[-1]:,.0f} | {wanted} |"
        )
    lines += [
        "",
        f"The first job that goes through them has {memory['first_bytes'] / 2**20:.0f} MiB of them",
        f"in memory; a second one adds {memory['second_adds_bytes'] / 2**20:.1f} MiB to the sum,",
        f"{100 * share:.1f} % (goal: below {100 * SHARE_GOAL:.0f} %).",
    ]
    return "\n".join(lines)


def write_table(document: Mapping[str, Any]) -> None:
    """Put the figures into the page."""
    pages.put(DOCS, "reading", table(document))


if __name__ == "__main__":
    main()
