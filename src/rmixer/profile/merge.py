"""One profile of what several sources say of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmixer.model import Profile
from rmixer.store import Store

#: Fields of which "nothing" is told by a value that is false.
_FIELDS = ("step_seconds", "total_steps", "startup_seconds", "solo_seconds", "memory", "speeds")


def merged(profiles: Iterable[Profile]) -> Profile | None:
    """The surest profile, with what it lacks from the next surest; None where there is none.

    Stations that only a less sure source knows are added, with its granularity. A measured demand
    is never changed by a predicted one.
    """
    ordered = sorted(profiles, key=lambda profile: profile.confidence, reverse=True)
    if not ordered:
        return None
    best = ordered[0]
    for other in ordered[1:]:
        lacking = {name: getattr(other, name) for name in _FIELDS if not getattr(best, name)}
        best = replace(
            best,
            demand={**other.demand, **best.demand},
            granularity={**other.granularity, **best.granularity},
            **lacking,
        )
    return best


def known_profile(store: Store, signature: str, family: str, machine: str) -> Profile | None:
    """What earlier runs and `rmixer profile` have shown of a job on a machine's kind of device.

    Args:
        store: of this machine.
        signature: of the job.
        family: of the job.
        machine: see `rmixer.store.machine_key`.
    """
    seen = store.profile(signature, family, machine)
    kept = store.kept_profiles(signature, family, machine)
    return merged(kept if seen is None else (seen, *kept))
