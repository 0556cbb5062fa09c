"""A training script that mostly waits for its input, as if it came from slow storage.

Every batch is `--delay-ms` late; the training between two batches is small. It knows nothing of
RMixer.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

FEATURES = 32


def read_batches(args: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        time.sleep(args.delay_ms / 1000)
        x = torch.randn(args.batch_size, FEATURES, generator=generator)
        yield x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=45.0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    started = time.perf_counter()
    for step, (x, label) in enumerate(read_batches(args), start=1):
        loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == args.steps:
            rate = step * args.batch_size / (time.perf_counter() - started)
            print(f"step {step} loss {loss.item():.4f} {rate:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
