"""Layers that the models share: the fused embedding, a perceptron, Dice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.data.batch import Batch, Lists
from rmixer.data.info import DataInfo


class RowKeeper(Protocol):
    """An optimizer that puts off what it does to the rows of a table that no batch touches."""

    def owes(self) -> bool:
        """Whether any row may be behind."""

    def catch_up(self, param: Tensor, rows: Tensor) -> None:
        """Bring some rows of a table, each named once, up to date."""


class RowSource(Protocol):
    """Where the rows of a table are while it is trained beside those of other models."""

    def lookup(self, rows: Tensor) -> Tensor:
        """The rows with these numbers, ``[N, D]``, for a step of training."""


class FusedEmbedding(nn.Module):
    """All embedding tables of a model as one parameter, looked up once per batch.

    Args:
        info: fields, sequences and tables of the data.
        dim: width of a row.
        init: fills one table ``[rows, dim]`` in place.

    Attributes:
        weight: ``[total_rows, dim]``; table ``t`` begins at row ``offset[t]``.
        sparse: whether ``weight.grad`` is sparse. It then holds each row that the batch touched
            once, ascending (coalesced), so an optimizer needs no sort of its own.
        keeper: an optimizer that may owe rows something before they are read.
        source: has the rows in place of ``weight``, which is empty then.
    """

    field_offset: Tensor
    sequence_offset: Tensor

    def __init__(self, info: DataInfo, dim: int, init: Callable[[Tensor], Any]) -> None:
        super().__init__()
        starts = [0, *itertools.accumulate(table.rows for table in info.tables)]
        self.sparse = False
        self.keeper: RowKeeper | None = None
        self.source: RowSource | None = None
        self.names = tuple(sequence.name for sequence in info.sequences)
        self.weight = nn.Parameter(torch.empty(starts[-1], dim))
        self.register_buffer(
            "field_offset", _offsets(starts, [f.table for f in info.fields]), persistent=False
        )
        self.register_buffer(
            "sequence_offset", _offsets(starts, [s.table for s in info.sequences]), persistent=False
        )
        with torch.no_grad():
            for start, stop in itertools.pairwise(starts):
                init(self.weight[start:stop])

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The embeddings of all fields, ``[B, F, D]``, and of each sequence's ids, ``[L, D]``."""
        shape = batch.sparse_BF.shape
        parts = [(batch.sparse_BF + self.field_offset).reshape(-1)]
        for i, name in enumerate(self.names):
            parts.append(batch.sequences[name].values_L + self.sequence_offset[i])
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        found = torch.split_with_sizes(self.lookup(rows), [len(part) for part in parts])
        width = self.weight.shape[1]  # not -1: there may be no field at all
        return found[0].view(*shape, width), dict(zip(self.names, found[1:], strict=True))

    def vectors(self, batch: Batch) -> Tensor:
        """One embedding per field and list, ``[B, F + S, D]``; of a list the mean."""
        fields_BFD, sequences = self(batch)
        if not sequences:
            found: Tensor = fields_BFD
            return found
        means = [mean_by_row(v, batch.sequences[name]) for name, v in sequences.items()]
        return torch.cat([fields_BFD, *(mean_BD.unsqueeze(1) for mean_BD in means)], 1)

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows of the parameter, ``[N, D]``, for row numbers ``[N]``."""
        if self.source is not None:
            return self.source.lookup(rows)
        learns = self.sparse and torch.is_grad_enabled()
        owes = self.keeper is not None and self.keeper.owes()
        if not (learns or owes):
            return F.embedding(rows, self.weight)
        touched, inverse = distinct(rows)
        if self.keeper is not None and owes:
            self.keeper.catch_up(self.weight, touched)
        if not learns:
            return F.embedding(rows, self.weight)
        found: Tensor = _SparseLookup.apply(  # type: ignore[no-untyped-call]
            self.weight, rows, touched, inverse
        )
        return found


def distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The different row numbers, ascending, and for each of ``rows`` which of them it is."""
    # numpy's unique is faster than torch's on a CPU, and shares the memory.
    touched, inverse = np.unique(rows.numpy(), return_inverse=True)
    return torch.from_numpy(touched), torch.from_numpy(inverse)


