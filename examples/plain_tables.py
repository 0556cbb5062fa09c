"""Embedding tables and an MLP in plain PyTorch, on data made in memory. It knows nothing of RMixer.

Sparse gradients for the tables (SparseAdam), dense ones for the rest (Adam): two optimizers.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Tables(nn.Module):
    """A table per field, side by side into an MLP."""

    def __init__(self, fields: int, rows: int, dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim, sparse=True) for _ in range(fields))
        self.mlp = nn.Sequential(nn.Linear(fields * dim, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.mlp(torch.cat(vectors, 1)).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fields", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Tables(args.fields, args.rows, args.dim)
    tables = torch.optim.SparseAdam(list(model.tables.parameters()), lr=0.01)
    rest = torch.optim.Adam(model.mlp.parameters(), lr=0.001)
    for step in range(1, args.steps + 1):
        ids = (args.rows * torch.rand(args.batch_size, args.fields) ** 3).long()
        label = (ids[:, 0] % 2).float()
        loss = F.binary_cross_entropy_with_logits(model(ids), label)
        tables.zero_grad()
        rest.zero_grad()
        loss.backward()
        tables.step()
        rest.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
