"""What the launcher costs a program per step.

    python benchmarks/launcher_overhead.py [--steps 200] [--repeats 101] [--json]

Runs one training loop in two processes, with the launcher and without, in turn: one block of steps
here, one there, many times. The step is as small as a step can be (one weight, one bias, SGD, a
``DataLoader``), so that what is added can be seen; it does not depend on the model. Time is that of
the thread on a core: what the launcher adds waits for nothing. The figure is the median over pairs
of blocks of the time per step with the launcher less the same without.

Modules are looked at in one step every two seconds. What that step costs is given by itself
(``look_added_seconds``, with the eleven modules of this model). Exit code 1 if the limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any, Self

from rmixer import launch
from rmixer.launch import counter, iterations, page, phases

LIMIT_SECONDS = 5e-6
_WARM_UP_BLOCKS = 3

#: Makes as many steps as each line of its input says, and answers with the seconds that they took.
LOOP = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(9)], torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
source = iter(DataLoader(TensorDataset(torch.ones(8_000_000, 1)), batch_size=4))
counter = next(iter(sys.modules["rmixer_launcher"]._counters), None) if len(sys.argv) > 1 else None
for line in sys.stdin:
    count, look = map(int, line.split())
    if counter is not None:  # looks come when they are asked for, not when it is time
        counter.samples.next_look = time.time() + 1e6
        if look:
            counter.samples.again()
            counter.samples.looks = count
    began = time.thread_time()
    for _ in range(count):
        (batch,) = next(source)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    print(time.thread_time() - began, flush=True)
"""


class Program:
    """The loop in a process of its own; a context manager."""

    def __init__(self, folder: Path, *, launched: bool) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("RMIXER_PROGRESS", None)
        if launched:
            environment["PYTHONPATH"] = str(Path(launch.__file__).parent)
            environment["RMIXER_PROGRESS"] = str(folder / "progress")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOOP, *(["counted"] if launched else [])],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def step_seconds(self, steps: int, *, look: bool = False) -> float:
        """Mean over that many steps now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps} {int(look)}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline()) / steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def measure(steps: int, repeats: int) -> dict[str, Any]:
    """Seconds per step: without, with, what is added, and what is added in a step with a look."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Program(Path(folder), launched=False) as plain,
        Program(Path(folder), launched=True) as counted,
    ):
        for _ in range(_WARM_UP_BLOCKS):
            plain.step_seconds(steps)
            counted.step_seconds(steps)
        pairs = [(plain.step_seconds(steps), counted.step_seconds(steps)) for _ in range(repeats)]
        looks = [counted.step_seconds(steps, look=True) for _ in range(max(1, repeats // 4))]
        seen = page.read_progress(str(Path(folder) / "progress"))
    if seen is None or seen["step"] != steps * (_WARM_UP_BLOCKS + repeats + len(looks)):
        raise SystemExit(f"the launcher has not counted what it was timed on: {seen}")
    alone, launched = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(second - first for first, second in pairs)
    return {
        "plain_step_seconds": alone,
        "launched_step_seconds": launched,
        "added_seconds": added,
        "look_added_seconds": statistics.median(looks) - alone,
        "limit_seconds": LIMIT_SECONDS,
        "steps": steps,
        "repeats": repeats,
    }


class _Optimizer:
    """What stands for an optimizer where only the hooks are timed."""


def hook_seconds(calls: int, repeats: int) -> dict[str, float]:
    """What the hooks take in a loop of their own, without torch: the least of the repeats."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "progress")
        counting = counter.Counter(path, page, iterations.Iterations, phases.Phases)
        counting.begin()
        counting.samples.next_look = float("inf")
        one = _Optimizer()

        def step() -> None:
            counting.before(one, (), {})
            counting.after(one, (), {})

        backward = counting.phases.timed(lambda: None)
        fetch = counting.phases.fetching(lambda _: None)
        hooks = {"step": step, "backward": backward, "fetch": lambda: fetch(None)}
        return {
            name: min(timeit.repeat(hook, number=calls, repeat=repeats, timer=time.thread_time))
            / calls
            for name, hook in hooks.items()
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="in a block")
    parser.add_argument("--repeats", type=int, default=101, help="blocks of each")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.steps, options.repeats)
    hooks = hook_seconds(options.steps * 10, 9)
    found |= {f"hook_{name}_seconds": seconds for name, seconds in hooks.items()}
    if options.json:
        print(json.dumps(found))
    else:
        names = ("plain_step_seconds", "launched_step_seconds", "added_seconds")
        for name in (*names, "look_added_seconds", *(f"hook_{hook}_seconds" for hook in hooks)):
            print(f"{name:24} {found[name] * 1e6:8.2f} us")
    return int(found["added_seconds"] > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
