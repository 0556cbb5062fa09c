"""Iterations counted from outside equal those that programs count themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rmixer import launch
from rmixer.launch.pages import JobPages

LAUNCH = str(Path(launch.__file__).parent)


def run(folder: Path, script: str, *words: str) -> tuple[list[int], dict[str, Any]]:
    """What the script counted, in the file ``own``, and what was seen from outside."""
    (folder / "train.py").write_text(script)
    environment = {
        **os.environ,
        "PYTHONPATH": LAUNCH,
        "RMIXER_PROGRESS": str(folder / "progress"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *words, "train.py"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rmixer" not in done.stderr
    page = JobPages(str(folder / "progress")).read()
    assert page is not None
    return [json.loads(line) for line in (folder / "own").read_text().splitlines()], page


ONE_PROCESS = """
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

class Both(Optimizer):
    # an optimizer of optimizers, as libraries have them
    def __init__(self, *inner):
        self.inner = inner
        super().__init__([p for one in inner for p in one.param_groups[0]["params"]], {})
    @torch.no_grad()
    def step(self, closure=None):
        for one in self.inner:
            one.step()

def refuse():
    raise KeyError

net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
count = samples = 0
sgd = SGD(net.parameters(), lr=0.1)
for number in range(30):  # a plain loop; two micro batches per step
    for half in range(2):
        net(torch.randn(16, 4)).square().mean().backward()
        samples += 16
    sgd.step(); sgd.zero_grad(); count += 1
try:
    sgd.step(refuse)  # a step that fails is none
except KeyError:
    pass
both = Both(SGD(net[0].parameters(), lr=0.1), Adam(net[2].parameters()))
del sgd
for number in range(30):  # nested, wrapped by a scheduler
    net(torch.randn(32, 4)).square().mean().backward()
    both.step(); both.zero_grad(); count += 1; samples += 32
generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
first, second = SGD(critic.parameters(), lr=0.1), SGD(generator.parameters(), lr=0.1)
del both
for number in range(30):  # two that take turns
    noise, real = torch.randn(32, 2), torch.randn(32, 4)
    (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
    first.step(); first.zero_grad()
    (-critic(generator(noise)).mean()).backward()
    second.step(); second.zero_grad(); count += 1; samples += 32
open("own", "w").write(f"{count}\\n{samples}\\n")
"""


def test_optimizers_in_one_process(tmp_path: Path) -> None:
    """A plain loop that accumulates, a step that fails, nested optimizers, two that take turns."""
    (count, samples), page = run(tmp_path, ONE_PROCESS)
    assert (count, samples) == (90, 2880)
    assert (page["step"], page["samples"]) == (count, samples)


WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    data = TensorDataset(torch.randn(200, 4), torch.randn(200, 1))
    model = torch.nn.Linear(4, 1)
    dense = torch.optim.Adagrad([model.weight])
    sparse = torch.optim.SGD([model.bias], lr=0.1)
    count = 0
    for how in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=10, num_workers=2, multiprocessing_context=how)
        for x, y in loader:
            (model(x) - y).square().mean().backward()
            dense.step()
            if count % 2:
                sparse.step()
            count += 1
    open("own", "w").write(f"{count}\\n")

if __name__ == "__main__":
    main()
"""


def test_two_loader_workers_that_are_forked_and_spawned(tmp_path: Path) -> None:
    """The workers neither count nor hinder the process that trains; one page is there."""
    (count,), page = run(tmp_path, WORKERS)
    assert (page["step"], page["samples"]) == (count, 10 * count)
    assert count == 40
    assert [path.name for path in tmp_path.glob("progress*.[0-9]*")] == []


CHILDREN = """
import multiprocessing, os, torch

def train(steps):
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    with open("own", "a") as file:
        file.write(f"{steps}\\n")
    if steps == 300:
        os._exit(0)  # without any of what Python does at its end

if __name__ == "__main__":
    children = [
        multiprocessing.get_context(how).Process(target=train, args=(steps,))
        for how, steps in (("fork", 100), ("fork", 300), ("spawn", 200))
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


def test_children_that_train_add_up(tmp_path: Path) -> None:
    """Forked and spawned, however they end: each is counted to its last step."""
    counts, page = run(tmp_path, CHILDREN)
    assert sorted(counts) == [100, 200, 300]
    assert (page["step"], page["samples"]) == (600, 4800)


RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count = 0
for _ in range(50):
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step(); count += 1
if dist.get_rank() == 0:
    open("own", "w").write(f"{count}\\n")
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_make_each_step_together(tmp_path: Path) -> None:
    """Under torchrun: steps as the script counts them, samples of both; the agent has no part."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    (count,), page = run(tmp_path, RANKS, *torchrun)
    assert count == 50
    assert (page["step"], page["samples"]) == (count, 2 * 8 * count)