class _SparseLookup(torch.autograd.Function):
    """Embedding lookup whose gradient is a coalesced sparse tensor of the touched rows."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, touched: Tensor, inverse: Tensor) -> Tensor:
        ctx.touched, ctx.inverse, ctx.shape = touched, inverse, weight.shape
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad_ND,) = grads
        touched, inverse = ctx.touched, ctx.inverse
        summed = grad_ND.new_zeros(len(touched), grad_ND.shape[1])
        summed.index_add_(0, inverse, grad_ND)
        grad = torch.sparse_coo_tensor(
            touched[None], summed, ctx.shape, is_coalesced=True, check_invariants=False
        )
        return grad, None, None, None


class MLP(nn.Sequential):
    """Linear layers with an activation after each but, if ``last_linear``, the last.

    Args:
        width: of the input.
        widths: of the layers.
        activation: makes the module for a width.
        last_linear: whether the last layer has no activation.
        dropout: after each activation.
    """

    def __init__(
        self,
        width: int,
        widths: Sequence[int],
        *,
        activation: Callable[[int], nn.Module] | None = None,
        last_linear: bool = False,
        dropout: float = 0.0,
    ) -> None:
        layers: list[nn.Module] = []
        for i, size in enumerate(widths):
            layers.append(nn.Linear(width, size))
            if not (last_linear and i == len(widths) - 1):
                layers.append(activation(size) if activation else nn.ReLU())
                if dropout:
                    layers.append(nn.Dropout(dropout))
            width = size
        super().__init__(*layers)


class Dice(nn.Module):
    """``p * x + (1 - p) * alpha * x`` with ``p = sigmoid`` of the normalized x (DIN, equation 3).

    Mean and variance are the batch's in training (a batch of 1 is allowed, an
    empty one changes nothing) and running ones after.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-8) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.momentum, self.eps = momentum, eps
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is ``[..., width]``; the result has its shape."""
        if not (self.training and len(x)):
            rstd = torch.rsqrt(self.running_var + self.eps)
            if torch.is_grad_enabled():
                p = torch.sigmoid((x - self.running_mean) * rstd)
                return x * (self.alpha + p * (1 - self.alpha))
            p = (x - self.running_mean).mul_(rstd).sigmoid_()
            return p.mul_(1 - self.alpha).add_(self.alpha).mul_(x)
        y, mean, var = _Dice.apply(x, self.alpha, self.eps)  # type: ignore[no-untyped-call]
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
        out: Tensor = y
        return out


class _Dice(torch.autograd.Function):
    """Dice with the batch's statistics: three tensors of its input's size, not autograd's nine.

    Backward with ``z = (x - mean) / std``: as batch normalization for what goes through z (Ioffe
    and Szegedy, arXiv:1502.03167, section 3), plus what goes past it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        rows = tuple(range(x.dim() - 1))
        mean = x.mean(rows)
        p = x - mean
        y = p.square()  # faster than var_mean on a CPU
        var = y.mean(rows)
        rstd = torch.rsqrt(var + eps)
        p.mul_(rstd).sigmoid_()
        torch.mul(p, 1 - alpha, out=y).add_(alpha).mul_(x)
        ctx.save_for_backward(x, p, alpha, mean, rstd)
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, p, alpha, mean, rstd = ctx.saved_tensors
        grad, rows = grads[0], tuple(range(x.dim() - 1))
        one = grad * x
        two = one * p
        grad_alpha = one.sum(rows) - two.sum(rows)
        through = two.mul_(1 - alpha).addcmul_(two, p, value=-1)  # the gradient of z
        z = torch.sub(x, mean, out=one).mul_(rstd)
        three = through * z
        both = three.mean(rows)
        through.sub_(through.mean(rows)).sub_(z.mul_(both)).mul_(rstd)
        past = torch.mul(p, 1 - alpha, out=three).add_(alpha).mul_(grad)
        return through.add_(past), grad_alpha, None


def activation_of(name: str) -> Callable[[int], nn.Module]:
    """Makes the module of an activation for a width."""
    makers: dict[str, Callable[[int], nn.Module]] = {
        "dice": Dice,
        "prelu": nn.PReLU,
        "relu": lambda width: nn.ReLU(),  # noqa: ARG005
        "sigmoid": lambda width: nn.Sigmoid(),  # noqa: ARG005
    }
    return makers[name]


def sum_by_row(values_LD: Tensor, lists: Lists) -> Tensor:
    """The sum over each row's list, ``[B, D]``; 0 for an empty one."""
    zeros = values_LD.new_zeros(len(lists.length_B), values_LD.shape[1])
    return zeros.index_add(0, lists.owner_L, values_LD)


def mean_by_row(values_LD: Tensor, lists: Lists) -> Tensor:
    """The mean over each row's list, ``[B, D]``; 0 for an empty one."""
    return sum_by_row(values_LD, lists) / lists.length_B.clamp(min=1).unsqueeze(1)


def small_normal(table: Tensor) -> None:
    """Fill a table with normal numbers of deviation 0.01."""
    table.normal_(std=0.01)


def _offsets(starts: Sequence[int], tables: Sequence[int]) -> Tensor:
    return torch.tensor([starts[table] for table in tables], dtype=torch.int64)
