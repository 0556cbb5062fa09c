"""What live rates teach: the error of the network, per job, per pair and per set.

The logarithm of measured over predicted is taken as a sum of effects: one of the job (it suffers
more or less than its profile says), one of each neighbour on it, and one of the very set it is in.
Each is believed with a variance, and a measurement is shared out among them by a Kalman filter that
keeps no covariances. So a set that was measured is known almost at once, its pairs help in larger
sets, and the job's own effect in sets that were never seen, by as much as the variances allow.

`Correction` is a value: what was measured makes another one. It keeps its own errors: those of the
network alone and, for the same measurements, of what it would have said just before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from rmixer.errors import UsageError
from rmixer.interference.network import Array

#: Standard deviations, in logarithms, before anything was measured: of a job's effect, of a
#: neighbour's on it, of a set's on it; and of a measurement.
JOB, NEIGHBOUR, SET, NOISE = 0.06, 0.06, 0.04, 0.04
#: Share of the first variance that an effect wins back with each measurement: old ones fade.
FADE = 0.02
#: A measurement further off than this counts as being this far off: a factor of 2.
FURTHEST = math.log(2.0)
#: Effects kept; the ones that were not measured for longest go first.
MOST_EFFECTS = 20_000

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect: its mean in logarithms, and how sure that is."""

    mean: float = 0.0
    variance: float = 0.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute relative errors of single rates, and of how many.

    Attributes:
        count: measurements of single rates.
        predicted: sum of the network's errors.
        corrected: sum of the errors of what was said with the correction, before each measurement.
    """

    count: int = 0
    predicted: float = 0.0
    corrected: float = 0.0

    @property
    def of_prediction(self) -> float:
        """NaN before anything was measured."""
        return self.predicted / self.count if self.count else math.nan

    @property
    def of_correction(self) -> float:
        return self.corrected / self.count if self.count else math.nan


@dataclass(frozen=True, slots=True)
class Correction:
    """Belief about the network's errors.

    Jobs go by any names; those of one family should share one, since they behave alike.

    Attributes:
        effects: by what they are of.
        errors: of everything that was measured so far.
    """

    effects: Mapping[Key, Effect] = field(default_factory=dict)
    errors: Errors = Errors()
    _factors: dict[Key, dict[str, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def factors(self, jobs: Sequence[str]) -> list[float]:
        """By what the rates of a set are to be multiplied; looked up where it was asked before."""
        if len(jobs) <= 1:
            return [1.0] * len(jobs)
        key = tuple(sorted(jobs))
        found = self._factors.get(key)
        if found is None:
            found = {
                job: math.exp(self._shift(_keys(key, at)))
                for at, job in enumerate(key)
                if at == 0 or key[at - 1] != job
            }
            self._factors[key] = found
        return [found[job] for job in jobs]

    def correct(self, jobs: Sequence[str], predicted: Sequence[float] | Array) -> Array:
        """The predicted rates of a set, corrected; in (0, 1], a job alone as it was.

        Args:
            jobs: their names.
            predicted: the network's rates of them, in the same order.
        """
        told = _rates(jobs, predicted)
        if len(jobs) <= 1:
            return told
        corrected: Array = np.minimum(1.0, told * np.array(self.factors(jobs)))
        return corrected

    def deviation(self, jobs: Sequence[str]) -> Array:
        """How unsure the corrected rates are: a standard deviation each, relative."""
        if len(jobs) <= 1:
            return np.zeros(len(jobs))
        sums = [sum(self._of(key).variance for key in _keys(jobs, at)) for at in range(len(jobs))]
        deviations: Array = np.sqrt(np.array(sums))
        return deviations

    def learn(
        self,
        jobs: Sequence[str],
        predicted: Sequence[float] | Array,
        measured: Sequence[float] | Array,
    ) -> Correction:
        """What is believed after a set was measured.

        Args:
            jobs: their names.
            predicted: the network's rates of them, without any correction.
            measured: their rates relative to alone, above 0 and finite; NaN where a job's was not
                measured.

        Raises:
            UsageError: the numbers of jobs differ, or a rate is not above 0.
        """
        told, found = _rates(jobs, predicted), _rates(jobs, measured, unknown=True)
        if len(jobs) <= 1:
            return self
        said = self.correct(jobs, told)
        effects, errors = dict(self.effects), self.errors
        for at in np.flatnonzero(np.isfinite(found)):
            keys = _keys(jobs, int(at))
            errors = Errors(
                errors.count + 1,
                errors.predicted + abs(float(told[at] / found[at]) - 1),
                errors.corrected + abs(float(said[at] / found[at]) - 1),
            )
            self._share_out(effects, keys, math.log(float(found[at] / told[at])))
        for key in list(effects)[: max(0, len(effects) - MOST_EFFECTS)]:
            del effects[key]
        return replace(self, effects=MappingProxyType(effects), errors=errors)

    def _share_out(self, effects: dict[Key, Effect], keys: Sequence[Key], value: float) -> None:
        """Move the effects of one job towards a measurement, the unsure ones most."""
        before = [effects.get(key) or _unknown(key) for key in keys]
        faded = [_faded(key, effect) for key, effect in zip(keys, before, strict=True)]
        total = sum(effect.variance for effect in faded) + NOISE**2
        missing = value - sum(effect.mean for effect in faded)
        missing = min(FURTHEST, max(-FURTHEST, missing))
        for key, effect in zip(keys, faded, strict=True):
            gain = effect.variance / total
            effects.pop(key, None)  # so that it is the newest
            effects[key] = Effect(effect.mean + gain * missing, effect.variance * (1 - gain))

    def _shift(self, keys: Sequence[Key]) -> float:
        return sum(self._of(key).mean for key in keys)

    def _of(self, key: Key) -> Effect:
        return self.effects.get(key) or _unknown(key)


def _keys(jobs: Sequence[str], at: int) -> list[Key]:
    """What has an effect on one job of a set: itself, each kind of neighbour, the set."""
    others = sorted([*jobs[:at], *jobs[at + 1 :]])
    near = [("neighbour", jobs[at], other) for other in dict.fromkeys(others)]
    return [("job", jobs[at]), *near, ("set", jobs[at], *others)]


def _unknown(key: Key) -> Effect:
    return Effect(0.0, _FIRST[key[0]])


def _faded(key: Key, effect: Effect) -> Effect:
    first = _FIRST[key[0]]
    return replace(effect, variance=min(first, effect.variance + FADE * first))


_FIRST = {"job": JOB**2, "neighbour": NEIGHBOUR**2, "set": SET**2}


def _rates(jobs: Sequence[str], rates: Sequence[float] | Array, *, unknown: bool = False) -> Array:
    """As an array; checked."""
    array = np.asarray(rates, dtype=np.float64)
    if array.shape != (len(jobs),):
        raise UsageError(f"{len(jobs)} jobs need as many rates, not {array.shape}")
    wrong = array[~((array > 0) & np.isfinite(array) | (np.isnan(array) & unknown))]
    if wrong.size:
        raise UsageError(f"a rate must be above 0 and finite, not {wrong[0]}")
    return array
