"""The tables of several models in one, row by row side by side, while they see the same batches.

    row r of the K models:   [ r of model 1 | r of model 2 | ... | r of model K ]

Jobs that differ in their learning rate, or in the weights that they begin with, read the same rows
in each step. So what a table costs besides arithmetic is there once for all: the batch's distinct
rows, and for Adam which of them are behind and the way through memory (one place per row in place
of K). The arithmetic is that of `rmixer.train.optimizers`, element by element, so each model's
weights are those that it gets alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.models.layers import FusedEmbedding, distinct
from rmixer.train.optimizers import Combined
from rmixer.train.touched import TouchedRows


class SideBySide:
    """The shared tables of K models with sparse optimizers that differ in the learning rate alone.

    From here until `leave` a model's tables are empty and their rows are here.

    Args:
        models: of one architecture, in training.
        optimizers: of each; all after the same number of steps.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Combined]) -> None:
        self.tables = [_tables(model) for model in models]
        self.parts = [_touching(optimizer) for optimizer in optimizers]
        first = self.parts[0]
        rates = tuple(part.param_groups[0]["lr"] for part in self.parts)
        settings = {k: v for k, v in first.param_groups[0].items() if k not in ("params", "lr")}
        places = range(len(self.tables[0]))
        wide = [_stack([tables[i].weight for tables in self.tables]) for i in places]
        self.optimizer = type(first)(wide, **settings, lr=rates)
        for i in places:
            members = [
                part.state[tables[i].weight]
                for part, tables in zip(self.parts, self.tables, strict=True)
            ]
            if members[0]:
                self.optimizer.state[wide[i]] = _stack_states(members, first.SHARED)
        self.optimizer.go_on(first)
        self.shared = [_SharedTable(self.optimizer, param) for param in wide]
        for k in range(len(models)):
            self._take(k)

    def begin_step(self) -> None:
        """Before the first model's forward pass of a step."""
        for table in self.shared:
            table.begin_step()

    def end_step(self) -> int:
        """After the last model's backward pass: update the rows that the batch has read.

        Returns:
            about how many bytes of memory this moved for each model.
        """
        return sum(table.update() for table in self.shared) // len(self.tables)

    def write_back(self, k: int) -> None:
        """Put one model's tables and their optimizer's state where they were; see `take_back`."""
        part = self.parts[k]
        for shared, table in zip(self.shared, self.tables[k], strict=True):
            table.source = None
            table.weight.data = shared.param.data[:, k].clone()
            state = self.optimizer.state.get(shared.param)
            if state:
                part.state[table.weight] = _column(state, k, part.SHARED)
        part.go_on(self.optimizer)

    def take_back(self, k: int) -> None:
        """Go on with a model after `write_back`; its tables are not changed in between."""
        self._take(k)

    def _take(self, k: int) -> None:
        for shared, table in zip(self.shared, self.tables[k], strict=True):
            self.parts[k].state.pop(table.weight, None)
            table.weight.data = table.weight.data.new_empty(0, table.weight.shape[1])
            table.source = _Column(shared, k)


class _SharedTable:
    """One table of all models, ``[rows, K, D]``, and the rows of it that the present step reads."""

    def __init__(self, optimizer: TouchedRows, param: nn.Parameter) -> None:
        self.optimizer, self.param = optimizer, param
        self.begin_step()

    def begin_step(self) -> None:
        self.rows: Tensor | None = None
        self.read_KUD: list[Tensor] = []

    def lookup(self, k: int, rows: Tensor) -> Tensor:
        if self.rows is None:
            self.rows = rows
            self.touched, self.inverse = distinct(rows)
            self.optimizer.catch_up(self.param, self.touched)
            read_UKD = self.param.detach().index_select(0, self.touched)
            self.read_KUD = [one.contiguous().requires_grad_() for one in read_UKD.unbind(1)]
        assert torch.equal(self.rows, rows), "models side by side read the same rows"
        found: Tensor = _Lookup.apply(self.read_KUD[k], self.inverse)  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def update(self) -> int:
        if self.rows is None:
            return 0
        grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in self.read_KUD]
        grad_UKD = torch.stack(grads, 1)
        self.optimizer.update(self.param, self.touched, grad_UKD, self.optimizer.param_groups[0])
        self.begin_step()
        return 7 * grad_UKD.nbytes


class _Column:
    """One model's part of a shared table; see `rmixer.models.layers.RowSource`."""

    def __init__(self, table: _SharedTable, k: int) -> None:
        self.table, self.k = table, k

    def lookup(self, rows: Tensor) -> Tensor:
        return self.table.lookup(self.k, rows)


class _Lookup(torch.autograd.Function):
    """Rows of a small table; the gradient is dense and summed in the order of the rows."""

    @staticmethod
    def forward(ctx: Any, read_UD: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse, ctx.shape = inverse, read_UD.shape
        return F.embedding(inverse, read_UD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].new_zeros(ctx.shape).index_add_(0, ctx.inverse, grads[0]), None


def kind_of(model: nn.Module, optimizer: Combined) -> tuple[Any, ...] | None:
    """What must be equal for the tables of two models to be side by side; None if they cannot be.

    A model with a loss of its own may draw rows by chance, which are other ones for each.
    """
    tables = _tables(model)
    if not tables or hasattr(model, "loss"):
        return None
    if not isinstance(optimizer.parts[-1], TouchedRows):
        return None
    part = _touching(optimizer)
    if len(part.param_groups[0]["params"]) != len(tables):  # some are not of ours
        return None
    settings = {k: v for k, v in part.param_groups[0].items() if k not in ("params", "lr")}
    state = part.state.get(tables[0].weight) or {}
    shapes = [tuple(table.weight.shape) for table in tables]
    kinds = [str(table.weight.dtype) for table in tables]
    return (type(part), sorted(settings.items()), shapes, kinds, state.get("step", 0))


def _tables(model: nn.Module) -> list[FusedEmbedding]:
    return [m for m in model.modules() if isinstance(m, FusedEmbedding) and m.sparse]


def _touching(optimizer: Combined) -> TouchedRows:
    return cast("TouchedRows", optimizer.parts[-1])


def _stack(weights: Sequence[Tensor]) -> nn.Parameter:
    """``[rows, D]`` of K models, which are emptied, to ``[rows, K, D]``."""
    first = weights[0]
    wide = first.new_empty(first.shape[0], len(weights), *first.shape[1:])
    for k, weight in enumerate(weights):
        wide[:, k] = weight.detach()
    return nn.Parameter(wide)


def _stack_states(states: Sequence[dict[str, Any]], shared: frozenset[str]) -> dict[str, Any]:
    return {
        key: value if key in shared else _stack([state[key] for state in states]).data
        for key, value in states[0].items()
    }


def _column(state: dict[str, Any], k: int, shared: frozenset[str]) -> dict[str, Any]:
    found = {}
    for key, value in state.items():
        if key in shared:
            found[key] = value.clone() if isinstance(value, Tensor) else value
        else:
            found[key] = value[:, k].clone()
    return found
