"""DIN, the deep interest network.

Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 4.3
(activation unit, equation 3) and section 5.3 (Dice).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.data.batch import Batch, Lists
from rmixer.data.info import DataInfo
from rmixer.models.history import History
from rmixer.models.layers import MLP, FusedEmbedding, activation_of, sum_by_row
from rmixer.models.params import parse
from rmixer.models.sequence_params import DINParams


class DIN(nn.Module):
    """A user's history, weighed by how near each entry is to the item in question.

    The history is every sequence that shares the vocabulary of a field (past items with the item,
    their categories with its category): entry by entry side by side, against those fields side by
    side. The weights are not normalized, as in the paper. Other sequences are fields, by the mean
    of their embeddings.
    """

    def __init__(self, params: DINParams, info: DataInfo) -> None:
        super().__init__()
        self.history = History.of("din", info)
        dim, width = params.embedding_dim, params.embedding_dim * len(self.history.names)
        self.embedding = FusedEmbedding(info, dim, _init_table)
        self.attention = ActivationUnit(width, params.attention_mlp, params.activation)
        total = width + (len(info.fields) + len(self.history.others)) * dim + len(info.dense)
        activation = activation_of(params.activation)
        self.mlp = MLP(total, (*params.mlp, 1), activation=activation, last_linear=True)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DIN:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DINParams", parse("din", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        fields_BFD, sequences = self.embedding(batch)
        past_LH, target_BH = self.history.entries(sequences), self.history.target(fields_BFD)
        interest_BH = self.attention(past_LH, target_BH, self.history.lists(batch))
        means = self.history.means(sequences, batch)
        x_BW = torch.cat([interest_BH, fields_BFD.flatten(1), *means, batch.dense_BN], 1)
        logits_B1: Tensor = self.mlp(x_BW)
        return logits_B1.squeeze(1)


class ActivationUnit(nn.Module):
    """The weighted sum of a history (DIN, equation 3).

    The weight of an entry is an MLP over the entry h, the target t, ``h - t`` and ``h * t``. Its
    first layer is split, so that what depends on the target alone is computed once a row:
    ``W (h, t, h - t, h * t) = (W1 + W3) h + (W2 - W3) t + W4 (h * t)``.
    """

    def __init__(self, width: int, widths: tuple[int, ...], activation: str) -> None:
        super().__init__()
        make = activation_of(activation)
        self.first = nn.Linear(4 * width, widths[0])
        self.rest = nn.Sequential(
            make(widths[0]),
            *MLP(widths[0], (*widths[1:], 1), activation=make, last_linear=True),
        )

    def forward(self, past_LH: Tensor, target_BH: Tensor, lists: Lists) -> Tensor:
        """``[L, H]`` and ``[B, H]`` to ``[B, H]``."""
        w1, w2, w3, w4 = self.first.weight.chunk(4, 1)
        owner_L = lists.owner_L
        once_BU = F.linear(target_BH, w2 - w3, self.first.bias)
        both_LH = past_LH * target_BH.index_select(0, owner_L)
        x_LU = F.linear(past_LH, w1 + w3) + F.linear(both_LH, w4) + once_BU.index_select(0, owner_L)
        weight_L1: Tensor = self.rest(x_LU)
        return sum_by_row(weight_L1 * past_LH, lists)


def _init_table(table: Tensor) -> None:
    table.normal_(std=0.05)
