"""DMR, the deep match to rank model.

Lyu et al., Deep Match to Rank Model for Personalized Click-Through Rate Prediction, AAAI 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.history import History, Padded, masked_softmax
from rmixer.models.layers import MLP, FusedEmbedding
from rmixer.models.params import parse
from rmixer.models.sampled import sampled_softmax, table_of
from rmixer.models.sequence_params import DMRParams


class DMR(nn.Module):
    """Two measures of how a user and an item match, beside what the other models of a history have.

    User-to-item (section 3.3): a vector of the user, by attention over the history with the
    position as its query, times a vector of the item from a table of its own. Item-to-item (section
    3.4): the sum of the attention of the history to the item. An auxiliary part of the objective
    (equation 8) lets the user's vector of all but the newest entry find the newest among others.
    """

    def __init__(self, params: DMRParams, info: DataInfo) -> None:
        super().__init__()
        self.history = History.of("dmr", info, params.context)
        self.auxiliary, self.negatives = params.auxiliary, params.negatives
        self.length = params.length
        dim, width = params.embedding_dim, params.embedding_dim * len(self.history.names)
        context = dim * (1 + len(self.history.aligned))
        self.embedding = FusedEmbedding(info, dim, _init_table)
        self.position = nn.Parameter(torch.empty(params.length, dim).normal_(std=0.05))
        self.output = FusedEmbedding(table_of(info, self.history.names[0]), dim, _init_table)
        self.to_item = Attention(context, width, params.attention)
        self.to_user = nn.Sequential(nn.Linear(width, dim), nn.PReLU())
        self.between = Attention(context + width, width, params.attention)
        others = (len(info.fields) + len(self.history.others)) * dim + len(info.dense)
        self.mlp = MLP(
            2 + width + others,
            (*params.mlp, 1),
            activation=lambda _: nn.PReLU(),
            last_linear=True,
        )

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DMR:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DMRParams", parse("dmr", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        return self._both(batch)[0]

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy, plus ``auxiliary`` times that of the newest entry (equation 9)."""
        logits_B, (scores_BT, past_BTH, mask_BT) = self._both(batch)
        loss = F.binary_cross_entropy_with_logits(logits_B, batch.label_B)
        lists = batch.sequences[self.history.names[0]]
        long_N = (lists.length_B > 1).nonzero()[:, 0]
        if not len(long_N):
            return loss
        before_NT = mask_BT[long_N].clone()
        before_NT[:, -1] = False  # the newest entry is in the last column
        weight_NT = masked_softmax(scores_BT[long_N], before_NT)
        user_ND = self.to_user(torch.einsum("nt,nth->nh", weight_NT, past_BTH[long_N]))
        newest_N = lists.values_L[lists.length_B.cumsum(0)[long_N] - 1]
        found = sampled_softmax(self.output, user_ND, newest_N, self.negatives)
        return loss + self.auxiliary * found

    def _both(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        fields_BFD, sequences = self.embedding(batch)
        padded = Padded.of(self.history.lists(batch), self.length, right=True)
        past_BTH, mask_BT = padded.fill(self.history.entries(sequences)), padded.mask_BT
        position_BTD = self.position.expand(len(batch), -1, -1)
        aligned = [padded.fill(values) for values in self.history.context(sequences)]
        context_BTC = torch.cat([position_BTD, *aligned], 2)
        target_BH = self.history.target(fields_BFD)

        scores_BT = self.to_item(context_BTC, past_BTH)
        weight_BT = masked_softmax(scores_BT, mask_BT)
        user_BD = self.to_user(torch.einsum("bt,bth->bh", weight_BT, past_BTH))
        item_BD = self.output.lookup(batch.sparse_BF[:, self.history.targets[0]].long())
        match_B1 = (user_BD * item_BD).sum(1, keepdim=True)

        tiled_BTH = target_BH.unsqueeze(1).expand(-1, past_BTH.shape[1], -1)
        near_BT = self.between(torch.cat([context_BTC, tiled_BTH], 2), past_BTH)
        near_B1 = (near_BT * mask_BT).sum(1, keepdim=True)
        interest_BH = torch.einsum("bt,bth->bh", masked_softmax(near_BT, mask_BT), past_BTH)

        means = self.history.means(sequences, batch)
        parts = [match_B1, near_B1, interest_BH, fields_BFD.flatten(1), *means, batch.dense_BN]
        logits_B1: Tensor = self.mlp(torch.cat(parts, 1))
        return logits_B1.squeeze(1), (scores_BT, past_BTH, mask_BT)


class Attention(nn.Module):
    """``z . tanh(W c + U e + b)`` of contexts and entries (equations 3 and 11).

    ``[B, T, C]`` and ``[B, T, H]`` to ``[B, T]``.
    """

    def __init__(self, context: int, width: int, hidden: int) -> None:
        super().__init__()
        self.context = nn.Linear(context, hidden)
        self.entry = nn.Linear(width, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, context_BTC: Tensor, entries_BTH: Tensor) -> Tensor:
        """See the class."""
        both_BTA = torch.tanh(self.context(context_BTC) + self.entry(entries_BTH))
        scores_BT: Tensor = self.score(both_BTA).squeeze(2)
        return scores_BT


def _init_table(table: Tensor) -> None:
    table.normal_(std=0.05)
