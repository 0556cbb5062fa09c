"""Optimizers that touch only the rows of a batch, where that is exact.

An embedding table of millions of rows gets gradients for some thousand of them. SGD, Adagrad and
row-wise Adagrad leave a row with a zero gradient as it is, so updating the touched rows alone is
the same as updating all. Adam moves such a row on; `rmixer.train.lazy_adam` makes up for that when
the row is touched again. For SGD with momentum or weight decay, and Adagrad or Adam with weight
decay, there is no such way: they get dense gradients and torch's fused implementation.
``sparse_adam`` is another algorithm than ``adam``, and is only used by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer

from rmixer.models.layers import FusedEmbedding
from rmixer.train.lazy_adam import LazyAdam
from rmixer.train.optimizers_table import parse
from rmixer.train.replay import can_replay
from rmixer.train.touched import TouchedRows, move


class SparseSGD(TouchedRows):
    """``w -= lr g`` (torch.optim.SGD without momentum and weight decay)."""

    def update(self, param: Tensor, rows: Tensor, grad_RD: Tensor, group: dict[str, Any]) -> None:
        """See `TouchedRows.update`."""
        _subtract(param, rows, grad_RD, group["lr"])


class SparseAdagrad(TouchedRows):
    """``s += g g; w -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)`` (torch.optim.Adagrad)."""

    def update(self, param: Tensor, rows: Tensor, grad_RD: Tensor, group: dict[str, Any]) -> None:
        """See `TouchedRows.update`."""
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["sum"] = torch.full_like(param, group["initial_accumulator_value"])
        decayed = 1 / (1 + state["step"] * group["lr_decay"])
        state["step"] += 1
        sums = state["sum"].index_select(0, rows).addcmul_(grad_RD, grad_RD)
        state["sum"].index_copy_(0, rows, sums)
        _subtract(param, rows, grad_RD.div_(sums.sqrt_().add_(group["eps"])), group["lr"], decayed)


class RowwiseAdagrad(TouchedRows):
    """``s += mean(g g); w -= lr g / (sqrt(s) + eps)`` with one ``s`` per row."""

    def update(self, param: Tensor, rows: Tensor, grad_RD: Tensor, group: dict[str, Any]) -> None:
        """See `TouchedRows.update`."""
        state = self.state[param]
        if not state:
            state["sum"] = param.new_full(param.shape[:-1], group["initial_accumulator_value"])
        sums = state["sum"].index_select(0, rows).add_(grad_RD.square().mean(-1))
        state["sum"].index_copy_(0, rows, sums)
        _subtract(
            param, rows, grad_RD.div_(sums.sqrt_().add_(group["eps"]).unsqueeze(-1)), group["lr"]
        )


class SparseAdam(TouchedRows):
    """torch.optim.SparseAdam: Adam whose moments decay only when a row is touched."""

    def update(self, param: Tensor, rows: Tensor, grad_RD: Tensor, group: dict[str, Any]) -> None:
        """See `TouchedRows.update`."""
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        beta1, beta2 = group["beta1"], group["beta2"]
        mean = state["exp_avg"].index_select(0, rows).lerp_(grad_RD, 1 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).lerp_(grad_RD.square(), 1 - beta2)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        correction = (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
        _subtract(
            param, rows, mean.div_(square.sqrt_().add_(group["eps"])), group["lr"], correction
        )


class Combined:
    """Several optimizers that together update all parameters of a model.

    Attributes:
        sparse_state_bytes: per touched element of a table, bytes that a step reads and writes.
        dense_bytes: bytes of parameters, gradients and state that a step reads and writes for what
            has dense gradients.
    """

    def __init__(self, parts: list[Optimizer], tables: list[Tensor]) -> None:
        self.parts = [part for part in parts if part.param_groups]
        self.tables = tables
        table_ids = {id(table) for table in tables}
        self.dense_bytes = 0
        for part in self.parts:
            reads = 3 + 2 * _STATES.get(type(part), 0)
            for group in part.param_groups:
                sizes = [p.nbytes for p in group["params"] if id(p) not in table_ids]
                self.dense_bytes += reads * sum(sizes)

    def step(self) -> int:
        """Update all parameters. Returns about how many bytes of memory this moved."""
        moved = self.dense_bytes
        for table in self.tables:
            if table.grad is not None and table.grad.is_sparse:
                # Read for the forward pass; gradient written and read; weight and state both.
                moved += 7 * table.grad._values().nbytes  # noqa: SLF001 - coalescing would sort
        for part in self.parts:
            part.step()
        return moved

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def flush(self) -> None:
        """Bring every row up to date: call it before the parameters are read."""
        for part in self.parts:
            if isinstance(part, TouchedRows):
                part.flush()

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of all parts; with the parameters as they are now, `load_state_dict` goes on.

        Nothing is flushed for it: that would be other roundings than without.
        """
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Go on from what `state_dict` gave, of the same optimizer and model."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


