"""Wide & Deep.

Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, arXiv:1606.07792.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo, TableInfo
from rmixer.data.split import mix
from rmixer.errors import UsageError, unknown_name
from rmixer.models.field_params import WideDeepParams
from rmixer.models.layers import MLP, FusedEmbedding, small_normal
from rmixer.models.params import parse


class WideDeep(nn.Module):
    """A linear model of all columns and crossed ones, and an MLP, added (equation 3).

    Each row of the table is an embedding for the deep part and, as its last number, the weight of
    the wide part, so one lookup serves both. A cross of fields has a weight for each combination of
    their ids (equation 1), by a hash into ``cross_buckets`` rows. The paper trains the wide part
    with FTRL and the deep one with AdaGrad; here a job's optimizer trains both.
    """

    def __init__(self, params: WideDeepParams, info: DataInfo) -> None:
        super().__init__()
        dim, dense = params.embedding_dim, len(info.dense)
        self.embedding = FusedEmbedding(info, dim + 1, small_normal)
        self.crosses = Crosses(params, info) if params.crosses else None
        self.wide = nn.Linear(dense, 1, bias=False) if dense else None
        width = (len(info.fields) + len(info.sequences)) * dim + dense
        self.deep = MLP(width, (*params.mlp, 1), last_linear=True, dropout=params.dropout)

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> WideDeep:
        """See `rmixer.models.model.Model`."""
        return cls(cast("WideDeepParams", parse("widedeep", params)), info)

    def forward(self, batch: Batch) -> Tensor:
        """Log-odds ``[B]``."""
        rows_BVE = self.embedding.vectors(batch)
        wide_B: Tensor = rows_BVE[..., -1].sum(1)
        if self.wide is not None:
            wide_B = wide_B + self.wide(batch.dense_BN).squeeze(1)
        if self.crosses is not None:
            wide_B = wide_B + self.crosses(batch)
        deep_B1: Tensor = self.deep(torch.cat([rows_BVE[..., :-1].flatten(1), batch.dense_BN], 1))
        return wide_B + deep_B1.squeeze(1)


class Crosses(nn.Module):
    """The sum of the weights of crossed fields, ``[B]``.

    Raises:
        UsageError: a cross names a field that the data do not have.
    """

    def __init__(self, params: WideDeepParams, info: DataInfo) -> None:
        super().__init__()
        names = [field.name for field in info.fields]
        for cross in params.crosses:
            for name in cross:
                if name not in names:
                    raise UsageError(f"params.crosses: {unknown_name('field', name, names)}")
        self.columns = [[names.index(name) for name in cross] for cross in params.crosses]
        buckets = [TableInfo(" x ".join(c), params.cross_buckets) for c in params.crosses]
        crossed = DataInfo.from_sizes([table.rows for table in buckets], 0)
        self.embedding = FusedEmbedding(crossed, 1, small_normal)
        self.buckets = params.cross_buckets

    def forward(self, batch: Batch) -> Tensor:
        """See the class."""
        ids_BF = batch.sparse_BF.numpy().astype("uint64")
        found = []
        for columns in self.columns:
            key_B = ids_BF[:, columns[0]]
            for column in columns[1:]:
                key_B = mix(key_B) ^ ids_BF[:, column]
            found.append(torch.from_numpy((mix(key_B) % self.buckets).astype("int64")))
        rows_BC = torch.stack(found, 1) + self.embedding.field_offset
        return self.embedding.lookup(rows_BC.flatten()).view(rows_BC.shape).sum(1)
