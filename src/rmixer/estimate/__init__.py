"""How much memory a job will need, before it runs.

    estimate = rmixer.estimate(build, device="cuda")   # build() returns model, optimizer, batch

    allocator.py   a model of PyTorch's CUDA caching allocator
    blocks.py      its words: settings, rules of size, blocks, pools
    heap.py        a model of glibc's allocator
    replay.py      the CUDA model checked against recordings made on real GPUs
    timeline.py    a trace of storages played through either: peaks, and what they consist of
    temporaries.py what libraries take inside an operator
    contexts.py    what a GPU process holds besides
    host.py        what a process on the host holds besides
    child.py       traces of our trainings, in a process of their own
    program.py     programs of others: on fake tensors, or for a short probe
    quantiles.py   how much room to leave above an estimate
    estimator.py   all of it for the jobs of a batch
    estimates.py   what an estimate says

Nothing here needs a GPU, and nothing but the call above imports torch.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """``rmixer.estimate`` is this package, and a function."""

    def __call__(self, build: Any, device: str = "cuda", **options: Any) -> Any:
        """See `rmixer.trace.api.estimate`."""
        from importlib import import_module  # noqa: PLC0415 - torch is below the line

        return import_module("rmixer.trace.api").estimate(build, device, **options)


sys.modules[__name__].__class__ = _Callable
