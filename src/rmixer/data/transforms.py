"""Dense columns: fitted on the training rows, applied the same way when a model is used later."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rmixer.data.format import NO_NUMBER
from rmixer.data.info import MISSING_ID, RESERVED_IDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.schema import Transform

#: Quantiles and moments are taken from at most so many training rows, evenly spread.
SAMPLE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class DenseTransform:
    """What was fitted.

    Attributes:
        kind: ``standard``, ``log1p`` or ``none``.
        mean_N, scale_N: of ``standard``; else 0 and 1.
        edges: per column the inner edges of its bins, ascending; empty without bins.
    """

    kind: str
    mean_N: NDArray[np.float64]
    scale_N: NDArray[np.float64]
    edges: tuple[NDArray[np.float64], ...] = ()

    @classmethod
    def fit(cls, transform: Transform, sample_BN: NDArray[np.float64]) -> DenseTransform:
        """Moments and quantiles of some raw training rows; NaN is missing."""
        width = sample_BN.shape[1]
        mean, scale = np.zeros(width), np.ones(width)
        edges: list[NDArray[np.float64]] = []
        for i in range(width if cls.is_fitted(transform) else 0):
            known = sample_BN[:, i][~np.isnan(sample_BN[:, i])]
            if transform.dense == "standard" and len(known):
                mean[i], scale[i] = known.mean(), known.std() or 1.0
            if transform.bins:
                inner = np.linspace(0, 1, transform.bins + 1)[1:-1]
                edges.append(np.unique(np.quantile(known, inner)) if len(known) else np.empty(0))
        return cls(transform.dense, mean, scale, tuple(edges))

    @staticmethod
    def is_fitted(transform: Transform) -> bool:
        """Whether anything of it depends on the rows."""
        return transform.dense == "standard" or transform.bins > 0

    def apply(self, raw_BN: NDArray[np.float64]) -> NDArray[np.float32]:
        """The dense columns as a model sees them; a missing number is 0."""
        if self.kind == "log1p":
            values = np.log1p(np.maximum(raw_BN, 0.0))
        elif self.kind == "standard":
            values = (raw_BN - self.mean_N) / self.scale_N
        else:
            values = raw_BN
        return np.nan_to_num(values, nan=0.0).astype(np.float32)

    def apply_whole(self, raw_NB: NDArray[np.int32]) -> NDArray[np.float32]:
        """The same for whole numbers, of which `NO_NUMBER` is missing: columns to columns."""
        if self.kind != "log1p":
            return np.ascontiguousarray(self.apply(numbers_of(raw_NB)).T)
        known = _log1p_of_small()
        values = known[np.clip(raw_NB, 0, len(known) - 1)]  # missing ones and negative ones: 0
        large = raw_NB >= len(known)
        if large.any():
            values[large] = self.apply(raw_NB[large].astype(np.float64))
        return values

    def bins(self, raw_BN: NDArray[np.float64]) -> NDArray[np.int32]:
        """The local id of each value's bin: 0 missing, from 2 on the bins."""
        ids = np.empty((len(raw_BN), len(self.edges)), np.int32)
        for i, edges in enumerate(self.edges):
            column = raw_BN[:, i]
            found = np.searchsorted(edges, column, side="right") + RESERVED_IDS
            ids[:, i] = np.where(np.isnan(column), MISSING_ID, found)
        return ids

    def rows(self, column: int) -> int:
        """Rows of the embedding table of a column's bins."""
        return len(self.edges[column]) + 1 + RESERVED_IDS

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The fitted numbers, for a ``.npz`` file; `from_arrays` reads them."""
        named = {f"edges.{i}": edges for i, edges in enumerate(self.edges)}
        return {"mean": self.mean_N, "scale": self.scale_N, **named}

    @classmethod
    def from_arrays(cls, kind: str, arrays: dict[str, NDArray[np.float64]]) -> DenseTransform:
        """The inverse of `arrays`."""
        count = sum(name.startswith("edges.") for name in arrays)
        edges = tuple(arrays[f"edges.{i}"] for i in range(count))
        return cls(kind, arrays["mean"], arrays["scale"], edges)


def numbers_of(raw_NB: NDArray[np.int32]) -> NDArray[np.float64]:
    """Whole numbers, of which `NO_NUMBER` is missing, as raw numbers row by row, ``[B, N]``."""
    values = np.ascontiguousarray(raw_NB.T, np.float64)
    values[values == NO_NUMBER] = np.nan
    return values


@lru_cache(maxsize=1)
def _log1p_of_small() -> NDArray[np.float32]:
    """What ``log1p`` makes of 0, 1, 2 ..., as many as stay in a core's cache."""
    none = np.empty(0)
    return DenseTransform("log1p", none, none).apply(np.arange(1 << 16, dtype=np.float64))
