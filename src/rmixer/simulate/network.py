"""The rates of many sets of jobs on one shared station at once, by Newton's method.

With S = sum over k of Q[k] * g[k], g = s ** gamma, each queue Q[j] is the smaller root of

    (h D / c) Q^2 - (h (1 + D A / c) + D / c) Q + D (1 + A / c) = 0,   A = S / g[j]

(h: the overhead of co-runners, c: the capacity), so that a set is one equation in S. This is the
network of `rmixer.interference` for a single station, solved by another way: what a world says and
what a policy believes do not share their code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROUNDS = 40
_TOLERANCE = 1e-10


def station_rates(
    demand: Array,
    granularity: Array,
    *,
    capacity: float = 1.0,
    gamma: float = 1.0,
    overhead: float = 0.0,
) -> Array:
    """The rate of each job of each set.

    Args:
        demand: [sets, jobs], D in [0, 1]; below 0 for a place that is empty.
        granularity: [sets, jobs], s above 0.
        capacity: c, at least 1.
        gamma: how much granularity counts, in [0, 1].
        overhead: e, what each co-runner costs.

    Returns:
        [sets, jobs] rates in (0, 1]; 1 where a place is empty.
    """
    present = demand >= 0
    d = np.where(present, demand, 0.0)
    g = granularity**gamma
    others = np.maximum(present.sum(axis=1, keepdims=True) - 1, 0)
    h = 1.0 + overhead * others
    total = (d * g).sum(axis=1, keepdims=True)  # S of jobs that do not meet
    for _ in range(_ROUNDS):
        queue, slope = _queues(d, total / g, h, capacity)
        rest = (queue * g).sum(axis=1, keepdims=True) - total
        step = rest / np.maximum(1.0 - slope.sum(axis=1, keepdims=True), 1e-9)
        total = np.maximum(total + step, 0.0)
        if np.abs(step).max(initial=0.0) < _TOLERANCE:
            break
    queue, _ = _queues(d, total / g, h, capacity)
    waiting = np.maximum(total / g - queue, 0.0)
    return np.where(present, 1.0 / (h * (1.0 + d * waiting / capacity)), 1.0)


def _queues(d: Array, a: Array, h: Array, c: float) -> tuple[Array, Array]:
    """Q at A, and how fast g * Q grows with S (which is dQ/dA, as g cancels)."""
    square = h * d / c
    middle = h * (1.0 + d * a / c) + d / c
    last = d * (1.0 + a / c)
    root = np.sqrt(np.maximum(middle**2 - 4.0 * square * last, 1e-18))
    queue = 2.0 * last / (middle + root)
    # Differentiate the equation by A.
    top = (h * d / c) * queue - d / c
    return queue, top / (2.0 * square * queue - middle)
