"""The least makespan that memory and the law of rates allow, by column generation.

A column is a set of jobs that may share a device of a kind: it fits into the memory, and the law
gives each of its jobs a rate. With y[c] the time that set c runs,

    minimise T   such that   sum over c of y[c] * X[t](c) >= work[t]   for every type t of jobs
                             sum over c of a kind of y[c] <= T * (devices of the kind)
                             T >= the longest job on its fastest device

Sets may be left and joined at any time, so no schedule beats it, as far as the sets were found:
they are priced by growing them greedily from every start and by exchanging members, which can miss
one. Jobs of one type are one row. What host stations do is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rmixer.model import CPU, Device, Node
from rmixer.simulate.jobs import SimJob
from rmixer.simulate.limits import kinds_of
from rmixer.simulate.network import Array
from rmixer.simulate.worlds.base import Member, World

#: Beyond so many types of jobs it is not computed.
MOST_TYPES = 60
_ROUNDS = 60
_GAIN = 1e-4
_WIDEST = 64


@dataclass(slots=True)
class _Kind:
    """Devices of one kind, and the sets that were found for them."""

    device: Device
    count: int
    columns: dict[tuple[int, ...], Array] = field(default_factory=dict)
    speeds: dict[tuple[int, ...], Array] = field(default_factory=dict)
    fits: dict[tuple[int, ...], bool] = field(default_factory=dict)


@dataclass(slots=True)
class _Types:
    """Jobs that are alike but for their length, once.

    Attributes:
        members: one of each type.
        counts: how many there are.
        work: the seconds alone of all of them, on the first kind of device that they may use.
        ratio: per kind of device, how many times as long as there.
        kinds: the kinds of device that they may use.
    """

    members: list[Member]
    counts: list[int]
    work: list[float]
    ratio: list[dict[str, float]]
    kinds: list[list[str]]


def attainable_makespan(
    jobs: Sequence[SimJob], members: Sequence[Member], node: Node, world: World
) -> float | None:
    """The limit, seconds; None where the instance is too large.

    Args:
        jobs: `World.known` ones; when they arrive does not count.
        members: the truth about each.
        node: the machine.
        world: the law.
    """
    if not jobs:
        return 0.0
    types = _types(jobs, members, node)
    if len(types.members) > MOST_TYPES or world.couples(members):
        return None
    kinds = _kinds(node)
    for kind in kinds.values():
        _add(kind, types, node, world, [(index,) for index in _fitting(kind, types)])
    longest = max(
        min(member.seconds(kind) for kind in kinds_of(job, node))
        for job, member in zip(jobs, members, strict=True)
    )
    seconds, price, costs = _solve(kinds, types, longest)
    for _ in range(_ROUNDS):
        found = [
            _price(kind, types, node, world, price, cost)
            for kind, cost in zip(kinds.values(), costs, strict=True)
        ]
        if not any(found):
            break
        seconds, price, costs = _solve(kinds, types, longest)
    return seconds


def _types(jobs: Sequence[SimJob], members: Sequence[Member], node: Node) -> _Types:
    found: dict[tuple[object, ...], int] = {}
    types = _Types([], [], [], [], [])
    for job, member in zip(jobs, members, strict=True):
        kinds = kinds_of(job, node)
        seconds = member.seconds(kinds[0])
        ratio = {kind: member.seconds(kind) / seconds for kind in kinds}
        key = (*(_use(member, kind, ratio[kind]) for kind in kinds), member.device_memory)
        if key not in found:
            found[key] = len(types.members)
            types.members.append(member)
            types.counts.append(0)
            types.work.append(0.0)
            types.ratio.append(ratio)
            types.kinds.append(kinds)
        types.counts[found[key]] += 1
        types.work[found[key]] += seconds
    return types


def _use(member: Member, kind: str, ratio: float) -> tuple[object, ...]:
    profile = member.profiles[kind]
    parts = (profile.demand, profile.granularity)
    return (kind, profile.source, round(ratio, 9), *(tuple(sorted(p.items())) for p in parts))


def _kinds(node: Node) -> dict[str, _Kind]:
    counts = Counter(device.kind for device in node.devices)
    return {device.kind: _Kind(device, counts[device.kind]) for device in node.devices}


def _fitting(kind: _Kind, types: _Types) -> list[int]:
    name = kind.device.kind
    return [index for index, kinds in enumerate(types.kinds) if name in kinds]


def _fits(kind: _Kind, types: _Types, chosen: tuple[int, ...]) -> bool:
    if chosen not in kind.fits:
        kind.fits[chosen] = _fits_really(kind, types, chosen)
    return kind.fits[chosen]


def _fits_really(kind: _Kind, types: _Types, chosen: tuple[int, ...]) -> bool:
    if len(chosen) > min(kind.device.most_jobs, _WIDEST):
        return False
    if any(count > types.counts[index] for index, count in Counter(chosen).items()):
        return False
    if kind.device.kind == CPU:
        return True
    need = sum(types.members[i].device_memory or kind.device.memory for i in chosen)
    return need <= kind.device.memory


def _add(
    kind: _Kind, types: _Types, node: Node, world: World, sets: Sequence[tuple[int, ...]]
) -> None:
    """Keep sets as columns: the work per second that each does of each type."""
    new = [chosen for chosen in sets if chosen not in kind.columns]
    for chosen, speed in zip(new, _speeds(kind, types, node, world, new), strict=True):
        column = np.zeros(len(types.members))
        np.add.at(column, list(chosen), speed)
        kind.columns[chosen] = column


def _speeds(
    kind: _Kind, types: _Types, node: Node, world: World, sets: Sequence[tuple[int, ...]]
) -> list[Array]:
    """Of each set the work per second that each member does; each set is asked for once."""
    name = kind.device.kind
    new = [chosen for chosen in sets if chosen not in kind.speeds]
    if new:
        members = [[types.members[index] for index in chosen] for chosen in new]
        rates = world.rates_of_sets(kind.device, node, members)
        for chosen, row in zip(new, rates, strict=True):
            ratio = np.array([types.ratio[index][name] for index in chosen])
            kind.speeds[chosen] = np.array(row) / ratio
    return [kind.speeds[chosen] for chosen in sets]


def _solve(kinds: Mapping[str, _Kind], types: _Types, longest: float) -> tuple[float, Array, Array]:
    """T, what a second of work of each type is worth, and what that of a device of a kind costs."""
    from scipy.optimize import linprog  # noqa: PLC0415  # slow to import

    columns = [(row, column) for row, kind in enumerate(kinds.values())
               for column in kind.columns.values()]  # fmt: skip
    jobs, places = len(types.members), len(kinds)
    upper = np.zeros((jobs + places, len(columns) + 1))
    for index, (row, column) in enumerate(columns):
        upper[:jobs, index] = -column
        upper[jobs + row, index] = 1.0
    upper[jobs:, -1] = [-kind.count for kind in kinds.values()]
    limit = np.concatenate([-np.array(types.work), np.zeros(places)])
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    bounds = [(0.0, None)] * len(columns) + [(longest, None)]
    answer = linprog(cost, A_ub=upper, b_ub=limit, bounds=bounds)
    assert answer.success, answer.message
    marginals = -np.asarray(answer.ineqlin.marginals)
    return float(answer.fun), marginals[:jobs], marginals[jobs:]


def _price(kind: _Kind, types: _Types, node: Node, world: World, price: Array, cost: float) -> bool:
    """Add sets that are worth more than their time costs; whether there was one."""
    able = _fitting(kind, types)

    def values(sets: Sequence[tuple[int, ...]]) -> list[float]:
        speeds = _speeds(kind, types, node, world, sets)
        return [float(price[list(s)] @ v) for s, v in zip(sets, speeds, strict=True)]

    starts = [(index,) for index in able]
    grown = _climb(starts, lambda chosen: _larger(chosen, able), kind, types, values)
    best = _climb(grown, lambda chosen: _exchanged(chosen, able), kind, types, values)
    wanted = sorted(set(best) - set(kind.columns))
    worth = [
        chosen
        for chosen, value in zip(wanted, values(wanted) if wanted else [], strict=True)
        if value > cost * (1.0 + _GAIN)
    ]
    _add(kind, types, node, world, worth)
    return bool(worth)


def _climb(
    sets: Sequence[tuple[int, ...]],
    neighbours: Callable[[tuple[int, ...]], Iterable[tuple[int, ...]]],
    kind: _Kind,
    types: _Types,
    values: Callable[[Sequence[tuple[int, ...]]], list[float]],
) -> list[tuple[int, ...]]:
    """Replace each set by its best neighbour while that is better; those where none is."""
    done: set[tuple[int, ...]] = set()
    current = dict(zip(sets, values(sets) if sets else [], strict=True))
    while current:
        options = {
            chosen: [other for other in neighbours(chosen) if _fits(kind, types, other)]
            for chosen in current
        }
        every = sorted({other for others in options.values() for other in others})
        value = dict(zip(every, values(every) if every else [], strict=True))
        further: dict[tuple[int, ...], float] = {}
        for chosen, others in options.items():
            best = max(others, key=lambda other: value[other], default=None)
            if best is None or value[best] <= current[chosen] * (1.0 + 1e-9):
                done.add(chosen)
            elif best not in done:
                further[best] = value[best]
        current = further
    return sorted(done)


def _larger(chosen: tuple[int, ...], able: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return (tuple(sorted((*chosen, index))) for index in able)


def _exchanged(chosen: tuple[int, ...], able: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """One member less, one more, or another in its place."""
    yield from _larger(chosen, able)
    for position in range(len(chosen)):
        rest = chosen[:position] + chosen[position + 1 :]
        if rest:
            yield rest
        yield from (tuple(sorted((*rest, index))) for index in able)
