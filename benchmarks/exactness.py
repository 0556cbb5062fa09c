"""How far our optimizers are from their definitions: losses, and every element of a table.

A table of 500 rows, a linear layer, 200 steps; some rows are in most batches, others are skipped
for 1 to 199 steps. The truth is `torch.optim` in float64 (row-wise Adagrad, which torch lacks,
by its definition, line by line); in float32 both sides are held to it.

    python benchmarks/exactness.py           # writes results/exactness.json, docs/training.md
    python benchmarks/exactness.py --json    # the document on stdout, nothing is written
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pages
from plain_models import RowwiseAdagrad
from rmixer.train import optimizers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "exactness.json"
DOCS = ROOT / "docs" / "training.md"
ROWS, WIDTH, STEPS, LR = 500, 8, 200, 0.003

Optimizers = list[torch.optim.Optimizer]
Theirs = Callable[[list[nn.Parameter], bool], torch.optim.Optimizer]


class Net(nn.Module):
    """A table and a linear layer."""

    def __init__(self, dtype: torch.dtype, seed: int, *, sparse: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse, dtype=dtype)
        self.head = nn.Linear(WIDTH, 1, dtype=dtype)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64) / 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.table(rows)).squeeze(1)


#: Ours by name, and what torch calls it; the flag asks for the fused kernel.
CASES: Mapping[str, Theirs] = {
    "adam": lambda p, fused: torch.optim.Adam(p, lr=LR, **_kind(fused)),
    "sgd": lambda p, fused: torch.optim.SGD(p, lr=LR, **_kind(fused)),
    "adagrad": lambda p, fused: torch.optim.Adagrad(p, lr=LR, **_kind(fused)),
    "rowwise_adagrad": lambda p, _: RowwiseAdagrad(p, lr=LR),
    "sparse_adam": lambda p, _: torch.optim.SparseAdam(p, lr=LR),
}
#: What these names mean for parameters that are no tables.
DENSE: Mapping[str, Theirs] = {
    **CASES,
    "rowwise_adagrad": CASES["adagrad"],
    "sparse_adam": CASES["adam"],
}


def _kind(fused: bool) -> dict[str, bool]:
    return {"fused": True} if fused else {"foreach": False}


def batches() -> list[tuple[Tensor, Tensor]]:
    """Rows and labels of each step."""
    generator = torch.Generator().manual_seed(0)
    often = torch.zeros(ROWS)
    often[STEPS:] = torch.logspace(-3, 0, ROWS - STEPS)
    found = []
    for step in range(STEPS):
        here = torch.rand(ROWS, generator=generator) < often
        here[:STEPS] = step == 0  # of the first rows each is read twice: at first, and once more
        here[max(0, step - 1)] = True
        rows = here.nonzero()[:, 0]
        found.append((rows, torch.randint(0, 2, (len(rows),), generator=generator)))
    return found


def skips() -> list[int]:
    """For how many steps rows were left alone before a batch that has them, or before the end."""
    last: dict[int, int] = {}
    found = {STEPS - 1}  # row 199 is read in the first step alone
    for step, (rows, _) in enumerate(batches()):
        for row in rows.tolist():
            found.add(step - last.get(row, step - 1) - 1)
            last[row] = step
    return sorted(found - {0})


def trained(net: Net, step: Callable[[], Any], flush: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """The loss of each step, and the table at the end."""
    losses = []
    for rows, label in batches():
        loss = F.binary_cross_entropy_with_logits(net(rows), label.to(net.head.weight.dtype))
        losses.append(loss.detach().double())
        net.zero_grad()
        loss.backward()
        step()
    flush()
    return torch.stack(losses), net.table.weight.detach().double()


def ours(name: str, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    net = Net(dtype, seed)
    optimizer = optimizers.build({"name": name, "lr": LR}, net)
    return trained(net, optimizer.step, optimizer.flush)


def theirs(name: str, dtype: torch.dtype, seed: int, *, fused: bool) -> tuple[Tensor, Tensor]:
    net = Net(dtype, seed, sparse=name == "sparse_adam")
    parts: Optimizers = [
        CASES[name]([net.table.weight], fused),
        DENSE[name](list(net.head.parameters()), True),
    ]
    return trained(net, lambda: [part.step() for part in parts], lambda: None)


def measure(name: str, seeds: int) -> dict[str, Any]:
    """Largest differences from the truth; the medians of the seeds."""
    each = [_measure(name, seed) for seed in range(seeds)]
    medians = {
        key: [statistics.median(one[key][at] for one in each) for at in range(2)] for key in each[0]
    }
    return {"optimizer": name, **medians}


def _measure(name: str, seed: int) -> dict[str, list[float]]:
    truth = theirs(name, torch.float64, seed, fused=False)

    def apart(found: tuple[Tensor, Tensor]) -> list[float]:
        return [float((a - b).abs().max()) for a, b in zip(found, truth, strict=True)]

    return {
        "float64": apart(ours(name, torch.float64, seed)),
        "float32": apart(ours(name, torch.float32, seed)),
        "torch_loop": apart(theirs(name, torch.float32, seed, fused=False)),
        "torch_fused": apart(theirs(name, torch.float32, seed, fused=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the document on stdout")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "skipped": [skips()[0], skips()[-1]],
        "seeds": args.seeds,
        "rows": [measure(name, args.seeds) for name in CASES],
    }
    if args.json:
        print(json.dumps(document))
        return
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    pages.put(DOCS, "exactness", table(document))
    print(table(document))


def table(document: Mapping[str, Any]) -> str:
    low, high = document["skipped"]
    lines = [
        f"`python benchmarks/exactness.py`, {document['machine']}, {document['date']}: largest",
        f"difference from `torch.optim` in float64 after {STEPS} steps, rows skipped for {low} to",
        f"{high}; of any loss / of any element of the table; medians of {document['seeds']} seeds.",
        "",
        "| optimizer | ours, float64 | ours, float32 | torch's loop, float32 | torch, fused |",
        "|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        keys = ("float64", "float32", "torch_loop", "torch_fused")
        cells = [" / ".join(f"{value:.1e}" for value in row[key]) for key in keys]
        lines.append(f"| `{row['optimizer']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
