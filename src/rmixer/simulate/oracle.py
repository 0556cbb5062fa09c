"""The best schedule of a small case, by exhaustive search with bounds.

Jobs start at the beginning or when another job ends, run to their end, and share a device as its
memory allows; the law of the world gives the rates. Every choice of who starts where, and who waits
although there is room, is tried, except where a bound shows that it cannot win: the longest job
that is left, and what is left at prices that no set of jobs earns faster than time. With more than
about ten jobs the search is cut off at a number of choices, and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rmixer.model import CPU, Device, Node
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.limits import kinds_of
from rmixer.simulate.worlds.base import Member, World

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least makespan, and whether the search was complete.

    Attributes:
        seconds: the makespan.
        exact: whether every choice was tried or ruled out.
        choices: how many were looked at.
    """

    seconds: float
    exact: bool
    choices: int


@dataclass(slots=True)
class _Search:
    """The case as numbers: rates per device kind and set of jobs, as bit masks."""

    devices: list[Device]
    seconds: list[list[float]]  # [device][job], infinite where it cannot run
    least: list[float]
    memory: list[int]
    members: list[Member]
    node: Node
    world: World
    most: int
    best: float
    choices: int = 0
    rates: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    worth: list[float] = field(default_factory=list)

    # --- what a set does --------------------------------------------------------------------

    def rates_on(self, device: int, mask: int) -> dict[int, float]:
        """Per job of a set the share of its work there that it does in a second."""
        key = (self.devices[device].kind, mask)
        if key not in self.rates:
            chosen = list(_bits(mask))
            members = [self.members[job] for job in chosen]
            speed = self.world.law(self.node, {self.devices[device].id: members})
            self.rates[key] = {
                job: rate / self.seconds[device][job]
                for job, rate in zip(chosen, speed[self.devices[device].id], strict=True)
            }
        return self.rates[key]

    def fits(self, device: int, mask: int) -> bool:
        """Whether a set may be on a device."""
        found = self.devices[device]
        if mask.bit_count() > found.most_jobs:
            return False
        jobs = list(_bits(mask))
        if any(self.seconds[device][job] == float("inf") for job in jobs):
            return False
        return found.kind == CPU or sum(self.memory[job] for job in jobs) <= found.memory

    # --- the search -------------------------------------------------------------------------

    def go(self, now: float, left: dict[int, float], on: tuple[int, ...], pending: int) -> None:
        """Try everything from here. ``left`` is the share of each job's work that is left."""
        if not left:
            self.best = min(self.best, now)
            return
        if now + self._least_time(left) >= self.best - _EPSILON or self.choices > self.most:
            return
        for chosen in sorted(
            self._starts(on, pending), key=lambda masks: -sum(mask.bit_count() for mask in masks)
        ):
            self.choices += 1
            if self.choices > self.most:
                return
            started = 0
            for mask, before in zip(chosen, on, strict=True):
                started |= mask & ~before
            self._advance(now, left, chosen, pending & ~started)

    def _advance(
        self, now: float, left: dict[int, float], on: tuple[int, ...], pending: int
    ) -> None:
        """Up to the next end."""
        speed: dict[int, float] = {}
        for device, mask in enumerate(on):
            if mask:
                speed.update(self.rates_on(device, mask))
        if not speed:
            return
        step = min(left[job] / rate for job, rate in speed.items())
        if now + step >= self.best - _EPSILON:
            return
        after = {job: share - step * speed.get(job, 0.0) for job, share in left.items()}
        ended = {job for job, share in after.items() if share <= _EPSILON and job in speed}
        gone = sum(1 << job for job in ended)
        rest = {job: share for job, share in after.items() if job not in ended}
        self.go(now + step, rest, tuple(mask & ~gone for mask in on), pending)

    def _least_time(self, left: dict[int, float]) -> float:
        """What the rest takes at least."""
        longest = max(share * self.least[job] for job, share in left.items())
        return max(longest, sum(share * self.worth[job] for job, share in left.items()))

    def _starts(self, on: tuple[int, ...], pending: int) -> Iterator[tuple[int, ...]]:
        """Every way to give waiting jobs to devices; equal empty devices are told apart once."""
        jobs = list(_bits(pending))
        options = range(len(self.devices) + 1)
        seen: set[tuple[object, ...]] = set()
        for choice in itertools.product(options, repeat=len(jobs)):
            masks = list(on)
            for job, option in zip(jobs, choice, strict=True):
                if option < len(masks):
                    masks[option] |= 1 << job
            if not any(masks):
                continue
            if any(
                m != b and not self.fits(d, m)
                for d, (m, b) in enumerate(zip(masks, on, strict=True))
            ):
                continue
            key = tuple(sorted(zip((d.kind for d in self.devices), masks, strict=True)))
            if key not in seen:
                seen.add(key)
                yield tuple(masks)


def best_makespan(
    jobs: Sequence[SimJob],
    members: Sequence[Member],
    node: Node,
    world: World,
    *,
    most: int = 2_000_000,
    at_most: float = float("inf"),
) -> Optimum:
    """The least makespan of jobs that are all there from the beginning.

    Args:
        jobs: `World.known` ones.
        members: the truth about each.
        node: the machine.
        world: the law.
        most: look at so many choices.
        at_most: a makespan that is known to be possible.
    """
    devices = list(node.devices)
    seconds = [
        [
            member.seconds(device.kind) if device.kind in kinds_of(job, node) else float("inf")
            for job, member in zip(jobs, members, strict=True)
        ]
        for device in devices
    ]
    search = _Search(
        devices=devices,
        seconds=seconds,
        least=[min(column) for column in zip(*seconds, strict=True)],
        memory=[member.device_memory for member in members],
        members=list(members),
        node=node,
        world=world,
        most=most,
        best=at_most * (1.0 + 1e-9) + 1e-9,
    )
    search.worth = _worth(search)
    everybody = (1 << len(jobs)) - 1
    search.go(0.0, dict.fromkeys(range(len(jobs)), 1.0), (0,) * len(devices), everybody)
    return Optimum(min(search.best, at_most), search.choices <= most, search.choices)


def _worth(search: _Search) -> list[float]:
    """What each job adds at least to any makespan: prices that no device earns faster than time.

    The dual of the program of `rmixer.simulate.attainable` over all sets that fit.
    """
    from scipy.optimize import linprog  # noqa: PLC0415  # slow to import

    jobs, devices = len(search.members), len(search.devices)
    rows = []
    for device in range(devices):
        for mask in range(1, 1 << jobs):
            if search.fits(device, mask):
                row = [0.0] * (jobs + devices)
                for job, rate in search.rates_on(device, mask).items():
                    row[job] = rate
                row[jobs + device] = -1.0
                rows.append(row)
    rows.append([0.0] * jobs + [1.0] * devices)
    limit = [0.0] * (len(rows) - 1) + [1.0]
    answer = linprog([-1.0] * jobs + [0.0] * devices, A_ub=rows, b_ub=limit)
    assert answer.success, answer.message
    return [float(price) for price in answer.x[:jobs]]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
