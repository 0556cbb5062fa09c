"""Softmax over the items of a table, against a sample of them where there are many."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from rmixer.data.info import RESERVED_IDS, DataInfo, FieldInfo
from rmixer.models.layers import FusedEmbedding


def table_of(info: DataInfo, sequence: str) -> DataInfo:
    """The shape of data with the table of one sequence and nothing else."""
    index = next(s.table for s in info.sequences if s.name == sequence)
    table = info.tables[index]
    return replace(
        info, dense=(), fields=(FieldInfo(table.name, 0),), sequences=(), tables=(table,)
    )


def candidates(rows: int, count: int) -> Tensor:
    """Different item ids of a table: all of them if there are no more than ``count``, else drawn.

    The ids of the missing and the unknown are no items.
    """
    if rows - RESERVED_IDS <= count:
        return torch.arange(RESERVED_IDS, rows)
    drawn: Tensor = torch.unique(torch.randint(RESERVED_IDS, rows, (count,)))
    return drawn


def sampled_softmax(table: FusedEmbedding, queries_ND: Tensor, ids_N: Tensor, count: int) -> Tensor:
    """The mean cross entropy of finding each query's item among candidates that all share.

    Drawn uniformly, the correction for how likely a candidate is is the same for all and drops out
    (Jean et al., arXiv:1412.2007, section 3). With all items as candidates it is the softmax.

    Args:
        table: of the items; a row may have a bias as one more number than the queries are wide.
        queries_ND: one per item that is looked for.
        ids_N: these items.
        count: of candidates.
    """
    drawn_C = candidates(len(table.weight), count)
    width = queries_ND.shape[1]
    found_CE = table.lookup(torch.cat([ids_N.long(), drawn_C]))
    right_NE, drawn_CE = found_CE.tensor_split((len(ids_N),))
    right_N1 = (queries_ND * right_NE[:, :width]).sum(1, keepdim=True)
    wrong_NC = queries_ND @ drawn_CE[:, :width].T
    if found_CE.shape[1] > width:
        right_N1, wrong_NC = right_N1 + right_NE[:, width:], wrong_NC + drawn_CE[:, width]
    wrong_NC = wrong_NC.masked_fill(ids_N.unsqueeze(1) == drawn_C, float("-inf"))
    scores_NC = torch.cat([right_N1, wrong_NC], 1)
    return F.cross_entropy(scores_NC, torch.zeros(len(ids_N), dtype=torch.int64))
