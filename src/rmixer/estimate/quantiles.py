"""How much room to leave above an estimate: an upper quantile of the errors of its source.

An error is measured peak over estimate. If the errors seen so far and the next one come in no
particular order (are exchangeable), then the k-th smallest of n errors, with
k = ceil((n + 1)(1 - miss)), is exceeded by the next one with probability at most ``miss``: split
conformal prediction (Vovk, Gammerman, Shafer, *Algorithmic Learning in a Random World*, 2005; Lei
et al., JASA 113, 2018, thm. 2).

With too few errors for that (k > n) the quantile lies beyond the largest, and is continued by the
errors' own spread: the largest of n is exceeded with probability 1 / (n + 1), and what lies above
it is taken as exponential with the mean excess b over the median, known from m errors, whose
predictive distribution is P(excess > t) = (1 + t / (m b)) ** -m (Pareto II; Geisser, *Predictive
Inference*, 1993, ch. 2). So t = m b (((n + 1) miss) ** (-1 / m) - 1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from statistics import median

from rmixer.errors import UsageError

#: Share of reservations that may turn out too small.
MISS = 1 / 40
#: For a source of which no error is known: what peers report as their largest (facts: 24 % under).
UNKNOWN_FACTOR = 1.3
ERRORS_FILE = "errors.json"


def upper_factor(errors: Sequence[float], miss: float = MISS) -> float:
    """What to multiply an estimate with, so that it is too small with probability ``miss`` at most.

    Args:
        errors: measured / estimated of earlier estimates of the same source.
        miss: in (0, 1).

    Raises:
        UsageError: ``miss`` is no probability, or an error is not a positive number.
    """
    if not 0 < miss < 1:
        raise UsageError(f"a probability between 0 and 1 is needed, not {miss}")
    if not all(math.isfinite(error) and error > 0 for error in errors):
        raise UsageError(f"errors must be positive numbers: {list(errors)}")
    if not errors:
        return UNKNOWN_FACTOR
    ordered = sorted(errors)
    rank = math.ceil((len(ordered) + 1) * (1 - miss))
    if rank <= len(ordered):
        return ordered[rank - 1]
    if len(ordered) == 1:
        return max(ordered[0], 1.0) * UNKNOWN_FACTOR
    middle = median(ordered)
    above = [error - middle for error in ordered if error >= middle]
    known = len(above)
    beyond = math.pow((len(ordered) + 1) * miss, -1 / known) - 1
    return ordered[-1] + sum(above) * beyond


@cache
def known_errors() -> Mapping[str, Sequence[float]]:
    """The errors that ``benchmarks/estimate.py`` measured, by source: measured / estimated."""
    document = json.loads(files("rmixer.estimate").joinpath(ERRORS_FILE).read_text("utf-8"))
    return {source: tuple(errors) for source, errors in document["errors"].items()}


def reserve(estimate: int, source: str, own: Sequence[float] = (), miss: float = MISS) -> int:
    """Bytes to reserve for an estimate.

    Args:
        estimate: bytes.
        source: what it comes from, for example ``trace``.
        own: errors that this machine has seen for this source, added to the published ones.
        miss: share of reservations that may be too small.
    """
    return math.ceil(estimate * upper_factor((*known_errors().get(source, ()), *own), miss))
