"""What was measured of jobs that share a device: whether it pays, and who is kept apart.

A prediction does not refuse a harmful company reliably, a measurement does: where the rates of a
company sum to less than one job alone would have, its jobs are better served one by one. Such a
company, as the device's kind and the kinds of its jobs, is vetoed; between the two limits it stays
as it was, so that noise does not change its mind.

Rates are relative to the job alone. What a step takes alone is believed at first, and known once
the job, or another of its kind, was seen alone; then what was measured before is judged anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

#: A company whose rates sum to less than this is vetoed; from the second on it no longer is.
HARMS, PAYS = 0.98, 1.02
#: Companies kept; those that were not measured for longest go first.
MOST_COMPANIES = 4_000
#: Weight of the newest measurement of a step alone.
_NEWEST = 0.5

#: The kind of a device, then the kinds of the jobs, sorted.
Key = tuple[str, ...]


def company_key(device_kind: str, kinds: Iterable[str]) -> Key:
    """By what a company is remembered."""
    return (device_kind, *sorted(kinds))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a job went.

    Attributes:
        alone: what its time per step alone is kept under.
        steps_per_second: as measured.
        step_seconds: of a step alone, as it was believed then.
    """

    alone: str
    steps_per_second: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Companies:
    """All companies that were measured. A value: what is measured makes another one.

    Attributes:
        alone: seconds per step alone, as measured.
        paces: of each company, as they were measured last.
        vetoed: the companies that are kept apart.
    """

    alone: Mapping[str, float] = field(default_factory=dict)
    paces: Mapping[Key, tuple[Pace, ...]] = field(default_factory=dict)
    vetoed: frozenset[Key] = frozenset()

    def sum_of_rates(self, key: Key) -> float | None:
        """What the rates of a company sum to; None where it was not measured."""
        paces = self.paces.get(key)
        if paces is None:
            return None
        return sum(p.steps_per_second * self.alone.get(p.alone, p.step_seconds) for p in paces)

    def with_company(self, key: Key, paces: Sequence[Pace]) -> Companies:
        """What is known after a company of at least two was measured, every one of its jobs."""
        kept = {k: p for k, p in self.paces.items() if k != key}
        for old in list(kept)[: max(0, len(kept) + 1 - MOST_COMPANIES)]:
            del kept[old]
        kept[key] = tuple(paces)
        return _judged(replace(self, paces=MappingProxyType(kept)), [key])

    def with_alone(self, alone: str, step_seconds: float) -> Companies:
        """What is known after a job was seen alone."""
        before = self.alone.get(alone, step_seconds)
        newest = _NEWEST * step_seconds + (1 - _NEWEST) * before
        known = replace(self, alone=MappingProxyType({**self.alone, alone: newest}))
        touched = [k for k, paces in self.paces.items() if any(p.alone == alone for p in paces)]
        return _judged(known, touched)


def _judged(companies: Companies, keys: Iterable[Key]) -> Companies:
    vetoed = {key for key in companies.vetoed if key in companies.paces}
    for key in keys:
        total = companies.sum_of_rates(key)
        assert total is not None, "only what was measured is judged"
        if total < HARMS:
            vetoed.add(key)
        elif total > PAYS:
            vetoed.discard(key)
    return replace(companies, vetoed=frozenset(vetoed))
