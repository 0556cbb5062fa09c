"""One DLRM training of ours against TorchRec's fused tables on a CPU.

Same rows, starting weights and optimizer: both sides take prepared columns in memory, row-wise
Adagrad on 26 tables of 100,000 rows, Adagrad on the dense layers, and torch's default threads. The
losses are compared, then both are timed in turns. TorchRec is in an environment of its own:

    python -m venv /tmp/torchrec
    /tmp/torchrec/bin/pip install torch tensordict torchmetrics pyre-extensions iopath tqdm numpy
    /tmp/torchrec/bin/pip install --no-deps fbgemm-gpu-cpu torchrec
    python benchmarks/against_torchrec.py /tmp/torchrec/bin/python

It writes results/torchrec.json and its table in docs/training.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pages
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset, shuffled
from rmixer.data.info import DataInfo
from rmixer.models.model import build, objective
from rmixer.train import optimizers

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "torchrec.json"
DOCS = HERE.parent / "docs" / "training.md"
TABLE_ROWS, DIM, LR = 100_000, 16, 0.02
SIZES = {256: 100, 2048: 30}  # steps of a round by batch size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="interpreter with torchrec and fbgemm-gpu-cpu")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torchrec-") as name:
        folder = Path(name)
        data = {
            "format": "generated", "like": "criteo", "rows": 60_000, "seed": 1,
            "valid": {"fraction": 0.0},
        }  # fmt: skip
        dataset = Dataset(cache.prepare(schema.parse(data), folder / "cache"))
        cases = [compare(dataset, size, args, folder) for size in SIZES]
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "cases": cases,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    pages.put(DOCS, "torchrec", table(document))
    print(table(document))


def compare(dataset: Dataset, size: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rounds of both sides in turns; the losses of the first ones."""
    rows = [max(TABLE_ROWS, table.rows) for table in dataset.info.tables]
    info = DataInfo.from_sizes(rows, len(dataset.info.dense))
    batches = list(shuffled(dataset.train_rows, size, 0, 1))[: SIZES[size]]
    torch.manual_seed(0)
    model = build("dlrm", {"embedding_dim": DIM}, info)
    optimizer = optimizers.build({"name": "rowwise_adagrad", "lr": LR}, model)
    given = folder / f"given-{size}.pt"
    torch.save(document_of(model, dataset, batches, rows), given)
    other = subprocess.Popen(
        [args.python, str(HERE / "torchrec_side.py"), str(given)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdin is not None
    assert other.stdout is not None
    mine, theirs, apart = [], [], 0.0
    for turn in range(args.repeats + 1):  # the first one warms up
        rate, losses = a_round(model, optimizer, dataset, batches)
        other.stdin.write("\n")
        other.stdin.flush()
        answer = json.loads(other.stdout.readline())
        if turn == 0:
            apart = float(np.abs(np.subtract(losses[:20], answer["losses"][:20])).max())
            continue
        mine.append(rate)
        theirs.append(answer["rate"])
    other.stdin.close()
    other.wait()
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    print(f"batch {size}: {statistics.median(ratios):.2f}x, losses {apart:.1e} apart", flush=True)
    return {"batch_size": size, "ours": mine, "torchrec": theirs, "ratios": ratios, "apart": apart}


def a_round(
    model: nn.Module, optimizer: optimizers.Combined, dataset: Dataset, batches: list[np.ndarray]
) -> tuple[float, list[float]]:
    """Samples per second, and the losses."""
    began, losses = time.perf_counter(), []
    for rows in batches:
        loss = objective(model, dataset.batch(rows))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    seconds = time.perf_counter() - began
    return sum(map(len, batches)) / seconds, [float(loss) for loss in losses]


def document_of(
    model: nn.Module, dataset: Dataset, batches: list[np.ndarray], rows: list[int]
) -> dict[str, Any]:
    """What the other side needs: all rows, the starting weights, the batches."""
    every = dataset.batch(np.arange(dataset.info.rows))
    parts = {
        part: [
            (layer.weight.detach().clone(), layer.bias.detach().clone())
            for layer in getattr(model, part).modules()
            if isinstance(layer, nn.Linear)
        ]
        for part in ("bottom", "top")
    }
    widths = {
        part: [layers[0][0].shape[1], *(len(weight) for weight, _ in layers)]
        for part, layers in parts.items()
    }
    tables = model.embedding.weight.detach().split(rows)
    return {
        "dense": every.dense_BN, "ids": every.sparse_BF, "label": every.label_B,
        "batches": [torch.from_numpy(np.asarray(batch, np.int64)) for batch in batches],
        "weights": {"tables": [table.clone() for table in tables], **parts},
        "dim": DIM, "lr": LR, **widths,
    }  # fmt: skip


def table(document: Mapping[str, Any]) -> str:
    rounds = len(document["cases"][0]["ratios"])
    lines = [
        f"`python benchmarks/against_torchrec.py PYTHON`, {document['machine']},",
        f"{document['date']}; medians of {rounds} rounds in turns.",
        "",
        "| batch | ours, samples/s | TorchRec, samples/s | ratio | losses of 20 steps apart |",
        "|---:|---:|---:|---|---|",
    ]
    for row in document["cases"]:
        ratios = row["ratios"]
        lines.append(
            f"| {row['batch_size']} | {statistics.median(row['ours']):.0f} | "
            f"{statistics.median(row['torchrec']):.0f} | {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {row['apart']:.1e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
