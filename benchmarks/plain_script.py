"""A training script as people write them, of one of several kinds; it knows nothing of RMixer.

    dense_adam   26 tables under torch.optim.Adam, which moves every row in a step
    input        a row-wise `DataLoader` over the text of `--tsv`, a small network
    compute      a wide perceptron on data in memory
    storage      each batch comes `--delay-ms` late, as from slow storage
    dlrm         DLRM with a table per column over the text of `--tsv`, Adam or row-wise Adagrad

Each step adds a line to `--log`: time, step, loss.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from plain_models import PlainDLRM, RowwiseAdagrad, TsvRows

COLUMNS, DENSE = 26, 13
Batches = Iterator[tuple[Tensor, Tensor, Tensor]]


class Ids(nn.Module):
    """A logistic regression with an embedding per column."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 16) for count in rows)
        self.head = nn.Linear(COLUMNS * 16 + DENSE, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.head(torch.cat([*found, dense], 1)).squeeze(1)


class Numbers(nn.Module):
    """A perceptron of the dense columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(DENSE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        del ids
        return self.layers(dense).squeeze(1)


def random_batches(args: argparse.Namespace, *, delay: float = 0.0) -> Batches:
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        time.sleep(delay)
        dense = torch.randn(args.batch_size, DENSE, generator=generator)
        ids = torch.randint(min(args.rows), (args.batch_size, COLUMNS), generator=generator)
        yield dense, ids, (dense[:, 0] + dense[:, 1] * dense[:, 2] > 0).float()


def text_batches(args: argparse.Namespace) -> Batches:
    generator = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        TsvRows(args.tsv, DENSE), batch_size=args.batch_size, shuffle=True, generator=generator
    )
    step = 0
    while True:
        for batch in loader:
            if step == args.steps:
                return
            step += 1
            yield batch


def parts(args: argparse.Namespace) -> tuple[nn.Module, Batches]:
    if args.kind == "dense_adam":
        return Ids(args.rows), random_batches(args)
    if args.kind == "input":
        return Numbers(64), text_batches(args)
    if args.kind == "compute":
        return Numbers(1024), random_batches(args)
    if args.kind == "storage":
        return Numbers(64), random_batches(args, delay=args.delay_ms / 1000)
    return PlainDLRM(args.rows, DENSE), text_batches(args)


def optimizers(args: argparse.Namespace, model: nn.Module) -> list[torch.optim.Optimizer]:
    if args.optimizer == "adam":
        return [torch.optim.Adam(model.parameters(), lr=args.lr)]
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    known = {id(table) for table in tables}
    rest = [param for param in model.parameters() if id(param) not in known]
    return [RowwiseAdagrad(tables, lr=args.lr), torch.optim.Adagrad(rest, lr=args.lr)]


def sizes(text: str) -> list[int]:
    found = [int(word) for word in text.split(",")]
    if len(found) != COLUMNS:
        raise argparse.ArgumentTypeError(f"{COLUMNS} numbers are needed, not {len(found)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ["dense_adam", "input", "compute", "storage", "dlrm"]
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--optimizer", choices=["adam", "rowwise_adagrad"], default="adam")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=sizes, default=[20_000] * COLUMNS, help="of each table")
    parser.add_argument("--tsv", default="")
    parser.add_argument("--delay-ms", type=float, default=60.0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model, batches = parts(args)
    steppers = optimizers(args, model)
    with args.log.open("w", buffering=1) as log:
        for step, (dense, ids, label) in enumerate(batches, start=1):
            loss = F.binary_cross_entropy_with_logits(model(dense, ids), label)
            model.zero_grad()
            loss.backward()
            for stepper in steppers:
                stepper.step()
            log.write(f"{time.time()} {step} {loss.item()}\n")


if __name__ == "__main__":
    main()
