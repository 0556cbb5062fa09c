"""AUC and logloss, exact, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def auc(label_B: ArrayLike, score_B: ArrayLike) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs that are ranked rightly.

    A pair with equal scores counts one half. NaN where one of the classes is absent.
    """
    positive = np.asarray(label_B) > 0
    score = np.asarray(score_B, np.float64)
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    # Twice the mid-rank (from 1) of each distinct score is a whole number, so the sum is exact.
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    above = np.cumsum(counts)
    doubled: NDArray[np.int64] = 2 * above - counts + 1
    total = int(doubled[inverse[positive]].sum())
    return (total - positives * (positives + 1)) / (2 * positives * negatives)


def logloss(label_B: ArrayLike, logit_B: ArrayLike) -> float:
    """Mean binary cross-entropy of log-odds, in nats."""
    logit = np.asarray(logit_B, np.float64)
    label = np.asarray(label_B, np.float64)
    if not len(logit):
        return math.nan
    losses = np.maximum(logit, 0) - logit * label + np.log1p(np.exp(-np.abs(logit)))
    return float(losses.mean())
