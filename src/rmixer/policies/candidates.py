"""The rates of many sets of jobs at once, each set on a device: arrays, and a compiled core.

The equation is that of `rmixer.policies.outlook.rates_of`: with S the sum of all queues, each times
its granularity, a device is one equation in S, solved by Newton's method. `sums_and_least` is plain
numpy; `compiled` gives the same by numba, where it is installed, several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Demands and granularities, [sets, jobs] each, and the overhead; the answer of `sums_and_least`.
SumsAndLeast = Callable[[Array, Array, float], tuple[Array, Array]]

_STEPS = 40
_TOLERANCE = 1e-6
_LEAST = 1e-18
#: Above this slope the plain iteration is taken.
_FLAT = -0.1


def sums_and_least(demand: Array, grain: Array, overhead: float) -> tuple[Array, Array]:
    """The sum of rates and the least rate of each set.

    Args:
        demand: [sets, jobs]; 0 for a place that is empty.
        grain: [sets, jobs] granularities, above 0.
        overhead: what each co-runner costs.

    Returns:
        [sets] sums and [sets] least rates; 0 and 1 of an empty set.
    """
    d, s = demand, grain
    present = d > 0.0
    others = np.maximum(present.sum(axis=1) - 1, 0)
    total = (d * s).sum(axis=1)
    for _ in range(_STEPS):
        queue, root, _ = _queues(d, total[:, None] / s)
        rest = (queue * s).sum(axis=1) - total
        slope = ((d - d * queue) / root).sum(axis=1) - 1.0
        step = np.where(slope < _FLAT, rest / np.minimum(slope, _FLAT), -rest)
        total = total - step
        if not np.any(np.abs(step) > _TOLERANCE * total):
            break
    queue, _, a = _queues(d, total[:, None] / s)
    waiting = np.where(others[:, None] > 0, np.maximum(a - queue, 0.0), 0.0)
    rates = 1.0 / ((1.0 + d * waiting) * (1.0 + overhead * others[:, None]))
    return np.where(present, rates, 0.0).sum(axis=1), np.where(present, rates, 1.0).min(axis=1)


def _queues(d: Array, a: Array) -> tuple[Array, Array, Array]:
    b = 1.0 + d * a + d
    root = np.sqrt(np.maximum(b * b - 4.0 * d * d * (1.0 + a), _LEAST))
    return 2.0 * d * (1.0 + a) / (b + root), root, a


@cache
def compiled() -> SumsAndLeast | None:
    """The same function, compiled; None where numba is not installed."""
    try:
        import numba  # noqa: PLC0415  # slow to import, and optional
    except ImportError:
        return None
    found: Any = numba.njit(_set_by_set, cache=True)
    return found  # type: ignore[no-any-return]


def _set_by_set(
    demand: Array, grain: Array, overhead: float
) -> tuple[Array, Array]:  # pragma: no cover  # runs compiled; tested equal
    """`sums_and_least` as loops over numbers, for a compiler."""
    sets, most = demand.shape
    sums, least = np.zeros(sets), np.ones(sets)
    for row in range(sets):
        total, others = 0.0, -1
        for j in range(most):
            total += demand[row, j] * grain[row, j]
            others += demand[row, j] > 0.0
        for _ in range(_STEPS):
            rest, slope = -total, -1.0
            for j in range(most):
                d, s = demand[row, j], grain[row, j]
                if d > 0.0:
                    b = 1.0 + d * total / s + d
                    root = np.sqrt(max(b * b - 4.0 * d * d * (1.0 + total / s), _LEAST))
                    queue = 2.0 * d * (1.0 + total / s) / (b + root)
                    rest += queue * s
                    slope += (d - d * queue) / root
            step = rest / slope if slope < _FLAT else -rest
            total -= step
            if abs(step) <= _TOLERANCE * total:
                break
        for j in range(most):
            d, s = demand[row, j], grain[row, j]
            if d > 0.0:
                rate = 1.0
                if others > 0:
                    a = total / s
                    b = 1.0 + d * a + d
                    root = np.sqrt(max(b * b - 4.0 * d * d * (1.0 + a), _LEAST))
                    waiting = max(0.0, a - 2.0 * d * (1.0 + a) / (b + root))
                    rate = 1.0 / ((1.0 + d * waiting) * (1.0 + overhead * others))
                sums[row] += rate
                least[row] = min(least[row], rate)
    return sums, least
