"""DIN: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018,
section 4.3 (activation unit, equation 3 of the published version) and section 5.3 (Dice).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.errors import UsageError
from rmixer.models.layers import MLP, FusedEmbedding, activation_of, mean_of_known
from rmixer.models.params import DINParams, parse


class DIN(nn.Module):
    """A user's history, weighed by how near each entry is to the item in question.

    The history is every sequence that shares the vocabulary of a field (past items with the item,
    their categories with its category): entry by entry side by side, against those fields side by
    side. The weights are not normalized, as in the paper. Other sequences are fields, by the mean
    of their embeddings.
    """

    def __init__(self, params: DINParams, info: DataInfo) -> None:
        super().__init__()
        self.history = tuple(s.name for s in info.sequences if s.shares is not None)
        self.others = tuple(s.name for s in info.sequences if s.shares is None)
        if not self.history:
            raise UsageError(
                "din needs a behaviour sequence: a `sequence` column with `shares: FIELD`, "
                "FIELD being the sparse column of the item in question"
            )
        names = [field.name for field in info.fields]
        self.target = [names.index(cast("str", s.shares)) for s in info.sequences if s.shares]
        dim, width = params.embedding_dim, params.embedding_dim * len(self.history)
        self.embedding = FusedEmbedding(info, dim, _init_table)
        activation = activation_of(params.activation)
        self.attention = ActivationUnit(width, params.attention_mlp, params.activation)
        total = width + (len(info.fields) + len(self.others)) * dim + len(info.dense)
        self.mlp = MLP(total, (*params.mlp, 1), activation=activation, last_linear=True)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DIN:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DINParams", parse("din", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        fields_BFD, sequences = self.embedding(batch)
        past_BTH = _side_by_side([sequences[name] for name in self.history])
        target_BH = fields_BFD[:, self.target].flatten(1)
        known_BT = _past_ids(batch, self.history) > 0
        interest_BH = self.attention(past_BTH, target_BH, known_BT)
        others = [mean_of_known(sequences[n], batch.sequences[n]) for n in self.others]
        x_BW = torch.cat([interest_BH, fields_BFD.flatten(1), *others, batch.dense_BN], 1)
        logits_B1: Tensor = self.mlp(x_BW)
        return logits_B1.squeeze(1)


class ActivationUnit(nn.Module):
    """The weighted sum of a history (DIN, equation 3); padding has weight 0."""

    def __init__(self, width: int, widths: tuple[int, ...], activation: str) -> None:
        super().__init__()
        make = activation_of(activation)
        self.mlp = MLP(4 * width, (*widths, 1), activation=make, last_linear=True)

    def forward(self, past_BTH: Tensor, target_BH: Tensor, known_BT: Tensor) -> Tensor:
        """``[B, T, H]``, ``[B, H]`` and ``[B, T]`` to ``[B, H]``."""
        target_BTH = target_BH.unsqueeze(1).expand_as(past_BTH)
        pair_BTI = torch.cat(
            [past_BTH, target_BTH, past_BTH - target_BTH, past_BTH * target_BTH], 2
        )
        weight_BT1 = self.mlp(pair_BTI) * known_BT.unsqueeze(2)
        return (weight_BT1 * past_BTH).sum(1)


def _past_ids(batch: Batch, names: tuple[str, ...]) -> Tensor:
    """Ids that are above 0 where any of the lists has an entry, ``[B, T]``, T of the longest."""
    longest = max(batch.sequences[name].shape[1] for name in names)
    padded = [pad(ids, (0, longest - ids.shape[1])) for ids in map(batch.sequences.__getitem__, names)]
    return torch.stack(padded).amax(0)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    longest = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts], 2)


def _init_table(table: Tensor) -> None:
    table.normal_(std=0.05)
