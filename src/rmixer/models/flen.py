"""FLEN, leveraging field for scalable CTR prediction.

Chen et al., FLEN: Leveraging Field for Scalable CTR Prediction, DLP-KDD 2020, arXiv:1911.04690.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.errors import UsageError, unknown_name
from rmixer.models.field_params import FLENParams
from rmixer.models.layers import MLP, FusedEmbedding, small_normal
from rmixer.models.params import parse

#: The groups of a data set by its column names: user, item, context (section 4.1 of the paper).
AVAZU_GROUPS = (
    ("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    ("app_id", "app_domain", "app_category", "site_id", "site_domain", "site_category"),
)


class FLEN(nn.Module):
    """Embeddings summed by groups of columns (user, item, context), their products, and an MLP.

    The field-wise bi-interaction has three parts (section 3.3): linear terms, products of different
    groups' sums (MF, equation 6) and products within each group (FM, equation 7), whose weights are
    learned. Its vector and the MLP's go through one linear layer (equation 11).
    """

    groups_VG: Tensor

    def __init__(self, params: FLENParams, info: DataInfo) -> None:
        super().__init__()
        dim, dense = params.embedding_dim, len(info.dense)
        self.embedding = FusedEmbedding(info, dim + 1, small_normal)
        self.dense = nn.Parameter(torch.randn(dense, dim + 1) * 0.01) if dense else None
        names = [*(f.name for f in info.fields), *(s.name for s in info.sequences), *info.dense]
        groups = group_of(names, params.groups)
        self.register_buffer("groups_VG", nn.functional.one_hot(groups).float(), persistent=False)
        count = self.groups_VG.shape[1]
        self.interaction = FieldWiseBiInteraction(count, params.dropout)
        self.mlp = MLP(len(names) * dim, params.mlp, dropout=params.dropout)
        self.head = nn.Linear(dim + 1 + params.mlp[-1], 1)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> FLEN:
        """See `rmixer.models.model.Model`."""
        return cls(cast("FLENParams", parse("flen", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        rows_BVE = self.embedding.vectors(batch)
        if self.dense is not None:
            rows_BVE = torch.cat([rows_BVE, batch.dense_BN.unsqueeze(2) * self.dense], 1)
        x_BVD = rows_BVE[..., :-1]
        linear_B1 = rows_BVE[..., -1].sum(1, keepdim=True)
        products_BD = self.interaction(x_BVD, self.groups_VG)
        deep_BH = self.mlp(x_BVD.flatten(1))
        logits_B1: Tensor = self.head(torch.cat([linear_B1, products_BD, deep_BH], 1))
        return logits_B1.squeeze(1)


class FieldWiseBiInteraction(nn.Module):
    """MF between groups and FM within them, ``[B, V, D]`` to ``[B, D]`` (equations 6 and 7)."""

    left: Tensor
    right: Tensor

    def __init__(self, groups: int, dropout: float) -> None:
        super().__init__()
        pairs = torch.tensor([*itertools.combinations(range(groups), 2)], dtype=torch.int64)
        pairs = pairs.view(-1, 2)
        self.register_buffer("left", pairs[:, 0], persistent=False)
        self.register_buffer("right", pairs[:, 1], persistent=False)
        self.between = nn.Parameter(torch.ones(len(pairs)))
        self.within = nn.Parameter(torch.ones(groups))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BVD: Tensor, groups_VG: Tensor) -> Tensor:
        """See the class."""
        sums_BGD = groups_VG.T @ x_BVD
        squares_BGD = groups_VG.T @ x_BVD.square()
        within_BD = torch.einsum("bgd,g->bd", sums_BGD.square() - squares_BGD, 0.5 * self.within)
        products_BPD = sums_BGD[:, self.left] * sums_BGD[:, self.right]
        between_BD = torch.einsum("bpd,p->bd", products_BPD, self.between)
        found: Tensor = self.dropout(within_BD + between_BD)
        return found


def group_of(names: Sequence[str], groups: Sequence[Sequence[str]] | None) -> Tensor:
    """The group of each column, ``[V]``: as given, of Avazu's columns, else thirds in their order.

    Columns that no group names are one more group.

    Raises:
        UsageError: a group names a column that the data do not have, or one that has a group.
    """
    if groups is None and set(names) >= {name for group in AVAZU_GROUPS for name in group}:
        groups = AVAZU_GROUPS
    if groups is None:
        return torch.arange(len(names)) * min(3, len(names)) // max(1, len(names))
    found = dict[str, int]()
    for number, group in enumerate(groups):
        for name in group:
            if name not in names:
                raise UsageError(f"params.groups: {unknown_name('column', name, names)}")
            if found.setdefault(name, number) != number:
                raise UsageError(f"params.groups: {name!r} is in two groups")
    return torch.tensor([found.get(name, len(groups)) for name in names], dtype=torch.int64)
