"""DLRM, the deep learning recommendation model.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems,
arXiv:1906.00091 (2019), section 2 and figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.field_params import DLRMParams
from rmixer.models.layers import MLP, FusedEmbedding
from rmixer.models.params import parse


class DLRM(nn.Module):
    """Dense columns through the bottom MLP, dot products of all pairs, the top MLP over both.

    A list of ids is one more field: the mean of its embeddings. Data without dense columns has no
    bottom MLP.
    """

    def __init__(self, params: DLRMParams, info: DataInfo) -> None:
        super().__init__()
        dim, dense = params.embedding_dim, len(info.dense)
        self.embedding = FusedEmbedding(info, dim, _init_table)
        self.bottom = MLP(dense, params.bottom_widths) if dense else None
        vectors = len(info.fields) + len(info.sequences) + bool(dense)
        self.interaction = DotInteraction(vectors)
        width = self.interaction.pairs + (dim if dense else 0)
        self.top = MLP(width, (*params.top_mlp, 1), last_linear=True)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DLRM:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DLRMParams", parse("dlrm", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        vectors_BVD = self.embedding.vectors(batch)
        if self.bottom is None:
            return self._head(self.interaction(vectors_BVD))
        dense_BD = self.bottom(batch.dense_BN)
        pairs_BP = self.interaction(torch.cat([dense_BD.unsqueeze(1), vectors_BVD], 1))
        return self._head(torch.cat([dense_BD, pairs_BP], 1))

    def _head(self, x_BW: Tensor) -> Tensor:
        logits_B1: Tensor = self.top(x_BW)
        return logits_B1.squeeze(1)


class DotInteraction(nn.Module):
    """Dot products of all pairs of different vectors, ``[B, V, D]`` to ``[B, V (V - 1) / 2]``."""

    lower: Tensor
    symmetric: Tensor

    def __init__(self, vectors: int) -> None:
        super().__init__()
        i, j = torch.tril_indices(vectors, vectors, -1)
        self.pairs = len(i)
        symmetric = torch.full((vectors, vectors), self.pairs)
        symmetric[i, j] = symmetric[j, i] = torch.arange(self.pairs)
        self.register_buffer("lower", i * vectors + j, persistent=False)
        self.register_buffer("symmetric", symmetric.flatten(), persistent=False)

    def forward(self, x_BVD: Tensor) -> Tensor:
        """The pairs in the order of the lower triangle, row by row."""
        pairs_BP: Tensor = _Pairs.apply(x_BVD, self.lower, self.symmetric)  # type: ignore[no-untyped-call]
        return pairs_BP


class _Pairs(torch.autograd.Function):
    """The lower triangle of ``x x^T``. Backward: ``(G + G^T) x``, gathered instead of added up."""

    @staticmethod
    def forward(ctx: Any, x_BVD: Tensor, lower: Tensor, symmetric: Tensor) -> Tensor:
        ctx.save_for_backward(x_BVD, symmetric)
        return torch.bmm(x_BVD, x_BVD.transpose(1, 2)).flatten(1).index_select(1, lower)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x_BVD, symmetric = ctx.saved_tensors
        vectors = x_BVD.shape[1]
        # The last column, of zeros, is the diagonal's.
        padded = torch.nn.functional.pad(grads[0], (0, 1))
        both_BVV = padded.index_select(1, symmetric).view(-1, vectors, vectors)
        return torch.bmm(both_BVV, x_BVD), None, None


def _init_table(table: Tensor) -> None:
    bound = len(table) ** -0.5
    table.uniform_(-bound, bound)
