"""A deep & cross network in plain PyTorch, on data made in memory. It knows nothing of RMixer."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

FIELDS, IDS, DENSE = 20, 5000, 13


class DeepCross(nn.Module):
    """Cross layers (Wang et al., 2017) beside a multi-layer perceptron."""

    def __init__(self, dim: int = 16, crosses: int = 3) -> None:
        super().__init__()
        width = FIELDS * dim + DENSE
        self.table = nn.Embedding(FIELDS * IDS, dim)
        nn.init.normal_(self.table.weight, std=0.05)
        self.register_buffer("offset", torch.arange(FIELDS) * IDS)
        self.cross = nn.ModuleList([nn.Linear(width, 1) for _ in range(crosses)])
        self.deep = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        self.head = nn.Linear(width + 128, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x0 = torch.cat([dense, self.table(ids + self.offset).flatten(1)], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


def make_data(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    dense = torch.randn(rows, DENSE, generator=generator)
    ids = (torch.rand(rows, FIELDS, generator=generator) ** 3 * IDS).long()
    effect = torch.randn(FIELDS, IDS, generator=generator)
    logits = 0.5 * effect[torch.arange(FIELDS), ids].sum(1) + 0.5 * dense[:, :4].sum(1)
    return dense, ids, torch.bernoulli(torch.sigmoid(logits - 1), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    dense, ids, label = make_data(args.rows, generator)
    model = DeepCross()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        rows = torch.randint(args.rows, (args.batch_size,), generator=generator)
        loss = F.binary_cross_entropy_with_logits(model(dense[rows], ids[rows]), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == args.steps:
            rate = step * args.batch_size / (time.perf_counter() - started)
            print(f"step {step} loss {loss.item():.4f} {rate:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
