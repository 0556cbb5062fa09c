"""How far Adam still moves a row that no batch touches any more, in closed form.

In a step without a gradient Adam's moments decay, ``m <- beta1 m``, ``v <- beta2 v``, and the
weight moves by ``lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + eps)`` (Kingma and Ba,
arXiv:1412.6980, algorithm 1). So a row left alone after step n with moments m and v, ``s =
sqrt(v)``, moves in all steps to come by

    F(n, m, v) = m sum over j >= 1 of a[j] / (s + eps b[j])
    a[j] = lr beta1**j b[j] / (1 - beta1**(n + j)),  b[j] = sqrt(1 - beta2**(n + j)) / beta2**(j/2)

and in k steps by F(n, m, v) - F(n + k, beta1**k m, beta2**k v). The sum over hundreds of steps is
one smooth function of s, the same for all elements of step n: with the typical b[j], c, and
``u = s / (s + eps c)`` in [0, 1],

    F(n, m, v) = m / (s + eps c) * H(u),   H(u) = sum of a[j] / (u + (1 - u) b[j] / c)

whose poles lie well outside [0, 1], so that 8 to 30 Chebyshev coefficients give H to 1e-13
(Trefethen, *Approximation Theory and Approximation Practice*, 2013, theorem 8.2).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Chebyshev coefficients that are kept; the first step of the usual settings needs 30 of them.
DEGREE = 40
#: Coefficients below this share of the largest are left out.
TOLERANCE = 1e-14
#: What a sum leaves out, relative.
_NEGLIGIBLE = 1e-15
#: Longer sums than this are not worth it.
_MOST_TERMS = 8192
#: Points beyond the degree at which a function is looked at.
_SPARE = 4
#: Steps whose coefficients are computed at once.
_BLOCK = 32


def can_replay(beta1: float, beta2: float, eps: float) -> bool:
    """Whether these settings of Adam have a table: all usual ones do."""
    if not (0 < beta1 < math.sqrt(beta2) and beta2 <= 0.9999 and eps > 0):  # noqa: PLR2004
        return False
    return _terms(beta1, beta2) <= _MOST_TERMS and _fits(beta1, beta2, eps)


class ReplayTable:
    """The coefficients of H after each step.

    Args:
        lr, beta1, beta2, eps: of Adam; see `can_replay`.

    Attributes:
        coefficients: ``[N, DEGREE]`` float64, row n for a row last touched in step n.
        scales: ``[N]``, ``eps c`` of each.
        degrees: ``[N]`` int32, how many coefficients count; no more for a later step.
        last: the step from which on nothing changes: later ones use its row.
    """

    def __init__(self, lr: float, beta1: float, beta2: float, eps: float) -> None:
        self.settings = (lr, beta1, beta2, eps)
        self.coefficients: NDArray[np.float64] = np.empty((0, DEGREE))
        self.scales: NDArray[np.float64] = np.empty(0)
        self.degrees: NDArray[np.int32] = np.empty(0, np.int32)
        self.last = math.ceil(math.log(1e-13) / math.log(beta2))
        self._nodes = DEGREE

    def reach(self, step: int) -> int:
        """Make sure that there is a row for a step; the number of that row."""
        step = min(step, self.last)
        have = len(self.scales)
        if step >= have:  # some more at once, so that growing costs little
            stop = max(step + 1, have * 5 // 4)
            self._extend(have, -(-stop // _BLOCK) * _BLOCK)
        return step

    def _extend(self, start: int, stop: int) -> None:
        coefficients, scales, degrees = [self.coefficients], [self.scales], [self.degrees]
        for at in range(start, stop, _BLOCK):
            steps = np.arange(at, at + _BLOCK)  # the same blocks, however it grows: the same bits
            found, scale, degree = _fit(steps, *self.settings, nodes=self._nodes)
            self._nodes = min(DEGREE, int(degree.max()) + _SPARE)  # it falls from step to step
            coefficients.append(np.pad(found, ((0, 0), (0, DEGREE - found.shape[1]))))
            scales.append(scale)
            degrees.append(degree)
        self.coefficients = np.concatenate(coefficients)
        self.scales, self.degrees = np.concatenate(scales), np.concatenate(degrees)


def _fit(
    steps: NDArray[np.int64],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    *,
    nodes: int = DEGREE,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
    """Coefficients ``[N, nodes]``, scales and degrees for some steps."""
    j = np.arange(1, _terms(beta1, beta2) + 1)
    t = steps[:, None] + j
    b = np.sqrt(-np.expm1(t * math.log(beta2))) * beta2 ** (-j / 2)
    a = lr * beta1**j * b / -np.expm1(t * math.log(beta1))
    counts = a > 1e-13 * a.sum(1, keepdims=True)
    low = np.where(counts, b, np.inf).min(1)
    c = np.sqrt(low * np.where(counts, b, 0).max(1))
    angles = np.pi * (np.arange(nodes) + 0.5) / nodes
    u = (np.cos(angles) + 1) / 2
    ratio = (b / c[:, None])[:, None, :]
    values = (a[:, None, :] / (u[:, None] + (1 - u)[:, None] * ratio)).sum(2)
    basis = np.cos(np.arange(nodes)[:, None] * angles) * (2 / nodes)
    basis[0] /= 2
    found = values @ basis.T
    weighty = np.abs(found) >= TOLERANCE * np.abs(found).max(1, keepdims=True)
    degrees = nodes - np.argmax(weighty[:, ::-1], axis=1)
    return found, eps * c, degrees.astype(np.int32)


def _terms(beta1: float, beta2: float) -> int:
    """How many steps a sum needs until the rest is negligible."""
    ratio = beta1 / math.sqrt(beta2)
    return math.ceil(math.log(_NEGLIGIBLE * (1 - ratio)) / math.log(ratio))


def _fits(beta1: float, beta2: float, eps: float) -> bool:
    """Whether the first step, which needs most coefficients, gets along with those kept."""
    _, _, degrees = _fit(np.array([0, 1]), 1.0, beta1, beta2, eps)
    return bool((degrees < DEGREE).all())
