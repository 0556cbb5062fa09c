"""A finished data set, mapped read-only: every job on the machine shares one copy in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rmixer.data.batch import Batch, Lists
from rmixer.data.cache import read_manifest
from rmixer.data.columns import open_column
from rmixer.data.info import DataInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Up to so many training rows are shuffled as a whole; above, in groups of blocks.
FULL_SHUFFLE_ROWS = 1 << 24
_BLOCK_ROWS = 1 << 14
_GROUP_BLOCKS = 1 << 8


class Dataset:
    """Columns of a data set in the cache.

    Args:
        folder: as `rmixer.data.cache.prepare` returned it.

    Attributes:
        info: names and sizes.
        train_rows, valid_rows: row numbers of the two parts, ascending.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.info = info = DataInfo.from_dict(read_manifest(folder)["info"])
        width = 1 + len(info.dense) + len(info.fields)
        self._rows = open_column(folder, "rows.i4", (info.rows, width))
        self._sequences = {
            s.name: (
                open_column(folder, f"{s.name}.values.i4", (-1,)),
                open_column(folder, f"{s.name}.offsets.i8", (info.rows + 1,)),
            )
            for s in info.sequences
        }
        kind = "i4" if (folder / "train.i4").exists() else "i8"
        self.train_rows = open_column(folder, f"train.{kind}", (info.train_rows,))
        self.valid_rows = open_column(folder, f"valid.{kind}", (info.valid_rows,))

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, in this order."""
        taken = np.take(self._rows, rows, axis=0, mode="clip")
        first = 1 + len(self.info.dense)
        numbers = taken[:, :first].view(np.float32)
        return Batch(
            dense_BN=_tensor(numbers[:, 1:], torch.float32),
            sparse_BF=_tensor(taken[:, first:], torch.int32),
            label_B=_tensor(numbers[:, 0], torch.float32),
            sequences={name: lists(*columns, rows) for name, columns in self._sequences.items()},
        )

    def list_ids(self, rows: NDArray[np.int64]) -> int:
        """How many ids the lists of the rows with these numbers have together."""
        return sum(
            int((offsets[rows + 1] - offsets[rows]).sum())
            for _, offsets in self._sequences.values()
        )

    def labels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The labels of the rows with these numbers."""
        return np.asarray(self._rows[rows, 0]).view(np.float32).astype(np.uint8)


def shuffled(
    rows: NDArray[np.int64], batch_size: int, seed: int, epoch: int
) -> Iterator[NDArray[np.int64]]:
    """Row numbers of successive batches, in an order that depends on seed and epoch alone.

    Up to `FULL_SHUFFLE_ROWS` rows the order is a full permutation. Above, blocks of neighbouring
    rows are permuted, and then the rows within each group of 256 blocks, so that the memory needed
    does not grow with the data. The last batch may be smaller.
    """
    generator = np.random.default_rng([seed, epoch])
    left = np.empty(0, np.int64)
    for group in _groups(rows, generator):
        order = np.concatenate([left, group]) if len(left) else group
        whole = len(order) // batch_size * batch_size
        for start in range(0, whole, batch_size):
            yield order[start : start + batch_size]
        left = order[whole:]
    if len(left):
        yield left


def in_order(rows: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Row numbers of successive batches, in the order of the rows."""
    for start in range(0, len(rows), batch_size):
        yield np.asarray(rows[start : start + batch_size])


def lists(values: NDArray[np.int32], offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> Lists:
    """The lists of some rows."""
    starts = np.asarray(offsets[rows])
    lengths = np.asarray(offsets[rows + 1]) - starts
    # Where each list begins in the result, taken from where it begins in the column.
    shift = starts - (np.cumsum(lengths) - lengths)
    at = np.repeat(shift, lengths) + np.arange(int(lengths.sum()))
    return Lists.of(np.asarray(values[at]), lengths)


def _tensor(values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    # In memory that torch aligned: results must not depend on where numpy happened to put it.
    out = torch.empty(values.shape, dtype=dtype)
    out.numpy()[...] = values
    return out


def _groups(rows: NDArray[np.int64], generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    if len(rows) <= FULL_SHUFFLE_ROWS:
        yield generator.permutation(rows)
        return
    starts = generator.permutation(np.arange(0, len(rows), _BLOCK_ROWS))
    for first in range(0, len(starts), _GROUP_BLOCKS):
        blocks = starts[first : first + _GROUP_BLOCKS]
        group = np.concatenate([rows[start : start + _BLOCK_ROWS] for start in blocks])
        yield generator.permutation(group)
