"""One training of ours against a plain PyTorch script of the usual kind that does the same.

The plain side has an `nn.Embedding` per column, torch.optim.Adam, and a row-wise TSV `DataLoader`.
Both start from the same weights and see the same rows in the same order, with torch's default
threads. First their losses are compared, with tables as the data need them: in float64 over 100
steps (1e-9), in float32 over 20 (1e-5), and at 100 steps ours may be no further from float64 than
the worse of torch's own Adams, which is chaotic, so the medians of seven seeds are compared. Then
they are timed in turns with 26 tables of 100,000 rows; the last case has tables as the data need
them.

    python benchmarks/trainer.py              # all; writes results/trainer.json, docs/training.md
    python benchmarks/trainer.py --smoke      # small; checks that it works
    python benchmarks/trainer.py --losses     # only compares losses again; keeps the speeds
    python benchmarks/trainer.py --table      # the table of the last results again
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import pages
from plain_models import PLAIN, TsvRows
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset, shuffled
from rmixer.data.info import DataInfo
from rmixer.models.model import build, objective
from rmixer.train import optimizers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "trainer.json"
DOCS = ROOT / "docs" / "training.md"
LR = 0.001
TABLE_ROWS = 100_000
#: Which way a rounding goes decides what a hundred steps later is; three seeds can mislead.
SEEDS = tuple(range(7))


@dataclass(frozen=True)
class Case:
    """What is compared.

    Attributes:
        model: by name.
        size: of a batch.
        goal: for the ratio of speeds; 0 for none.
        large: tables of `TABLE_ROWS`; else as many rows as the data have ids.
    """

    model: str
    size: int
    goal: float
    large: bool = True


CASES = (
    Case("dlrm", 256, 10.0),
    Case("dlrm", 2048, 2.5),
    Case("deepfm", 256, 5.0),
    Case("dcn_v2", 256, 5.0),
    Case("dlrm", 256, 0.0, large=False),
)


@dataclass(frozen=True)
class Bench:
    """The data, as both sides read them; how far apart the losses of a case are."""

    dataset: Dataset
    tsv: Path
    apart: dict[Case, dict[str, float]] = field(default_factory=dict)

    def info(self, case: Case) -> DataInfo:
        """The tables' sizes."""
        info = self.dataset.info
        rows = [max(TABLE_ROWS, table.rows) for table in info.tables]
        return DataInfo.from_sizes(rows, len(info.dense)) if case.large else info

    def order(self, size: int, steps: int) -> list[np.ndarray]:
        """The rows of so many batches."""
        found: list[np.ndarray] = []
        epoch = 0
        while len(found) < steps:
            epoch += 1
            found += islice(shuffled(self.dataset.train_rows, size, 0, epoch), steps - len(found))
        return found


def prepare(folder: Path, rows: int, table: int) -> Bench:
    data = {
        "format": "generated", "like": "criteo", "rows": rows, "seed": 1, "max_table_rows": table,
        "valid": {"fraction": 0.0},
    }  # fmt: skip
    dataset = Dataset(cache.prepare(schema.parse(data), folder / "cache"))
    path = folder / "train.tsv"
    batch = dataset.batch(np.arange(rows))
    with path.open("w") as file:
        columns = (batch.label_B, batch.dense_BN, batch.sparse_BF)
        for label, dense, ids in zip(*(c.tolist() for c in columns), strict=True):
            file.write("\t".join(map(str, [int(label), *dense, *ids])) + "\n")
    return Bench(dataset, path)


