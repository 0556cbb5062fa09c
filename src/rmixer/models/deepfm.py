"""DeepFM, a factorization machine and a deep network over the same embeddings.

Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017,
equations 1 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.field_params import DeepFMParams
from rmixer.models.layers import MLP, FusedEmbedding, small_normal
from rmixer.models.params import parse


class DeepFM(nn.Module):
    """A factorization machine and an MLP over the same embeddings, added (equation 1).

    Each row of the table is an embedding and, as its last number, the weight of the first-order
    term, so one lookup serves both. A dense column is its value times an embedding of the column; a
    list of ids is the mean of its embeddings.
    """

    def __init__(self, params: DeepFMParams, info: DataInfo) -> None:
        super().__init__()
        dim, dense = params.embedding_dim, len(info.dense)
        self.embedding = FusedEmbedding(info, dim + 1, small_normal)
        self.dense = nn.Parameter(torch.empty(dense, dim + 1).normal_(std=0.01)) if dense else None
        self.bias = nn.Parameter(torch.zeros(1))
        width = (len(info.fields) + len(info.sequences) + dense) * dim
        self.mlp = MLP(width, (*params.mlp, 1), last_linear=True, dropout=params.dropout)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DeepFM:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DeepFMParams", parse("deepfm", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        all_BFE = self.embedding.vectors(batch)
        if self.dense is not None:
            all_BFE = torch.cat([all_BFE, batch.dense_BN.unsqueeze(2) * self.dense], 1)
        first_B = all_BFE[..., -1].sum(1)
        v_BFD = all_BFE[..., :-1]
        deep_B1: Tensor = self.mlp(v_BFD.flatten(1))
        return self.bias + first_B + pairwise(v_BFD) + deep_B1.squeeze(1)


def pairwise(v_BFD: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of vectors (equation 2), in linear time, ``[B]``."""
    total_BD = v_BFD.sum(1)
    return 0.5 * (total_BD.square().sum(1) - v_BFD.square().sum((1, 2)))
