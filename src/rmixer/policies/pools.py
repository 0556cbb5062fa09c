"""The GPUs of a cluster as arrays, and what each would gain by one job more of each use.

Devices of one kind are a pool. Jobs are grouped by use (demand and granularity, rounded), devices
by the multiset of uses that they have: what a multiset gains by one more is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rmixer.model import Device
from rmixer.policies.candidates import SumsAndLeast, compiled, sums_and_least
from rmixer.policies.live import OVERHEAD
from rmixer.policies.outlook import Use, rates_of

#: Uses that are told apart; further ones count as the nearest of these.
MOST_USES = 256
#: Multisets whose gains are kept.
_MOST_STATES = 20_000
#: With so many devices the compiled core is worth its start.
_COMPILE_FOR = 64
_LEAST_DEMAND = 0.01

Floats = NDArray[np.float64]


class Uses:
    """The uses that have been seen, numbered."""

    def __init__(self) -> None:
        self.table: Floats = np.zeros((0, 2))
        self._numbers: dict[Use, int] = {}

    def number(self, use: Use) -> int:
        """The number of a use, or of the nearest where there are too many."""
        demand = min(1.0, max(_LEAST_DEMAND, round(use[0], 2)))
        key = demand, round(2.0 ** (round(8.0 * math.log2(use[1])) / 8.0), 4)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._add(key)
        return found

    def _add(self, key: Use) -> int:
        if len(self.table) < MOST_USES:
            self.table = np.vstack([self.table, key])
            return len(self.table) - 1
        apart = (self.table[:, 0] - key[0]) ** 2
        apart += (0.1 * np.log2(self.table[:, 1] / key[1])) ** 2
        return int(np.argmin(apart))


class Pool:
    """The devices of one kind.

    Args:
        devices: of one kind, shared in one way.
        uses: numbered ones of all jobs.

    Attributes:
        free, places: per device memory and places that are left; no places where it is closed.
        count: per device the jobs that are there.
        ends: per device when the last of them is expected to end.
        gain, least: [devices, uses] what one job more adds to the sum of rates, and the least rate
            then.
    """

    def __init__(self, devices: Sequence[Device], uses: Uses) -> None:
        self.kind, self.devices, self.uses = devices[0].kind, list(devices), uses
        self.overhead = OVERHEAD[devices[0].sharing]
        self.free = np.array([float(device.memory) for device in devices])
        self.places = np.array([float(device.most_jobs) for device in devices])
        self.open = self.places > 0
        self.count = np.zeros(len(devices), dtype=int)
        self.ends = np.zeros(len(devices))
        self.state: list[tuple[int, ...]] = [()] * len(devices)
        self.gain = np.zeros((len(devices), 0))
        self.least = np.zeros((len(devices), 0))
        self._known: dict[tuple[int, ...], tuple[float, Floats, Floats]] = {}
        fast = compiled() if len(devices) >= _COMPILE_FOR else None
        self._core: SumsAndLeast = fast or sums_and_least

    @property
    def empty(self) -> NDArray[np.intp]:
        """The devices that have no job, and are open."""
        return np.flatnonzero((self.count == 0) & self.open)

    def set_state(self, device: int, state: tuple[int, ...]) -> None:
        """A device has another multiset of uses now."""
        self.state[device] = state
        self.count[device] = len(state)
        known = self._after(state)
        self.gain[device, : len(known[1])], self.least[device, : len(known[1])] = known[1:]

    def rates(self, state: Sequence[int]) -> list[float]:
        """The rates of jobs of these uses side by side, in the order given."""
        table = self.uses.table
        ranked = sorted(range(len(state)), key=state.__getitem__)
        found = rates_of(
            tuple((float(table[state[k], 0]), float(table[state[k], 1])) for k in ranked),
            self.overhead,
        )
        rates = [0.0] * len(state)
        for k, rate in zip(ranked, found, strict=True):
            rates[k] = rate
        return rates

    def keep_up(self) -> None:
        """Columns for uses that are new."""
        known, wanted = self.gain.shape[1], len(self.uses.table)
        if known == wanted:
            return
        fresh = np.zeros((len(self.devices), wanted - known))
        self.gain, self.least = np.hstack([self.gain, fresh]), np.hstack([self.least, fresh])
        states = list(dict.fromkeys(self.state))
        row = {state: at for at, state in enumerate(states)}
        at = np.array([row[state] for state in self.state])
        for use in range(known, wanted):
            gain, least = self._with_one(states, use)
            self.gain[:, use], self.least[:, use] = gain[at], least[at]
        self._known.clear()

    def _after(self, state: tuple[int, ...]) -> tuple[float, Floats, Floats]:
        found = self._known.get(state)
        if found is None:
            if len(self._known) >= _MOST_STATES:
                self._known.clear()
            found = self._known[state] = self._with_each(state)
        return found

    def _with_each(self, state: tuple[int, ...]) -> tuple[float, Floats, Floats]:
        """The sum of rates of a multiset, and with one more of each use the gain and the least."""
        table = self.uses.table
        rows = np.repeat(np.array([[*state, -1]]), len(table), axis=0)
        rows[:, -1] = np.arange(len(table))
        now = sum(self.rates(state)) if state else 0.0
        sums, least = self._solve(table[rows, 0], table[rows, 1])
        return now, np.round(sums - now, 6), np.round(least, 6)

    def _with_one(self, states: Sequence[tuple[int, ...]], use: int) -> tuple[Floats, Floats]:
        """The gains of many multisets by one use."""
        width = max((len(state) for state in states), default=0) + 1
        rows = np.full((len(states), width), -1)
        for at, state in enumerate(states):
            rows[at, : len(state)] = state
            rows[at, len(state)] = use
        table = np.vstack([self.uses.table, [0.0, 1.0]])  # the last is an empty place
        sums, least = self._solve(table[rows, 0], table[rows, 1])
        now = np.array([sum(self.rates(state)) if state else 0.0 for state in states])
        return np.round(sums - now, 6), np.round(least, 6)

    def _solve(self, demand: Floats, grain: Floats) -> tuple[Floats, Floats]:
        return self._core(np.ascontiguousarray(demand), np.ascontiguousarray(grain), self.overhead)
