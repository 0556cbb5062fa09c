"""DCN, the deep and cross network.

Wang et al., Deep & Cross Network for Ad Click Predictions, ADKDD 2017, arXiv:1708.05123.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.field_params import DCNParams
from rmixer.models.layers import MLP, FusedEmbedding, small_normal
from rmixer.models.params import parse


class DCN(nn.Module):
    """Cross layers and an MLP over the same input, side by side, then one linear layer (eq. 6).

    The input is all embeddings and the dense columns, end to end (equation 2).
    """

    def __init__(self, params: DCNParams, info: DataInfo) -> None:
        super().__init__()
        vectors = len(info.fields) + len(info.sequences)
        width = vectors * params.embedding_dim + len(info.dense)
        self.embedding = FusedEmbedding(info, params.embedding_dim, small_normal)
        self.cross = CrossVectors(width, params.cross_layers)
        self.deep = MLP(width, params.mlp)
        self.head = nn.Linear(width + params.mlp[-1], 1)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DCN:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DCNParams", parse("dcn", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        x_BW = torch.cat([self.embedding.vectors(batch).flatten(1), batch.dense_BN], 1)
        logits_B1: Tensor = self.head(torch.cat([self.cross(x_BW), self.deep(x_BW)], 1))
        return logits_B1.squeeze(1)


class CrossVectors(nn.Module):
    """``x' = x0 (x . w) + b + x`` in each layer (equation 3); ``[B, W]`` to ``[B, W]``."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(layers, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(layers, width))

    def forward(self, x0_BW: Tensor) -> Tensor:
        """See the class."""
        x_BW = x0_BW
        for w_W, b_W in zip(self.weight, self.bias, strict=True):
            x_BW = torch.addcmul(x_BW + b_W, x0_BW, (x_BW @ w_W).unsqueeze(1))
        return x_BW