_STATES: dict[type[Optimizer], int] = {Adam: 2, Adagrad: 1}


def build(optimizer: Mapping[str, Any], model: nn.Module) -> Combined:
    """The optimizer of a jobs file for a model; the tables' gradients are made sparse where exact.

    Raises:
        UsageError: a setting is not right.
    """
    name, settings = parse(optimizer)
    sparse = _is_sparse(name, settings)
    tables: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, FusedEmbedding | nn.Embedding):
            module.sparse = sparse
            if sparse:
                tables.append(module.weight)
    table_ids = {id(table) for table in tables}
    dense: list[Tensor] = [param for param in model.parameters() if id(param) not in table_ids]
    parts: list[Optimizer] = [_dense(name, settings, dense)] if dense else []
    if tables:
        touching = _SPARSE[name](tables, **_without(settings, "weight_decay", "momentum"))
        if isinstance(touching, LazyAdam):
            _read_after_catching_up(model, touching)
        parts.append(touching)
    return Combined(parts, tables)


_SPARSE: dict[str, type[TouchedRows]] = {
    "adagrad": SparseAdagrad,
    "adam": LazyAdam,
    "rowwise_adagrad": RowwiseAdagrad,
    "sgd": SparseSGD,
    "sparse_adam": SparseAdam,
}


def _is_sparse(name: str, settings: dict[str, float]) -> bool:
    """Whether updating the touched rows alone is the algorithm of that name."""
    if name == "adam" and not can_replay(settings["beta1"], settings["beta2"], settings["eps"]):
        return False
    return name in _SPARSE and not settings.get("momentum") and not settings.get("weight_decay")


def _dense(name: str, settings: dict[str, float], params: list[Tensor]) -> Optimizer:
    lr = settings["lr"]
    if name == "sgd":
        momentum, decay = settings["momentum"], settings["weight_decay"]
        return SGD(params, lr=lr, momentum=momentum, weight_decay=decay, fused=True)
    eps = settings["eps"]
    if name in ("adagrad", "rowwise_adagrad"):
        return Adagrad(
            params,
            lr=lr,
            eps=eps,
            lr_decay=settings.get("lr_decay", 0.0),
            weight_decay=settings.get("weight_decay", 0.0),
            initial_accumulator_value=settings["initial_accumulator_value"],
            fused=True,
        )
    betas = (settings["beta1"], settings["beta2"])
    return Adam(
        params,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=settings.get("weight_decay", 0.0),
        fused=True,
    )


def _read_after_catching_up(model: nn.Module, adam: LazyAdam) -> None:
    """Let the rows that a batch reads make up first for the steps that they have skipped."""
    for module in model.modules():
        if isinstance(module, FusedEmbedding):
            module.keeper = adam
        elif isinstance(module, nn.Embedding):
            module.register_forward_pre_hook(
                lambda table, given: adam.catch_up(table.weight, torch.unique(given[0]))
            )


def _without(settings: dict[str, float], *names: str) -> dict[str, float]:
    return {name: value for name, value in settings.items() if name not in names}


def _subtract(param: Tensor, rows: Tensor, update_RD: Tensor, lr: Any, scale: float = 1.0) -> None:
    values = param.index_select(0, rows)
    move(values, update_RD, lr, scale)
    param.index_copy_(0, rows, values)
