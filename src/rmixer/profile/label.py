"""The published words for a job, as what the largest of its demands is called."""

from __future__ import annotations

from rmixer.model import Profile

#: Below this share of the time nothing is used much; the published limit between the types.
LOW = 0.10
_WORDS = {
    "compute": "compute",
    "cores": "compute",
    "bandwidth": "memory",
    "memory_bandwidth": "memory",
    "transfer": "memory",
    "storage": "memory",
}
#: On a GPU the thread that launches kernels is busy whatever the job does.
_NOT_ON_GPUS = ("cores", "memory_bandwidth", "storage")


def label_of(profile: Profile) -> str | None:
    """``compute``, ``memory`` or ``low``; None where no demand is known.

    Cores count as the share of the job's threads that is busy.
    """
    shares = {
        name: share / max(1, profile.threads) if name == "cores" else share
        for name, share in profile.demand.items()
        if name in _WORDS and (profile.device_kind == "cpu" or name not in _NOT_ON_GPUS)
    }
    if not shares:
        return None
    largest = max(shares, key=lambda name: shares[name])
    return _WORDS[largest] if shares[largest] >= LOW else "low"
