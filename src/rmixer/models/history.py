"""What the models over a user's history share: which columns it is made of, and its padded form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.data.batch import Batch, Lists
from rmixer.data.info import DataInfo
from rmixer.errors import UsageError
from rmixer.models.layers import mean_by_row


@dataclass(frozen=True, slots=True)
class History:
    """The columns of a history: entry by entry side by side, against their fields side by side.

    Attributes:
        model: whose it is, for messages.
        names: the sequences that share the vocabulary of a field (past items with the item, their
            categories with its category).
        targets: for each of them the index of that field.
        aligned: further sequences with one id per entry (what was done with the item).
        others: sequences that are none of it; they are fields, by the mean of their embeddings.
    """

    model: str
    names: tuple[str, ...]
    targets: tuple[int, ...]
    aligned: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, model: str, info: DataInfo, aligned: tuple[str, ...] = ()) -> History:
        """The history in some data.

        Raises:
            UsageError: there is none.
        """
        shared = [sequence for sequence in info.sequences if sequence.shares is not None]
        if not shared:
            raise UsageError(
                f"{model} needs a behaviour sequence: a `sequence` column with `shares: FIELD`, "
                "FIELD being the sparse column of the item in question"
            )
        fields = [field.name for field in info.fields]
        own = [sequence.name for sequence in info.sequences if sequence.shares is None]
        return cls(
            model,
            tuple(sequence.name for sequence in shared),
            tuple(fields.index(str(sequence.shares)) for sequence in shared),
            tuple(name for name in own if name in aligned),
            tuple(name for name in own if name not in aligned),
        )

    def lists(self, batch: Batch) -> Lists:
        """The lists of the entries, which must be equally long in each row.

        Raises:
            UsageError: they are not.
        """
        first, *rest = (batch.sequences[name] for name in (*self.names, *self.aligned))
        if any(not torch.equal(first.length_B, other.length_B) for other in rest):
            names = " and ".join((*self.names, *self.aligned))
            raise UsageError(
                f"{self.model} needs lists of equal length in each row: {names} differ"
            )
        return first

    def entries(self, sequences: Mapping[str, Tensor]) -> Tensor:
        """The embeddings of all entries, ``[L, H]``."""
        return torch.cat([sequences[name] for name in self.names], 1)

    def context(self, sequences: Mapping[str, Tensor]) -> list[Tensor]:
        """What else is said of the entries, ``[L, D]`` each."""
        return [sequences[name] for name in self.aligned]

    def target(self, fields_BFD: Tensor) -> Tensor:
        """The embeddings of the item in question, ``[B, H]``."""
        return fields_BFD[:, list(self.targets)].flatten(1)

    def means(self, sequences: Mapping[str, Tensor], batch: Batch) -> list[Tensor]:
        """The other sequences, ``[B, D]`` each."""
        return [mean_by_row(sequences[name], batch.sequences[name]) for name in self.others]


@dataclass(frozen=True, slots=True)
class Padded:
    """Lists as a rectangle of the newest ``T`` entries of each row.

    Attributes:
        cell_K: where in the rectangle, flattened, each kept entry goes.
        kept_K: which of the entries, ascending, are kept.
        mask_BT: whether a cell holds an entry.
    """

    cell_K: Tensor
    kept_K: Tensor
    mask_BT: Tensor

    @classmethod
    def of(cls, lists: Lists, length: int | None = None, *, right: bool = False) -> Padded:
        """Room for ``length`` entries a row, else for the longest list, and at least one.

        With ``right`` the newest entry is in the last column; else the oldest in the first one.
        """
        longest = max(1, int(lists.length_B.max()) if len(lists.length_B) else 1)
        room = length or longest
        ends_B = lists.length_B.cumsum(0)
        from_end_L = ends_B[lists.owner_L] - torch.arange(len(lists.owner_L))  # 1: the newest
        kept_K = (from_end_L <= room).nonzero()[:, 0]
        owner_K, from_end_K = lists.owner_L[kept_K], from_end_L[kept_K]
        filled_B = lists.length_B.clamp(max=room)
        last = room if right else filled_B[owner_K]
        cell_K = owner_K * room + last - from_end_K
        columns_T = torch.arange(room)
        if right:
            columns_T = columns_T.flip(0)
        return cls(cell_K, kept_K, columns_T < filled_B.unsqueeze(1))

    def fill(self, values_LH: Tensor) -> Tensor:
        """The rectangle, ``[B, T, H]``; 0 where there is no entry."""
        size, room = self.mask_BT.shape
        flat = values_LH.new_zeros(size * room, values_LH.shape[1])
        return flat.index_copy(0, self.cell_K, values_LH[self.kept_K]).view(size, room, -1)


def masked_softmax(scores_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Softmax over the cells that hold an entry; all 0 for a row without any."""
    scores_BT = scores_BT.masked_fill(~mask_BT, float("-inf"))
    highest_B1 = scores_BT.detach().max(1, keepdim=True).values.clamp(min=-1e30)
    weight_BT = torch.exp(scores_BT - highest_B1)
    return weight_BT / weight_BT.sum(1, keepdim=True).clamp(min=1e-30)


class Transformer(nn.Module):
    """One encoder layer (Vaswani et al., Attention Is All You Need, NeurIPS 2017, section 3.1).

    Self-attention and a feed-forward network, a residual and a layer norm after each;
    ``[B, T, W]`` to ``[B, T, W]``.

    Raises:
        UsageError: the heads do not divide the width.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, activation: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"params.heads: {heads} heads do not divide the width of {width}")
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden), activation, nn.Linear(hidden, width)
        )
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTW: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """See the class. Every row must have a cell that its mask allows."""
        size, room, width = x_BTW.shape
        parts = self.query_key_value(x_BTW).view(size, room, 3, self.heads, -1)
        q_BHTK, k_BHTK, v_BHTK = parts.permute(2, 0, 3, 1, 4)
        mask = None if mask_BT is None else mask_BT[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask)
        mixed_BTW = self.out(mixed.transpose(1, 2).reshape(size, room, width))
        x_BTW = self.first(x_BTW + self.dropout(mixed_BTW))
        found: Tensor = self.second(x_BTW + self.dropout(self.feed_forward(x_BTW)))
        return found
