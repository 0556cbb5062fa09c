"""DIEN, the deep interest evolution network.

Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019,
arXiv:1809.03672.
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
from rmixer.models.layers import MLP, FusedEmbedding, activation_of
from rmixer.models.params import parse
from rmixer.models.sequence_params import DIENParams


class DIEN(nn.Module):
    """A GRU over the history finds interests, a second one follows those that concern the target.

    Its training objective has an auxiliary part (equation 7): the state after an entry must tell
    the next one from an entry of another row.
    """

    def __init__(self, params: DIENParams, info: DataInfo) -> None:
        super().__init__()
        self.history = History.of("dien", info)
        self.auxiliary = params.auxiliary
        dim, width = params.embedding_dim, params.embedding_dim * len(self.history.names)
        self.embedding = FusedEmbedding(info, dim, _init_table)
        self.extractor = nn.GRU(width, width, batch_first=True)
        self.relevance = nn.Linear(width, width, bias=False)
        self.evolution = AUGRU(width)
        others = len(info.fields) + len(self.history.others)
        self.mlp = MLP(
            width + others * dim + len(info.dense),
            (*params.mlp, 1),
            activation=activation_of(params.activation),
            last_linear=True,
        )

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DIEN:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DIENParams", parse("dien", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        return self._read(batch)[0]

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy, plus ``auxiliary`` times that of the next entries (equation 8)."""
        logits_B, *entries = self._read(batch)
        loss = F.binary_cross_entropy_with_logits(logits_B, batch.label_B)
        return loss + self.auxiliary * next_entry_loss(*entries)

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-odds ``[B]``, and of each entry the state, the vector, and whether there is one."""
        fields_BFD, sequences = self.embedding(batch)
        entries_LH = self.history.entries(sequences)
        padded = Padded.of(self.history.lists(batch))
        past_BTH, mask_BT = padded.fill(entries_LH), padded.mask_BT
        interest_BTH, _ = self.extractor(past_BTH)
        target_BH = self.history.target(fields_BFD)
        scores_BT = torch.einsum("bth,bh->bt", interest_BTH, self.relevance(target_BH))
        evolved_BH = self.evolution(interest_BTH, masked_softmax(scores_BT, mask_BT))
        means = self.history.means(sequences, batch)
        x_BW = torch.cat([evolved_BH, fields_BFD.flatten(1), *means, batch.dense_BN], 1)
        logits_B1: Tensor = self.mlp(x_BW)
        return logits_B1.squeeze(1), interest_BTH, past_BTH, mask_BT


class AUGRU(nn.Module):
    """A GRU whose update gate is scaled by attention (equations 13 to 16).

    ``[B, T, H]`` and weights ``[B, T]`` to the last state ``[B, H]``; an entry of weight 0 leaves
    the state as it is.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, 3 * width)
        self.state = nn.Linear(width, 3 * width)

    def forward(self, x_BTH: Tensor, weight_BT: Tensor) -> Tensor:
        """See the class."""
        inputs_TBG = self.inputs(x_BTH).transpose(0, 1)
        state_BH = x_BTH.new_zeros(len(x_BTH), x_BTH.shape[2])
        for input_BG, weight_B1 in zip(inputs_TBG, weight_BT.T.unsqueeze(2), strict=True):
            ru_in, h_in = input_BG.tensor_split((2 * state_BH.shape[1],), 1)
            ru_state, h_state = self.state(state_BH).tensor_split((2 * state_BH.shape[1],), 1)
            reset_BH, update_BH = torch.sigmoid(ru_in + ru_state).chunk(2, 1)
            new_BH = torch.tanh(torch.addcmul(h_in, reset_BH, h_state))
            state_BH = torch.lerp(state_BH, new_BH, weight_B1 * update_BH)
        return state_BH


def next_entry_loss(state_BTH: Tensor, past_BTH: Tensor, mask_BT: Tensor) -> Tensor:
    """How well a state tells the next entry from one drawn out of the batch (equation 7)."""
    has_next_N = mask_BT[:, 1:].flatten().nonzero()[:, 0]
    if not len(has_next_N):
        return state_BTH.new_zeros(())
    state_NH = state_BTH[:, :-1].flatten(0, 1).index_select(0, has_next_N)
    next_NH = past_BTH[:, 1:].flatten(0, 1).index_select(0, has_next_N)
    other_NH = next_NH[torch.randperm(len(next_NH))]
    right_N, wrong_N = (state_NH * next_NH).sum(1), (state_NH * other_NH).sum(1)
    return 0.5 * (F.softplus(-right_N).mean() + F.softplus(wrong_N).mean())


def _init_table(table: Tensor) -> None:
    table.normal_(std=0.05)
