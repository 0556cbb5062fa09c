"""The held-out part: fixed by the row's number, so it is the same for every job on the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.schema import Valid


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A well-mixed 64-bit hash of each number (splitmix64's finalizer)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def held_out(
    valid: Valid, start: int, stop: int, rows: int, together: int = 1
) -> NDArray[np.bool_]:
    """Which of the rows ``start`` to ``stop`` (of ``rows``, counted from 0) are held out.

    So many consecutive rows are always in the same part: those that a format makes of one user, of
    which one would tell the labels of the others.
    """
    numbers = np.arange(start, stop, dtype=np.uint64) // np.uint64(together)
    if valid.by == "tail":
        return numbers >= np.uint64((rows - int(rows * valid.fraction)) // together)
    seed = mix(np.array([valid.seed], np.uint64))[0]
    # The upper 53 bits as a number in [0, 1): exact in float64.
    share = (mix(numbers ^ seed) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return share < valid.fraction
