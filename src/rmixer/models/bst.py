"""BST, the behavior sequence transformer.

Chen et al., Behavior Sequence Transformer for E-commerce Recommendation in Alibaba, DLP-KDD 2019,
arXiv:1905.06874.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.history import History, Padded, Transformer
from rmixer.models.layers import MLP, FusedEmbedding
from rmixer.models.params import parse
from rmixer.models.sequence_params import BSTParams


class BST(nn.Module):
    """Transformer layers over the newest entries and the target, then an MLP over all of them.

    The position of an entry, counted back from the target, is a feature of it (section 2.1): its
    embedding stands beside the entry's.
    """

    def __init__(self, params: BSTParams, info: DataInfo) -> None:
        super().__init__()
        self.history = History.of("bst", info)
        self.length = params.length
        dim = params.embedding_dim
        width = dim * len(self.history.names) + dim
        self.embedding = FusedEmbedding(info, dim, _init_table)
        self.position = nn.Parameter(torch.empty(params.length + 1, dim).normal_(std=0.05))
        self.transformer = nn.ModuleList(
            Transformer(width, params.heads, 4 * width, nn.LeakyReLU(), params.dropout)
            for _ in range(params.layers)
        )
        others = (len(info.fields) + len(self.history.others)) * dim + len(info.dense)
        self.mlp = MLP(
            (params.length + 1) * width + others,
            (*params.mlp, 1),
            activation=lambda _: nn.LeakyReLU(),
            last_linear=True,
            dropout=params.dropout,
        )

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> BST:
        """See `rmixer.models.model.Model`."""
        return cls(cast("BSTParams", parse("bst", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        fields_BFD, sequences = self.embedding(batch)
        padded = Padded.of(self.history.lists(batch), self.length, right=True)
        past_BTH = padded.fill(self.history.entries(sequences))
        target_B1H = self.history.target(fields_BFD).unsqueeze(1)
        entries_BSH = torch.cat([past_BTH, target_B1H], 1)
        mask_BS = nn.functional.pad(padded.mask_BT, (0, 1), value=True)
        position_BSD = self.position.expand(len(batch), -1, -1)
        x_BSW = torch.cat([entries_BSH, position_BSD], 2)
        for layer in self.transformer:
            x_BSW = layer(x_BSW, mask_BS)
        x_BSW = x_BSW * mask_BS.unsqueeze(2)
        means = self.history.means(sequences, batch)
        x_BW = torch.cat([x_BSW.flatten(1), fields_BFD.flatten(1), *means, batch.dense_BN], 1)
        logits_B1: Tensor = self.mlp(x_BW)
        return logits_B1.squeeze(1)


def _init_table(table: Tensor) -> None:
    table.normal_(std=0.05)
