"""BERT4Rec.

Sun et al., BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from
Transformer, CIKM 2019, arXiv:1904.06690.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.history import History, Padded, Transformer
from rmixer.models.layers import FusedEmbedding
from rmixer.models.params import parse
from rmixer.models.sampled import sampled_softmax, table_of
from rmixer.models.sequence_params import BERT4RecParams


class BERT4Rec(nn.Module):
    """A transformer fills gaps in a history; an item is judged by how well it would fill the next.

    Published (section 3): a learned position, layers that see both sides, the cloze objective (a
    share of the entries is hidden and found again by a softmax over the items, equation 8), the
    output tied to the items' embeddings with a bias each (equation 7). Of ours: where data have
    labels, the log-odds of an item are its score at a gap behind the history, scaled and shifted,
    and their cross entropy is part of the objective; the gap is filled too in rows with label 1;
    the softmax is over a sample of the items where there are more than ``negatives``.
    """

    def __init__(self, params: BERT4RecParams, info: DataInfo) -> None:
        super().__init__()
        self.history = History.of("bert4rec", info)
        self.items, self.target = self.history.names[0], self.history.targets[0]
        self.length, self.negatives = params.length, params.negatives
        self.mask_share, self.cloze = params.mask_share, params.cloze
        dim = params.embedding_dim
        self.embedding = FusedEmbedding(table_of(info, self.items), dim + 1, _init_table)
        self.gap = nn.Parameter(torch.empty(dim).normal_(std=0.02))
        self.position = nn.Parameter(torch.empty(params.length + 1, dim).normal_(std=0.02))
        self.first = nn.LayerNorm(dim)
        self.transformer = nn.ModuleList(
            Transformer(dim, params.heads, 4 * dim, nn.GELU(), params.dropout)
            for _ in range(params.layers)
        )
        self.output = nn.Sequential(nn.Linear(dim, dim), nn.GELU())
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> BERT4Rec:
        """See `rmixer.models.model.Model`."""
        return cls(cast("BERT4RecParams", parse("bert4rec", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        lists = batch.sequences[self.items]
        padded = Padded.of(lists, self.length, right=True)
        past_BTD = padded.fill(self.embedding.lookup(lists.values_L.long())[:, :-1])
        gap_BD = self._encoded(past_BTD, padded.mask_BT)[:, -1]
        target_BE = self.embedding.lookup(batch.sparse_BF[:, self.target].long())
        score_B = (self.output(gap_BD) * target_BE[:, :-1]).sum(1) + target_BE[:, -1]
        logits_B: Tensor = self.scale * score_B + self.shift
        return logits_B

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy of the labels, plus ``cloze`` times that of the hidden items."""
        loss = F.binary_cross_entropy_with_logits(self(batch), batch.label_B)
        return loss + self.cloze * self._cloze_loss(batch) if self.cloze else loss

    def _cloze_loss(self, batch: Batch) -> Tensor:
        lists = batch.sequences[self.items]
        padded = Padded.of(lists, self.length, right=True)
        past_BTD = padded.fill(self.embedding.lookup(lists.values_L.long())[:, :-1])
        hidden_BT = torch.rand(padded.mask_BT.shape) < self.mask_share
        hidden_BT &= padded.mask_BT
        past_BTD = torch.where(hidden_BT.unsqueeze(2), self.gap, past_BTD)
        ids_BT = padded.fill(lists.values_L.unsqueeze(1))[..., 0]
        next_B1 = batch.sparse_BF[:, self.target].unsqueeze(1)
        wanted_BS = torch.cat([ids_BT, next_B1.to(ids_BT.dtype)], 1)
        asked_BS = torch.cat([hidden_BT, (batch.label_B > 0.5).unsqueeze(1)], 1)  # noqa: PLR2004
        asked_N = asked_BS.flatten().nonzero()[:, 0]
        if not len(asked_N):
            return past_BTD.new_zeros(())
        encoded_BSD = self._encoded(past_BTD, padded.mask_BT)
        found_ND = self.output(encoded_BSD.flatten(0, 1).index_select(0, asked_N))
        wanted_N = wanted_BS.flatten()[asked_N]
        return sampled_softmax(self.embedding, found_ND, wanted_N, self.negatives)

    def _encoded(self, past_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """The history and one gap behind it through the layers, ``[B, T + 1, D]``."""
        gap_B1D = self.gap.expand(len(past_BTD), 1, -1)
        x_BSD = self.first(torch.cat([past_BTD, gap_B1D], 1) + self.position)
        mask_BS = F.pad(mask_BT, (0, 1), value=True)
        for layer in self.transformer:
            x_BSD = layer(x_BSD, mask_BS)
        found: Tensor = x_BSD
        return found


def _init_table(table: Tensor) -> None:
    table[:, :-1].normal_(std=0.02)
    table[:, -1] = 0.0
