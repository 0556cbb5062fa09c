"""What optimizers that work on the rows of a batch have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer


class TouchedRows(Optimizer):
    """Base of the sparse optimizers: a step works on the rows of ``grad`` alone.

    Args:
        params: parameters ``[rows, D]`` with sparse gradients; or ``[rows, K, D]``, the tables of K
            models side by side (`rmixer.train.side_by_side`), which are given to `update`.
        defaults: hyper-parameters; ``lr`` of K models is a tuple.

    Attributes:
        SHARED: the parts of the state that K models have in common.
    """

    SHARED: ClassVar[frozenset[str]] = frozenset({"step"})

    def __init__(self, params: Iterable[Tensor], **defaults: Any) -> None:
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

    def catch_up(self, param: Tensor, rows: Tensor) -> None:
        """Bring some rows, each named once, up to date before they are read; most always are."""

    def go_on(self, other: TouchedRows) -> None:
        """Take up what another one of this kind, with these settings, has left in the state."""

    def flush(self) -> None:
        """Make up for what a step has put off for rows that it did not touch; most put nothing."""


def move(weight: Tensor, by: Tensor, lr: Any, scale: float = 1.0) -> None:
    """``weight -= lr scale by``: ``[R, D]`` with one rate, or ``[R, K, D]`` with K of them."""
    for k, rate in enumerate(lr if isinstance(lr, tuple) else (lr,)):
        part, move = (weight[:, k], by[:, k]) if isinstance(lr, tuple) else (weight, by)
        part.sub_(move, alpha=rate * scale)


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
