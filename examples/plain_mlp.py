"""A multi-layer perceptron in plain PyTorch, on data made in memory. It knows nothing of RMixer."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

FEATURES = 64


def make_data(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, FEATURES, generator=generator)
    logits = x[:, 0] * x[:, 1] + x[:, 2:8].sum(1) * 0.5
    return x, torch.bernoulli(torch.sigmoid(logits), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    x, label = make_data(args.rows, generator)
    model = nn.Sequential(
        nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    started, samples = time.perf_counter(), 0
    for epoch in range(1, args.epochs + 1):
        for rows in torch.randperm(args.rows, generator=generator).split(args.batch_size):
            loss = F.binary_cross_entropy_with_logits(model(x[rows]).squeeze(1), label[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(rows)
        rate = samples / (time.perf_counter() - started)
        print(f"epoch {epoch} loss {loss.item():.4f} {rate:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
