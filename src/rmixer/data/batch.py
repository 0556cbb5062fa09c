"""The one typed batch that every model gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.info import DataInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """A list of ids per row, without padding.

    Attributes:
        values_L: int32 or int64 ids of all rows, one after the other.
        owner_L: int64, the row of each id, ascending.
        length_B: int64, how many ids each row has; may be 0.
    """

    values_L: Tensor
    owner_L: Tensor
    length_B: Tensor

    @classmethod
    def of(cls, values: NDArray[np.int32], lengths: NDArray[np.int64]) -> Lists:
        """From the ids of all rows and the length of each row's list."""
        return cls(
            values_L=torch.from_numpy(values),
            owner_L=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
            length_B=torch.from_numpy(lengths),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows, ready for a model. Ids are local to their table and stay integers.

    Attributes:
        dense_BN: float32, transformed.
        sparse_BF: int32 or int64 ids, one per field.
        label_B: float32, 0 or 1.
        sequences: per sequence column the lists of the rows.
    """

    dense_BN: Tensor
    sparse_BF: Tensor
    label_B: Tensor
    sequences: Mapping[str, Lists] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.label_B)

    def check(self, info: DataInfo) -> Batch:
        """The batch itself, after its shapes, types and ids were held against the data's shape.

        Raises:
            ValueError: naming the column, what it has, and what it must have.
        """
        size = len(self)
        _check_shape("dense_BN", self.dense_BN, (size, len(info.dense)), floating=True)
        _check_shape("sparse_BF", self.sparse_BF, (size, len(info.fields)), floating=False)
        _check_shape("label_B", self.label_B, (size,), floating=True)
        for i, column in enumerate(info.fields):
            _check_ids(column.name, self.sparse_BF[:, i], info.tables[column.table].rows)
        for sequence in info.sequences:
            if sequence.name not in self.sequences:
                raise ValueError(f"sequence {sequence.name!r} is missing from the batch")
            lists = self.sequences[sequence.name]
            total = (int(lists.length_B.sum()),)
            _check_shape(sequence.name, lists.length_B, (size,), floating=False)
            _check_shape(sequence.name, lists.values_L, total, floating=False)
            _check_shape(sequence.name, lists.owner_L, total, floating=False)
            _check_ids(sequence.name, lists.values_L, info.tables[sequence.table].rows)
        return self


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...], *, floating: bool) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be {shape}")
    allowed = (torch.float32, torch.float64) if floating else (torch.int32, torch.int64)
    if value.dtype not in allowed:
        raise ValueError(f"{name} is {value.dtype}; it must be one of {allowed}")


def _check_ids(name: str, ids: Tensor, rows: int) -> None:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        low, high = int(ids.min()), int(ids.max())
        raise ValueError(f"{name} has ids from {low} to {high}; its table has rows 0 to {rows - 1}")
