"""DIFM, the dual input-aware factorization machine.

Lu et al., A Dual Input-aware Factorization Machine for CTR Prediction, IJCAI 2020, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.deepfm import pairwise
from rmixer.models.field_params import DIFMParams
from rmixer.models.layers import MLP, FusedEmbedding, small_normal
from rmixer.models.params import parse


class DIFM(nn.Module):
    """A factorization machine whose weights and embeddings are scaled for each row of the data.

    The scales are the sum of two factors of the row: of its embeddings as one vector, by an MLP
    (bit level), and of the embeddings attending to each other (vector level; equation 10); a
    softmax makes them 1 on average, as in the paper's forerunner (IFM, IJCAI 2019, equation 4). A
    dense column is its value times an embedding of the column.
    """

    def __init__(self, params: DIFMParams, info: DataInfo) -> None:
        super().__init__()
        dim, dense = params.embedding_dim, len(info.dense)
        vectors = len(info.fields) + len(info.sequences) + dense
        self.embedding = FusedEmbedding(info, dim + 1, small_normal)
        self.dense = nn.Parameter(torch.randn(dense, dim + 1) * 0.01) if dense else None
        self.bias = nn.Parameter(torch.zeros(1))
        self.bits = nn.Sequential(
            MLP(vectors * dim, params.mlp), nn.Linear(params.mlp[-1], vectors, bias=False)
        )
        width = params.heads * params.head_dim
        self.attention = FieldAttention(dim, params.heads, params.head_dim)
        self.vectors = nn.Linear(vectors * width, vectors, bias=False)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DIFM:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DIFMParams", parse("difm", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        rows_BVE = self.embedding.vectors(batch)
        if self.dense is not None:
            rows_BVE = torch.cat([rows_BVE, batch.dense_BN.unsqueeze(2) * self.dense], 1)
        x_BVD = rows_BVE[..., :-1]
        factor_BV = self.bits(x_BVD.flatten(1)) + self.vectors(self.attention(x_BVD).flatten(1))
        scale_BV = torch.softmax(factor_BV, 1) * factor_BV.shape[1]
        first_B = (rows_BVE[..., -1] * scale_BV).sum(1)
        logits_B: Tensor = self.bias + first_B + pairwise(x_BVD * scale_BV.unsqueeze(2))
        return logits_B


class FieldAttention(nn.Module):
    """Multi-head self-attention over fields with a residual (equations 5 to 8).

    ``[B, V, D]`` to ``[B, V, heads head_dim]``.
    """

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        width = heads * head_dim
        self.query_key_value = nn.Linear(dim, 3 * width, bias=False)
        self.residual = nn.Linear(dim, width, bias=False)

    def forward(self, x_BVD: Tensor) -> Tensor:
        """See the class."""
        size, vectors, _ = x_BVD.shape
        parts = self.query_key_value(x_BVD).view(size, vectors, 3, self.heads, -1)
        q_BHVK, k_BHVK, v_BHVK = parts.permute(2, 0, 3, 1, 4)
        found_BHVK = F.scaled_dot_product_attention(q_BHVK, k_BHVK, v_BHVK)
        mixed_BVW = found_BHVK.transpose(1, 2).reshape(size, vectors, -1)
        return torch.relu(mixed_BVW + self.residual(x_BVD))
