"""Trainings of a sweep in one process (`rmixer.train.together`) against each alone.

First that each is the same: losses step by step, five models, learning rates of their own, the last
with a seed of its own; then how much faster K of them are together than one after the other, on one
thread, in processor time, in turns.

    python benchmarks/together.py             # writes results/together.json, docs/training.md
    python benchmarks/together.py --quick     # DLRM at batch 256 with Adam alone; writes nothing
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
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pages
from rmixer.data import cache, schema
from rmixer.data.batch import Batch
from rmixer.data.dataset import Dataset
from rmixer.data.info import DataInfo, TableInfo
from rmixer.models.model import build
from rmixer.train import optimizers
from rmixer.train.loop import Settings, train
from rmixer.train.together import Member, train_together

RESULTS = Path(__file__).resolve().parent / "results" / "together.json"
MODELS = {
    "dlrm": "criteo", "deepfm": "criteo", "dcn_v2": "criteo", "widedeep": "criteo",
    "din": "behaviour",
}  # fmt: skip
TABLE_ROWS, LR = 100_000, 1e-3
GOAL = 1.1


@dataclass(frozen=True)
class Case:
    """What is timed."""

    model: str
    batch_size: int
    optimizer: str
    members: int


CASES = (
    *(Case("dlrm", 256, "adam", k) for k in (2, 4, 8)),
    Case("dlrm", 256, "rowwise_adagrad", 4),
    Case("dlrm", 2048, "adam", 4),
    *(Case(model, 256, "adam", 4) for model in ("deepfm", "dcn_v2", "widedeep", "din")),
)


class Double(Dataset):
    """Numbers in float64."""

    def batch(self, rows: Any) -> Batch:
        batch = super().batch(rows)
        return replace(batch, dense_BN=batch.dense_BN.double(), label_B=batch.label_B.double())


def dataset_of(like: str, folder: Path) -> Dataset:
    data = {"format": "generated", "like": like, "rows": 60_000, "seed": 1}
    spec = schema.parse({**data, "valid": {"fraction": 0.0}})
    return Dataset(cache.prepare(spec, folder / "cache"))


def member(
    dataset: Dataset, case: Case, lr: float, info: DataInfo, steps: int, seed: int = 0
) -> Member:
    torch.manual_seed(seed)
    model = build(case.model, {}, info)
    if isinstance(dataset, Double):
        model = model.double()
    settings = Settings(batch_size=case.batch_size, steps=steps, seed=seed)
    built = optimizers.build({"name": case.optimizer, "lr": lr}, model)
    return Member(model=model, optimizer=built, settings=settings)


def losses_of(model: nn.Module) -> list[float]:
    """Gets the training loss of each step to come."""
    found: list[float] = []

    def note(_: nn.Module, given: tuple[Batch], logits: torch.Tensor) -> None:
        loss = nn.functional.binary_cross_entropy_with_logits(logits.detach(), given[0].label_B)
        found.append(float(loss))

    model.register_forward_hook(note)
    return found


def apart(dataset: Dataset, model: str, optimizer: str) -> dict[str, float]:
    """The largest difference of the loss of a step, over 10 and over 100 steps."""
    case = Case(model, 256, optimizer, 3)
    how = [(LR, 0), (LR / 2, 0), (LR, 1)]
    ours = [member(dataset, case, lr, dataset.info, 100, seed) for lr, seed in how]
    theirs = [member(dataset, case, lr, dataset.info, 100, seed) for lr, seed in how]
    mine = [losses_of(one.model) for one in ours]
    alone = [losses_of(one.model) for one in theirs]
    train_together(ours, dataset)
    for one in theirs:
        train(one.model, dataset, one.optimizer, one.settings)
    pairs = [
        [abs(a - b) for a, b in zip(x, y, strict=True)] for x, y in zip(mine, alone, strict=True)
    ]
    return {"10": max(max(p[:10]) for p in pairs), "100": max(max(p) for p in pairs)}


def speedup(dataset: Dataset, case: Case, steps: int, repeats: int) -> dict[str, Any]:
    """Processor time of K trainings one after the other over that of the K together."""
    info = dataset.info
    tables = tuple(TableInfo(t.name, max(TABLE_ROWS, t.rows)) for t in info.tables)
    info = replace(info, tables=tables)
    alone, together = [], []
    for _ in range(repeats):
        alone.append(_seconds(dataset, case, info, steps, company=False))
        together.append(_seconds(dataset, case, info, steps, company=True))
    ratios = [a / b for a, b in zip(alone, together, strict=True)]
    done = case.batch_size * steps * case.members
    return {
        "model": case.model, "batch_size": case.batch_size, "optimizer": case.optimizer,
        "members": case.members, "alone": [done / s for s in alone],
        "together": [done / s for s in together], "ratios": ratios,
    }  # fmt: skip


def _seconds(dataset: Dataset, case: Case, info: DataInfo, steps: int, *, company: bool) -> float:
    """Of so many steps, without those before them that touch memory for the first time."""
    spent = []
    for count in (steps // 3, steps // 3 + steps):
        rates = [LR * (1 + k / 10) for k in range(case.members)]
        if company:
            chosen = [member(dataset, case, lr, info, count) for lr in rates]
            began = time.process_time()
            train_together(chosen, dataset)
            spent.append(time.process_time() - began)
        else:
            total = 0.0
            for lr in rates:
                one = member(dataset, case, lr, info, count)
                began = time.process_time()
                train(one.model, dataset, one.optimizer, one.settings)
                total += time.process_time() - began
            spent.append(total)
    return spent[1] - spent[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    if args.table:
        pages.put("training.md", "together", table(json.loads(RESULTS.read_text())))
        return 0
    torch.set_num_threads(1)
    cases = [case for case in CASES if not args.quick or case == Case("dlrm", 256, "adam", 4)]
    with tempfile.TemporaryDirectory(prefix="together-") as name:
        data = {like: dataset_of(like, Path(name)) for like in dict.fromkeys(MODELS.values())}
        exact = []
        for model, like in MODELS.items():
            if args.quick and model != "dlrm":
                continue
            double = Double(data[like].folder)
            exact.append({
                "model": model, "float32": apart(data[like], model, "adam"),
                "float64": apart(double, model, "adam"),
            })  # fmt: skip
            print(exact[-1], flush=True)
        speeds = []
        for case in cases:
            steps = 60 if case.batch_size < 1000 else 15
            speeds.append(speedup(data[MODELS[case.model]], case, steps, 1 if args.quick else 3))
            print(f"{case}: {statistics.median(speeds[-1]['ratios']):.3f}x", flush=True)
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"), "exact": exact, "speeds": speeds,
    }  # fmt: skip
    if not args.quick:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        pages.put("training.md", "together", table(document))
    print(table(document))
    return 1 if any(_is_apart(row) for row in exact) else 0


def _is_apart(row: Mapping[str, Any]) -> bool:
    single, double = row["float32"], row["float64"]
    return single["10"] > 1e-5 or single["100"] > 1e-3 or double["100"] > 1e-9


def table(document: Mapping[str, Any]) -> str:
    lines = [
        f"`python benchmarks/together.py`, {document['machine']}, {document['date']}, one thread.",
        "Losses of each of three trainings together, from those alone, the largest difference:",
        "",
        "| model | float32, 10 steps | 100 steps | float64, 100 steps |",
        "|---|---:|---:|---:|",
    ]
    for row in document["exact"]:
        single, double = row["float32"], row["float64"]
        cells = [f"{x:.1e}" for x in (single["10"], single["100"], double["100"])]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    lines += [
        "",
        "Samples per second of processor time, 26 tables of 100,000 rows (DIN: 2), medians:",
        "",
        "| model | optimizer | batch | K | one after the other | together | ratio |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in document["speeds"]:
        lines.append(
            f"| {row['model']} | {row['optimizer']} | {row['batch_size']} | {row['members']} | "
            f"{statistics.median(row['alone']):,.0f} | {statistics.median(row['together']):,.0f} | "
            f"{_spread(row['ratios'])} |"
        )
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
