"""How fast jobs run side by side: the network, and its numbers fitted to measured pairs."""

from rmixer.interference.fit import (
    Fit,
    Pairs,
    Sized,
    fit_pairs,
    from_siblings,
    one_gpu,
    relative_error,
)
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

__all__ = [
    "UNKNOWN",
    "Array",
    "Fit",
    "Pairs",
    "Sharing",
    "Sized",
    "Station",
    "busiest_station",
    "fit_pairs",
    "from_siblings",
    "host_sharing",
    "one_gpu",
    "predict_rates",
    "predict_with_each",
    "relative_error",
    "solve",
]
