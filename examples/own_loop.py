"""A training loop of one's own that RMixer can stop and start again: `rmixer.job()`.

Alone it is a plain PyTorch script. As a job it shows its steps and its loss, keeps a checkpoint
when it is told to stop (and every few hundred steps), and goes on from there when it is started
again.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import rmixer

FEATURES, BATCH = 64, 256


def batch_of(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step: the same one however often the program was started."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    x = torch.randn(BATCH, FEATURES, generator=generator)
    label = torch.bernoulli(
        torch.sigmoid(x[:, 0] * x[:, 1] + x[:, 2:8].sum(1)), generator=generator
    )
    return x, label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-every", type=int, default=500)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    with rmixer.job() as job:
        done = 0
        if job.checkpoint_path is not None and job.checkpoint_path.exists():
            state = torch.load(job.checkpoint_path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            done = state["step"]
            print(f"going on from step {done}", flush=True)

        for step in range(done + 1, args.steps + 1):
            x, label = batch_of(step, args.seed)
            loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            job.report(step, samples=step * BATCH, total_steps=args.steps, loss=loss)

            if job.should_stop or step % args.keep_every == 0:
                with job.saving() as path:
                    if path is not None:
                        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save({**parts, "step": step}, path)
            if job.should_stop:
                print(f"stopped after step {step}", flush=True)
                return

        with torch.no_grad():
            x, label = batch_of(0, args.seed)
            accuracy = ((model(x).squeeze(1) > 0) == (label > 0)).float().mean()
        job.report(accuracy=accuracy)
        print(f"accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