def our_losses(
    bench: Bench, model: nn.Module, order: Sequence[np.ndarray], dtype: torch.dtype
) -> list[float]:
    optimizer = optimizers.build({"name": "adam", "lr": LR}, model)
    losses = []
    for rows in order:
        batch = bench.dataset.batch(rows)
        if dtype == torch.float64:
            batch = replace(batch, dense_BN=batch.dense_BN.double(), label_B=batch.label_B.double())
        loss = objective(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def plain_losses(
    batches: Sequence[tuple[Tensor, Tensor, Tensor]],
    model: nn.Module,
    dtype: torch.dtype,
    **kind: bool,
) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, **kind)
    losses = []
    for dense, ids, label in batches:
        optimizer.zero_grad()
        logits = model(dense.to(dtype), ids)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label.to(dtype))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def from_text(bench: Bench, order: Sequence[np.ndarray]) -> DataLoader:
    """The batches as the plain script reads them."""
    data = TsvRows(str(bench.tsv), len(bench.dataset.info.dense))
    return DataLoader(data, batch_sampler=[rows.tolist() for rows in order])


def pair(
    bench: Bench, case: Case, dtype: torch.dtype, seed: int = 0
) -> tuple[nn.Module, nn.Module]:
    """Ours, and the plain one with the same weights."""
    torch.manual_seed(seed)
    info = bench.info(case)
    ours = build(case.model, {}, info)
    plain = PLAIN[case.model]([table.rows for table in info.tables], len(info.dense))
    plain.take(ours)
    return ours.to(dtype), plain.to(dtype)


def compare(bench: Bench, case: Case, steps: int, seeds: Sequence[int]) -> dict[str, float]:
    """How far the losses are apart: the largest difference of any step, medians of the seeds.

    Raises:
        SystemExit: further than what is promised.
    """
    order = bench.order(case.size, steps)
    batches = list(from_text(bench, order))
    each = [_compare(bench, case, order, batches, seed) for seed in seeds]
    found = {key: statistics.median(one[key] for one in each) for key in each[0]}
    found["float64"] = max(one["float64"] for one in each)
    found["float32_20_steps"] = max(one["float32_20_steps"] for one in each)
    print(f"{case.model} batch {case.size}: losses apart by {found}", flush=True)
    if found["float64"] > 1e-9 or found["float32_20_steps"] > 1e-5:
        raise SystemExit(f"{case}: the losses are not the same: {found}")
    return found


def _compare(
    bench: Bench,
    case: Case,
    order: Sequence[np.ndarray],
    batches: Sequence[tuple[Tensor, Tensor, Tensor]],
    seed: int,
) -> dict[str, float]:
    ours, plain = pair(bench, case, torch.float64, seed)
    truth = plain_losses(batches, plain, torch.float64)
    exact = _apart(our_losses(bench, ours, order, torch.float64), truth)
    ours, loop = pair(bench, case, torch.float32, seed)
    _, fused = pair(bench, case, torch.float32, seed)
    mine = our_losses(bench, ours, order, torch.float32)
    theirs = plain_losses(batches, loop, torch.float32, foreach=False)
    others = plain_losses(batches, fused, torch.float32, fused=True)
    return {
        "float64": exact,
        "float32_20_steps": _apart(mine[:20], theirs[:20]),
        "ours_from_float64": _apart(mine, truth),
        "torch_from_float64": max(_apart(theirs, truth), _apart(others, truth)),
        "torch_from_torch": _apart(theirs, others),
    }


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.abs(np.subtract(a, b)).max())


