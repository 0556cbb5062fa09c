"""What optimizers that work on the rows of a batch have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class TouchedRows(Optimizer):
    """Base of the sparse optimizers: a step works on the rows of ``grad`` alone.

    Args:
        params: parameters ``[rows, D]`` with sparse gradients.
        defaults: hyper-parameters.
    """

    def __init__(self, params: Iterable[Tensor], **defaults: float) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "there is no closure to evaluate again"
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, *touched(param.grad), group)

    def update(self, param: Tensor, rows: Tensor, grad_RD: Tensor, group: dict[str, Any]) -> None:
        """Update the given rows, each of which comes once. ``grad_RD`` may be overwritten."""
        raise NotImplementedError

    def flush(self) -> None:
        """Make up for what a step has put off for rows that it did not touch; most put nothing."""


def touched(grad: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a sparse gradient, each once, and their values ``[R, D]``.

    Autograd forgets that a gradient was coalesced, so its rows are looked at before they are sorted
    again: `rmixer.models.layers.FusedEmbedding` gives them ascending.
    """
    rows = grad._indices()[0]  # noqa: SLF001 - the public one wants the forgotten flag
    if bool((rows[1:] > rows[:-1]).all()):
        return rows, grad._values()  # noqa: SLF001
    grad = grad.coalesce()
    return grad.indices()[0], grad.values()
