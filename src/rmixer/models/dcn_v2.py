"""DCN v2.

Wang et al., DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to
Rank Systems, WWW 2021, arXiv:2008.13535.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.field_params import DCNv2Params
from rmixer.models.layers import MLP, FusedEmbedding, small_normal
from rmixer.models.params import parse


class DCNv2(nn.Module):
    """Cross layers with matrices, before an MLP (``stacked``) or beside it (``parallel``).

    The input is all embeddings and the dense columns, end to end. With ``low_rank`` each cross
    layer is a mixture of low-rank experts (equation 3), else a full matrix (equation 1); the two
    structures are those of section 3.3.
    """

    def __init__(self, params: DCNv2Params, info: DataInfo) -> None:
        super().__init__()
        vectors = len(info.fields) + len(info.sequences)
        width = vectors * params.embedding_dim + len(info.dense)
        self.parallel = params.structure == "parallel"
        self.embedding = FusedEmbedding(info, params.embedding_dim, small_normal)
        layers: list[nn.Module] = [
            CrossMixture(width, params.low_rank, params.experts)
            if params.low_rank
            else CrossMatrix(width)
            for _ in range(params.cross_layers)
        ]
        self.cross = nn.ModuleList(layers)
        self.deep = MLP(width, params.mlp, dropout=params.dropout)
        self.head = nn.Linear(params.mlp[-1] + (width if self.parallel else 0), 1)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DCNv2:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DCNv2Params", parse("dcn_v2", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        x0_BW = torch.cat([self.embedding.vectors(batch).flatten(1), batch.dense_BN], 1)
        x_BW = x0_BW
        for layer in self.cross:
            x_BW = layer(x0_BW, x_BW)
        deep_BH = self.deep(x0_BW if self.parallel else x_BW)
        logits_B1: Tensor = self.head(torch.cat([x_BW, deep_BH], 1) if self.parallel else deep_BH)
        return logits_B1.squeeze(1)


class CrossMatrix(nn.Module):
    """``x0 * (W x + b) + x`` (equation 1); ``[B, W]`` twice to ``[B, W]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x0_BW: Tensor, x_BW: Tensor) -> Tensor:
        """See the class."""
        return torch.addcmul(x_BW, x0_BW, self.linear(x_BW))


class CrossMixture(nn.Module):
    """``sum of G[i](x) x0 * (U[i] g(C[i] g(V[i]' x)) + b) + x`` over experts (equations 3 and 4).

    g is tanh, G a softmax over the experts.
    """

    def __init__(self, width: int, rank: int, experts: int) -> None:
        super().__init__()
        self.down = nn.Parameter(_glorot(experts, rank, width))
        self.middle = nn.Parameter(_glorot(experts, rank, rank))
        self.up = nn.Parameter(_glorot(experts, width, rank))
        self.bias = nn.Parameter(torch.zeros(width))
        self.gate = nn.Linear(width, experts) if experts > 1 else None

    def forward(self, x0_BW: Tensor, x_BW: Tensor) -> Tensor:
        """See the class."""
        low_EBR = torch.tanh(x_BW @ self.down.mT)
        low_EBR = torch.tanh(low_EBR @ self.middle.mT)
        found_EBW = low_EBR @ self.up.mT + self.bias
        if self.gate is None:
            return torch.addcmul(x_BW, x0_BW, found_EBW[0])
        weight_BE = torch.softmax(self.gate(x_BW), 1)
        mixed_BW = torch.einsum("be,ebw->bw", weight_BE, found_EBW)
        return torch.addcmul(x_BW, x0_BW, mixed_BW)


def _glorot(experts: int, rows: int, columns: int) -> Tensor:
    return torch.stack([nn.init.xavier_normal_(torch.empty(rows, columns)) for _ in range(experts)])
