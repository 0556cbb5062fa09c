"""DPIN, the deep position-wise interaction network.

Huang et al., Deep Position-wise Interaction Network for CTR Prediction, SIGIR 2021,
arXiv:2106.05482.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch, Lists
from rmixer.data.info import DataInfo
from rmixer.errors import UsageError
from rmixer.models.history import History, Transformer
from rmixer.models.layers import MLP, FusedEmbedding
from rmixer.models.params import parse
from rmixer.models.sequence_params import DPINParams

#: A page has few positions; a field with more values than this is something else.
_MOST_POSITIONS = 256


class DPIN(nn.Module):
    """How likely a click is at each position of a page; a row's label is about one of them.

    The base module (section 3.2) sees the item and its context without the position. For every
    position the user's interest is gathered from the entries of the history that were at it, and
    transformer layers over the positions let them interact (section 3.3); the combination module
    (section 3.4) gives the log-odds, here at the row's own position alone.
    """

    def __init__(self, params: DPINParams, info: DataInfo) -> None:
        super().__init__()
        self.history = History.of("dpin", info)
        self.column, self.places = _position(params.position, self.history, info)
        self.past = (
            params.position,
            next(s.name for s in info.sequences if s.shares == params.position),
        )
        dim, width = params.embedding_dim, params.embedding_dim * len(self.history.names)
        self.embedding = FusedEmbedding(info, dim, _init_table)
        self.place = nn.Parameter(torch.empty(2, self.places, dim).normal_(std=0.05))
        others = (len(info.fields) - 1 + len(self.history.others)) * dim + len(info.dense)
        self.base = MLP(others, params.base_mlp)
        self.interest = Interest(width)
        self.joined = nn.Sequential(nn.Linear(dim + width, params.width), nn.ReLU())
        self.transformer = nn.Sequential(
            *(
                Transformer(params.width, params.heads, params.width, nn.ReLU())
                for _ in range(params.layers)
            )
        )
        combined = params.base_mlp[-1] + params.width + dim
        self.head = MLP(combined, (*params.mlp, 1), last_linear=True)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> DPIN:
        """See `rmixer.models.model.Model`."""
        return cls(cast("DPINParams", parse("dpin", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``, each at its row's position."""
        fields_BFD, sequences = self.embedding(batch)
        means = self.history.means(sequences, batch)
        rest_BFD = torch.cat([fields_BFD[:, : self.column], fields_BFD[:, self.column + 1 :]], 1)
        base_BH = self.base(torch.cat([rest_BFD.flatten(1), *means, batch.dense_BN], 1))
        interest_BKH = self.interest(
            self.history.entries(sequences),
            self.history.lists(batch),
            batch.sequences[self.past[1]].values_L,
            self.places,
        )
        place_BKD = self.place[0].expand(len(batch), -1, -1)
        x_BKW = self.transformer(self.joined(torch.cat([place_BKD, interest_BKH], 2)))
        at_B = batch.sparse_BF[:, self.column].long()
        own_BW = x_BKW[torch.arange(len(batch)), at_B]
        logits_B1: Tensor = self.head(torch.cat([base_BH, own_BW, self.place[1][at_B]], 1))
        return logits_B1.squeeze(1)


class Interest(nn.Module):
    """What a user liked at each position: the entries at it, weighed by a softmax among them.

    ``[L, H]`` to ``[B, K, H]``; 0 at a position without an entry.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = MLP(width, (width, 1), last_linear=True)

    def forward(self, past_LH: Tensor, lists: Lists, place_L: Tensor, places: int) -> Tensor:
        """See the class."""
        cells = len(lists.length_B) * places
        cell_L = lists.owner_L * places + place_L.long()
        scores_L = self.score(past_LH).squeeze(1)
        highest = scores_L.detach().max() if len(scores_L) else 0.0
        weight_L1 = torch.exp((scores_L - highest).clamp(min=-60.0)).unsqueeze(1)
        total_C1 = weight_L1.new_zeros(cells, 1).index_add(0, cell_L, weight_L1)
        sums_CH = past_LH.new_zeros(cells, past_LH.shape[1]).index_add(
            0, cell_L, weight_L1 * past_LH
        )
        return (sums_CH / total_C1.clamp(min=1e-30)).view(len(lists.length_B), places, -1)


def _position(name: str, history: History, info: DataInfo) -> tuple[int, int]:
    """The index of the field of the position, and how many ids it has.

    Raises:
        UsageError: there is none, or it is no position.
    """
    names = [field.name for field in info.fields]
    column = names.index(name) if name in names else -1
    if column not in history.targets:
        raise UsageError(
            f"dpin needs the position of an item and of the past ones: a sparse column {name!r}, "
            "and a sequence with `shares` of it; another name goes into params.position"
        )
    places = info.tables[info.fields[column].table].rows
    if places > _MOST_POSITIONS:
        raise UsageError(
            f"params.position: {name!r} has {places} values; a page has at most {_MOST_POSITIONS}"
        )
    return column, places


def _init_table(table: Tensor) -> None:
    table.normal_(std=0.05)
