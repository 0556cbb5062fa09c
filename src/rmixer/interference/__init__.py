"""How fast jobs run side by side: the network, and how its numbers are learned.

network      the fixed point, for many sets at once
scalar       the same for one set at one station, by Newton's method
fit          demands and granularities from measured pairs
siblings     a job that is in no pair
modes        what a sharing mode costs, from pairs of jobs whose profiles are known
correction   what live rates teach of the network's error
regime       a job's rate between two changes, and what changed
companies    what was measured of jobs that share a device, and who is kept apart
"""

from rmixer.interference.companies import Companies, Pace, company_key
from rmixer.interference.correction import Correction, Effect, Errors
from rmixer.interference.fit import (
    Fit,
    Pairs,
    fit_pairs,
    one_gpu,
    relative_error,
)
from rmixer.interference.modes import Mode, fit_mode
from rmixer.interference.network import (
    UNKNOWN,
    Array,
    Sharing,
    Station,
    busiest_station,
    host_sharing,
    predict_rates,
    predict_with_each,
    solve,
)
from rmixer.interference.regime import Change, Follower, Sight, Stretch
from rmixer.interference.scalar import solve_one
from rmixer.interference.siblings import Sized, from_siblings

__all__ = [
    "UNKNOWN",
    "Array",
    "Change",
    "Companies",
    "Correction",
    "Effect",
    "Errors",
    "Fit",
    "Follower",
    "Mode",
    "Pace",
    "Pairs",
    "Sharing",
    "Sight",
    "Sized",
    "Station",
    "Stretch",
    "busiest_station",
    "company_key",
    "fit_mode",
    "fit_pairs",
    "from_siblings",
    "host_sharing",
    "one_gpu",
    "predict_rates",
    "predict_with_each",
    "relative_error",
    "solve",
    "solve_one",
]