def speeds(bench: Bench, case: Case, steps: tuple[int, int]) -> tuple[float, float]:
    """Samples per second of ours and of the plain script, after some steps to warm up."""
    warm, size = 5, case.size
    ours, plain = pair(bench, case, torch.float32)
    found = []
    optimizer = optimizers.build({"name": "adam", "lr": LR}, ours)
    began = 0.0
    for i, rows in enumerate(bench.order(size, warm + steps[0])):
        if i == warm:
            began = time.perf_counter()
        objective(ours, bench.dataset.batch(rows)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found.append(size * steps[0] / (time.perf_counter() - began))
    adam = torch.optim.Adam(plain.parameters(), lr=LR)
    for i, (dense, ids, label) in enumerate(from_text(bench, bench.order(size, warm + steps[1]))):
        if i == warm:
            began = time.perf_counter()
        _plain_step(plain, adam, dense, ids, label)
    found.append(size * steps[1] / (time.perf_counter() - began))
    return found[0], found[1]


def _plain_step(
    model: nn.Module, adam: torch.optim.Optimizer, dense: Tensor, ids: Tensor, label: Tensor
) -> None:
    adam.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(dense, ids), label).backward()
    adam.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few rows and steps, one repeat")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--losses", action="store_true", help="only compare losses again")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.table:
        write_table(json.loads(RESULTS.read_text()))
        return
    repeats = 1 if args.smoke else args.repeats
    if args.smoke:
        torch.set_num_threads(1)  # something else may run, and tiny steps of two threads collapse
    with tempfile.TemporaryDirectory(prefix="trainer-") as name:
        bench = prepare(Path(name), *((3000, 300) if args.smoke else (60_000, 100_000)))
        if args.losses:
            write_table(losses_again(bench))
            return
        chosen = [replace(case, large=False) for case in CASES[::3]] if args.smoke else CASES
        cases = [measure(bench, case, repeats, smoke=args.smoke) for case in chosen]
    document = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "cases": cases}
    if not args.smoke:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        write_table(document)


def losses_again(bench: Bench) -> dict[str, Any]:
    """The kept results with how far losses are apart measured again; no speed is."""
    document: dict[str, Any] = json.loads(RESULTS.read_text())
    for row in document["cases"]:
        row["apart"] = _apart_of(bench, Case(row["model"], row["batch_size"], 0.0), SEEDS, 100)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    return document


def _apart_of(bench: Bench, case: Case, seeds: Sequence[int], steps: int) -> dict[str, float]:
    """How far the losses are apart, with small tables; measured once per model and batch size."""
    small = replace(case, large=False, goal=0.0)
    if small not in bench.apart:
        bench.apart[small] = compare(bench, small, steps, seeds)
    return bench.apart[small]


def measure(bench: Bench, case: Case, repeats: int, *, smoke: bool) -> dict[str, Any]:
    """One row of the table."""
    apart = _apart_of(bench, case, SEEDS[:1] if smoke else SEEDS, 22 if smoke else 100)
    steps = (3, 3) if smoke else ((120, 12) if case.size < 1000 else (40, 6))
    runs = [speeds(bench, case, steps) for _ in range(repeats)]
    ratios = [ours / plain for ours, plain in runs]
    row = {
        "model": case.model, "batch_size": case.size, "goal": case.goal,
        "table_rows": sum(table.rows for table in bench.info(case).tables),
        "apart": apart,
        "ours": [run[0] for run in runs], "plain": [run[1] for run in runs], "ratios": ratios,
    }  # fmt: skip
    median = statistics.median(ratios)
    print(f"{case.model} batch {case.size}: {median:.1f}x of the plain script", flush=True)
    return row


def machine() -> str:
    return f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}"


def write_table(document: Mapping[str, Any]) -> None:
    """Put the figures into the page."""
    repeats = len(document["cases"][0]["ratios"])
    lines = [
        f"`python benchmarks/trainer.py`, {document['machine']}, {document['date']}; medians of",
        f"{repeats} repeats in turns. Apart: the losses in float64; then in float32, ours and the",
        "worse of torch's, from those in float64 (medians of seven seeds).",
        "",
        "| model | batch | table rows | ours, rows/s | plain | ratio | goal | apart | ours, torch|",
        "|---|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    for row in document["cases"]:
        ratios, apart = row["ratios"], row["apart"]
        goal = f"{row['goal']:g}x" if row["goal"] else ""
        lines.append(
            f"| {row['model']} | {row['batch_size']} | {row['table_rows']:,} | "
            f"{statistics.median(row['ours']):.0f} | {statistics.median(row['plain']):.0f} | "
            f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}) | "
            f"{goal} | {apart['float64']:.1e} "
            f"| {apart['ours_from_float64']:.1e}, {apart['torch_from_float64']:.1e} |"
        )
    pages.put(DOCS, "table", "\n".join(lines))


if __name__ == "__main__":
    main()
