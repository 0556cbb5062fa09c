"""One training of ours against a plain PyTorch script of the usual kind that does the same.

The plain side has an `nn.Embedding` per column, torch.optim.Adam, and a row-wise TSV `DataLoader`.
Both start from the same weights and see the same rows in the same order, with torch's default
threads. First their losses are compared: in float64 over 100 steps (1e-9), in float32 over 20
(1e-5), and at 100 steps ours may be no further from float64 than the worse of torch's own Adams.
Then they are timed in turns.

    python benchmarks/trainer.py              # all; writes results/trainer.json, docs/training.md
    python benchmarks/trainer.py --smoke      # small; checks that it works
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
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from plain_models import PLAIN, TsvRows
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset, shuffled
from rmixer.models.model import build, objective
from rmixer.train import optimizers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "trainer.json"
DOCS = ROOT / "docs" / "training.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
LR = 0.001
#: Model, batch size, the goal for the ratio of speeds.
CASES = (("dlrm", 256, 10.0), ("dlrm", 2048, 2.5), ("deepfm", 256, 5.0), ("dcn_v2", 256, 5.0))


@dataclass(frozen=True)
class Bench:
    """The data, as both sides read them."""

    dataset: Dataset
    tsv: Path

    @property
    def rows(self) -> list[int]:
        return [table.rows for table in self.dataset.info.tables]

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
    bench: Bench, model: nn.Module, order: Sequence[np.ndarray], dtype: torch.dtype, **kind: bool
) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, **kind)
    data = TsvRows(str(bench.tsv), len(bench.dataset.info.dense))
    losses = []
    for dense, ids, label in DataLoader(data, batch_sampler=[rows.tolist() for rows in order]):
        optimizer.zero_grad()
        logits = model(dense.to(dtype), ids)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label.to(dtype))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def pair(bench: Bench, name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Ours, and the plain one with the same weights."""
    torch.manual_seed(0)
    ours = build(name, {}, bench.dataset.info)
    plain = PLAIN[name](bench.rows, len(bench.dataset.info.dense))
    plain.take(ours)
    return ours.to(dtype), plain.to(dtype)


def compare(bench: Bench, name: str, size: int, steps: int) -> dict[str, float]:
    """How far the losses are apart.

    Raises:
        SystemExit: further than what is promised.
    """
    order = bench.order(size, steps)
    ours, plain = pair(bench, name, torch.float64)
    truth = plain_losses(bench, plain, order, torch.float64)
    exact = _apart(our_losses(bench, ours, order, torch.float64), truth)
    ours, loop = pair(bench, name, torch.float32)
    _, fused = pair(bench, name, torch.float32)
    mine = our_losses(bench, ours, order, torch.float32)
    theirs = plain_losses(bench, loop, order, torch.float32, foreach=False)
    others = plain_losses(bench, fused, order, torch.float32, fused=True)
    found = {
        "float64": exact,
        "float32_20_steps": _apart(mine[:20], theirs[:20]),
        "ours_from_float64": _apart(mine, truth),
        "torch_from_float64": max(_apart(theirs, truth), _apart(others, truth)),
    }
    print(f"{name} batch {size}: losses apart by {found}", flush=True)
    if exact > 1e-9 or found["float32_20_steps"] > 1e-5:
        raise SystemExit(f"{name} batch {size}: the losses are not the same: {found}")
    return found


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.abs(np.subtract(a, b)).max())


def speeds(bench: Bench, name: str, size: int, steps: tuple[int, int]) -> tuple[float, float]:
    """Samples per second of ours and of the plain script, after some steps to warm up."""
    warm = 5
    ours, plain = pair(bench, name, torch.float32)
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
    data = TsvRows(str(bench.tsv), len(bench.dataset.info.dense))
    order = [rows.tolist() for rows in bench.order(size, warm + steps[1])]
    for i, (dense, ids, label) in enumerate(DataLoader(data, batch_sampler=order)):
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
        chosen = CASES[::3] if args.smoke else CASES
        cases = [measure(bench, case, repeats, smoke=args.smoke) for case in chosen]
    document = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "cases": cases}
    if not args.smoke:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        write_table(document)


def measure(
    bench: Bench, case: tuple[str, int, float], repeats: int, *, smoke: bool
) -> dict[str, Any]:
    name, size, goal = case
    apart = compare(bench, name, size, 22 if smoke else 100)
    steps = (3, 3) if smoke else ((120, 12) if size < 1000 else (40, 6))
    runs = [speeds(bench, name, size, steps) for _ in range(repeats)]
    ratios = [ours / plain for ours, plain in runs]
    row = {
        "model": name, "batch_size": size, "goal": goal, "apart": apart,
        "ours": [run[0] for run in runs], "plain": [run[1] for run in runs], "ratios": ratios,
    }  # fmt: skip
    print(f"{name} batch {size}: {statistics.median(ratios):.1f}x of the plain script", flush=True)
    return row


def machine() -> str:
    return f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}"


def write_table(document: Mapping[str, Any]) -> None:
    """Put the figures into the page."""
    repeats = len(document["cases"][0]["ratios"])
    lines = [
        f"`python benchmarks/trainer.py`, {document['machine']}, {document['date']}; medians of",
        f"{repeats} repeats in turns. Apart: the losses in float64; then in float32, ours and the",
        "worse of torch's, from those in float64.",
        "",
        "| model | batch | ours, rows/s | plain, rows/s | ratio | goal | apart | ours, torch |",
        "|---|---:|---:|---:|---|---:|---:|---|",
    ]
    for row in document["cases"]:
        ratios, apart = row["ratios"], row["apart"]
        lines.append(
            f"| {row['model']} | {row['batch_size']} | {statistics.median(row['ours']):.0f} | "
            f"{statistics.median(row['plain']):.0f} | {statistics.median(ratios):.1f}x "
            f"({min(ratios):.1f} to {max(ratios):.1f}) | {row['goal']:g}x | {apart['float64']:.1e} "
            f"| {apart['ours_from_float64']:.1e}, {apart['torch_from_float64']:.1e} |"
        )
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
