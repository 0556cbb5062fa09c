"""The queueing network as a world, with parameters of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rmixer.interference import Sharing, Station, solve, solve_one
from rmixer.model import CPU, GPU_STATIONS, HOST_STATIONS, Device, Node, Profile
from rmixer.policies.base import number
from rmixer.simulate.network import Array, station_rates
from rmixer.simulate.worlds.base import Member, World


class NetworkWorld(World):
    """Jobs queue for the stations that they declare: by default time-shared, at no other cost.

    Args:
        overhead: what each co-runner on a device costs a job whatever it does.
        capacity: how many kernels a GPU runs side by side; 1 is time sharing.
        gamma: how much granularity counts, from 0 to 1.
        demand, granularity, duration, memory, noise, failures: see `World`.
    """

    name = "network"

    def __init__(
        self,
        *,
        overhead: float = 0.0,
        capacity: float = 1.0,
        gamma: float = 1.0,
        demand: float = 0.0,
        granularity: float = 0.0,
        duration: float = 0.0,
        memory: float = 0.0,
        noise: float = 0.0,
        failures: float = 0.0,
    ) -> None:
        super().__init__(
            demand=demand, granularity=granularity, duration=duration, memory=memory,
            noise=noise, failures=failures,
        )  # fmt: skip
        where = f"world {self.name}"
        self.overhead = number(where, "overhead", overhead, 0.0)
        self.capacity = number(where, "capacity", capacity, 1.0)
        self.gamma = number(where, "gamma", gamma, 0.0)
        if self.gamma > 1:
            raise ValueError(f"{where}: gamma must be at most 1, not {gamma!r}")
        self._seen: dict[tuple[object, ...], list[float]] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._node: Node | None = None
        self._devices: dict[str, Device] = {}
        self._on_host: dict[str, bool] = {}
        self._uses: dict[tuple[object, ...], int] = {}

    def couples(self, members: Sequence[Member]) -> bool:
        """Whether any of them uses the host."""
        return any(self._uses_host(member) for member in members)

    def _uses_host(self, member: Member) -> bool:
        known = self._on_host.get(member.key)
        if known is None:
            known = self._on_host[member.key] = any(
                profile.demand.get(station, 0.0) > 0
                for profile in member.profiles.values()
                for station in HOST_STATIONS
            )
        return known

    def law(self, node: Node, crowds: Mapping[str, Sequence[Member]]) -> dict[str, list[float]]:
        """The rates, device by device; all devices at once where jobs use the host."""
        if self.couples([one for members in crowds.values() for one in members]):
            return self._coupled(node, crowds)
        if self._node is not node:
            self._node, self._devices = node, {device.id: device for device in node.devices}
        return {id: self._alone(self._devices[id], members) for id, members in crowds.items()}  # noqa: A001

    def rates_of_sets(
        self, device: Device, node: Node, sets: Sequence[Sequence[Member]]
    ) -> list[list[float]]:
        """All sets solved at once, where only one station is in use."""
        everybody = {one.key: one for members in sets for one in members}
        stations = _stations([*everybody.values()], device.kind)
        if device.kind == CPU or len(stations) != 1 or self.couples([*everybody.values()]):
            return [self.law(node, {device.id: members})[device.id] for members in sets]
        (name,) = stations
        rows = {key: row for row, key in enumerate(everybody)}
        own = [one.profiles[device.kind] for one in everybody.values()]
        demand = np.array([*(p.demand.get(name, 0.0) for p in own), -1.0])
        grain = np.array([*(p.granularity.get(name, 1.0) for p in own), 1.0])
        width = max(len(members) for members in sets)
        chosen = np.full((len(sets), width), len(own))  # the last row is an empty place
        for row, members in enumerate(sets):
            chosen[row, : len(members)] = [rows[one.key] for one in members]
        found = self._station_rates(demand[chosen], grain[chosen])
        return [row[: len(members)] for row, members in zip(found.tolist(), sets, strict=True)]

    def work(self, member: Member, kind: str) -> dict[str, float]:
        """Solo seconds times demand; a station with a capacity is busy for less."""
        seconds, demand = member.seconds(kind), member.profiles[kind].demand
        per_second = dict.fromkeys(GPU_STATIONS, self.capacity)
        return {k: seconds * share / per_second.get(k, 1.0) for k, share in demand.items()}

    def _alone(self, device: Device, members: Sequence[Member]) -> list[float]:
        if len(members) == 1:
            return [1.0]
        names = [self._use_key(member, device.kind) for member in members]
        order = sorted(range(len(names)), key=names.__getitem__)
        found = self._ranked(device, [members[at] for at in order], [names[at] for at in order])
        rates = [1.0] * len(members)
        for at, rate in zip(order, found, strict=True):
            rates[at] = rate
        return rates

    def _use_key(self, member: Member, kind: str) -> int:
        """Jobs of the same number use a kind of device alike."""
        known = self._numbers.get((member.key, kind))
        if known is None:
            profile = member.profiles[kind]
            use = (*sorted(profile.demand.items()), None, *sorted(profile.granularity.items()))
            known = self._numbers[member.key, kind] = self._uses.setdefault(use, len(self._uses))
        return known

    def _ranked(
        self, device: Device, members: Sequence[Member], names: Sequence[int]
    ) -> list[float]:
        """The rates of jobs in the order of their uses."""
        key = (device.kind, *names)
        if key not in self._seen:
            stations = _stations(members, device.kind)
            profiles = [member.profiles[device.kind] for member in members]
            if device.kind == CPU or not stations:
                self._seen[key] = [1.0 / (1.0 + self._cost(device, members))] * len(members)
            elif len(stations) == 1:
                self._seen[key] = self._one(profiles, next(iter(stations)))
            else:
                self._seen[key] = self._several(profiles, sorted(stations), len(members))
        return self._seen[key]

    def _cost(self, device: Device, members: Sequence[Member]) -> float:
        return 0.0 if device.kind == CPU else self.overhead * max(0, len(members) - 1)

    def _one(self, profiles: Sequence[Profile], name: str) -> list[float]:
        demands = [profile.demand.get(name, 0.0) for profile in profiles]
        if min(demands) > 0.0:  # one set alone is quicker as numbers than as arrays
            grains = [profile.granularity.get(name, 1.0) for profile in profiles]
            station = Station(name=name, capacity=self.capacity, gamma=self.gamma)
            return solve_one(demands, grains, station, self.overhead)
        demand = np.array([[profile.demand.get(name, 0.0) for profile in profiles]])
        grain = np.array([[profile.granularity.get(name, 1.0) for profile in profiles]])
        rates: list[float] = self._station_rates(demand, grain)[0].tolist()
        return rates

    def _station_rates(self, demand: Array, grain: Array) -> Array:
        return station_rates(
            demand, grain, capacity=self.capacity, gamma=self.gamma, overhead=self.overhead
        )

    def _several(
        self, profiles: Sequence[Profile], names: Sequence[str], count: int
    ) -> list[float]:
        stations = tuple(
            Station(name=name, capacity=self.capacity, gamma=self.gamma) for name in names
        )
        demand = np.array([[[p.demand.get(n, 0.0) for n in names] for p in profiles]])
        grain = np.array([[[p.granularity.get(n, 1.0) for n in names] for p in profiles]])
        rates = solve(demand, grain, Sharing(stations=stations, overhead=0.0))[0]
        return [float(rate) / (1.0 + self.overhead * (count - 1)) for rate in rates]

    def _coupled(
        self, node: Node, crowds: Mapping[str, Sequence[Member]]
    ) -> dict[str, list[float]]:
        """One network of the stations of all GPUs and those of the host."""
        stations = [
            Station(name=n, servers=_servers(n, node), gamma=self.gamma) for n in HOST_STATIONS
        ]
        columns = {name: index for index, name in enumerate(HOST_STATIONS)}
        rows: list[tuple[str, Profile]] = []
        for id, members in crowds.items():  # noqa: A001
            kind = node.device(id).kind
            rows += [(id, member.profiles[kind]) for member in members]
            for name in GPU_STATIONS if kind != CPU else ():
                columns[f"{id}/{name}"] = len(stations)
                stations.append(
                    Station(name=f"{id}/{name}", capacity=self.capacity, gamma=self.gamma)
                )
        demand = np.zeros((1, len(rows), len(stations)))
        grain = np.ones_like(demand)
        for row, (id, profile) in enumerate(rows):  # noqa: A001
            for name, share in profile.demand.items():
                column = columns.get(name, columns.get(f"{id}/{name}"))
                if column is not None:
                    demand[0, row, column] = share
                    grain[0, row, column] = profile.granularity.get(name, 1.0)
        rates = iter(solve(demand, grain, Sharing(stations=tuple(stations), overhead=0.0))[0])
        return {
            id: [float(next(rates)) / (1.0 + self._cost(node.device(id), members)) for _ in members]
            for id, members in crowds.items()  # noqa: A001
        }


def _used(profile: Profile) -> list[str]:
    return [name for name in GPU_STATIONS if profile.demand.get(name, 0.0) > 0]


def _stations(members: Sequence[Member], kind: str) -> set[str]:
    return {name for member in members for name in _used(member.profiles[kind])}


def _servers(name: str, node: Node) -> int:
    return len(node.cores) if name == "cores" else 1
