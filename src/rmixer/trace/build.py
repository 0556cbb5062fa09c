"""Any training step under the recorder: a function that builds model, optimizer and batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from rmixer.errors import UsageError
from rmixer.trace.cost import operator_cost
from rmixer.trace.recorder import INPUTS, Recorder
from rmixer.trace.surface import Surface, as_if_gpu

#: The peak is reached by the second step; a heap may still grow in the third.
STEPS = 3
Build = Callable[[], tuple[nn.Module, Any, Any]]
Loss = Callable[[nn.Module, Any], Tensor]


def trace_build(
    build: Build,
    logical: str = "cuda",
    *,
    loss: Loss | None = None,
    steps: int = STEPS,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    evaluate: bool = True,
) -> dict[str, Any]:
    """The trace of a few steps and one evaluation.

    Args:
        build: returns model, optimizer and batch; runs under the recorder, so it may build what
            this machine has no memory for.
        logical: ``cpu`` or ``cuda``; everything that is built counts as there.
        loss: from model and batch; None: see `default_loss`.
        steps: of the optimizer.
        accumulate: backward passes per step.
        autocast: type of mixed precision, for example ``torch.bfloat16``.
        evaluate: whether a forward pass without gradients follows.

    Raises:
        UsageError: ``build`` returns something else.
    """
    if steps < 1 or accumulate < 1:
        raise UsageError(f"steps and accumulate must be at least 1, not {steps} and {accumulate}")
    recorder = Recorder(logical, cost=operator_cost)
    with _surroundings(recorder, logical), torch.random.fork_rng(devices=[]):
        model, optimizer, batch = _checked(build())
        recorder.label_model(model)
        recorder.label_all(batch, INPUTS, "batch")
        compute = loss or default_loss
        for _ in range(steps):
            recorder.clear_costs()
            for _ in range(accumulate):
                with _mixed(autocast):
                    value = compute(model, batch)
                value.backward()  # type: ignore[no-untyped-call]
                del value
            optimizer.step()
            optimizer.zero_grad()
        if evaluate:
            recorder.cost = None  # costs are those of a training step
            model.eval()
            with torch.no_grad(), _mixed(autocast):
                compute(model, batch)
        return recorder.document()


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """The mean of what the model returns, or its ``loss`` where it has one.

    A batch that is a mapping is passed by keywords, a tuple or list by position, else as it is.
    """
    if isinstance(batch, Mapping):
        out = model(**batch)
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        out = model(*batch)
    else:
        out = model(batch)
    found = getattr(out, "loss", None)
    out = found if isinstance(found, Tensor) else out
    while isinstance(out, tuple | list):
        out = out[0]
    if not isinstance(out, Tensor):
        raise UsageError(f"the model returns {type(out).__name__}; give `loss`, a function")
    return out.float().mean()


@contextlib.contextmanager
def _surroundings(recorder: Recorder, logical: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if logical != "cpu":
            stack.enter_context(as_if_gpu())
        stack.enter_context(recorder.recording())
        stack.enter_context(Surface(recorder))
        yield


def _mixed(autocast: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)


def _checked(built: Any) -> tuple[nn.Module, Any, Any]:
    right = isinstance(built, tuple | list) and len(built) == 3  # noqa: PLR2004
    if not right or not isinstance(built[0], nn.Module) or not hasattr(built[1], "step"):
        raise UsageError("build must return (model, optimizer, batch)")
    if any(not isinstance(param, FakeTensor) for param in built[0].parameters()):
        raise UsageError("build must make the model itself: one that is there would be trained")
    return built[0], built[1], built[2]
