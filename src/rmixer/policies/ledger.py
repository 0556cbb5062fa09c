"""What is booked on a node: its cores, its memory, its devices' memory and places.

A ledger is kept from event to event by the state of the run; a plan books in a `fork`, which costs
what it touches and not what there is.
"""
# ruff: noqa: SLF001  # a fork is made from what is private in the other

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rmixer.model import Active, Job, Node, Placement, StateName


class Ledger:
    """What is free, and what each active job holds.

    A placement that is pinned books ``cpu / len(cores)`` on each of its cores; one that is not
    books on the node alone. One on several GPUs has those beside its own whole. A job that stands
    still books its memory, but neither cores nor a place. Nothing is refused here: see
    `rmixer.policies.base.Plan.lacks`.

    Attributes:
        devices: of the node, by id.
        free_cpu: cores' worth.
        free_memory: host memory, bytes.
        free_device_memory: by device id, bytes.
        free_places: by device id, how many more jobs.
        pinned: the jobs that hold cores of their own, in the order in which they came.
    """

    def __init__(self, node: Node, active: Iterable[Job] = ()) -> None:
        self.devices = {device.id: device for device in node.devices}
        self.free_cpu = float(len(node.cores))
        self.free_memory = node.memory
        self.free_device_memory = {d.id: d.memory for d in node.devices}
        self.free_places = {d.id: d.most_jobs for d in node.devices}
        self.pinned: dict[str, None] = {}
        self._free_cores = dict.fromkeys(node.cores, 1.0)
        self._shares_cores = False
        self._held: dict[str, Placement] = {}
        self._below: Mapping[str, Placement] | None = None
        self._standing: set[str] = set()
        for job in active:
            self.take(job)

    def take(self, job: Job) -> None:
        """Book what an active job holds now."""
        assert isinstance(job.state, Active)
        placement, stands = job.state.attempt.placement, job.state.name == StateName.SUSPENDED
        if self.held(job.id) != placement or self.stands(job.id) != stands:
            self.hold(job.id, placement, stands=stands)

    def fork(self) -> Ledger:
        """The same, to `hold` more in it without changing this one."""
        assert self._below is None, "a fork is not forked again"
        other = Ledger.__new__(Ledger)
        other.devices = self.devices
        other.free_cpu, other.free_memory = self.free_cpu, self.free_memory
        other.free_device_memory = dict(self.free_device_memory)
        other.free_places = dict(self.free_places)
        other.pinned = self.pinned
        other._free_cores, other._shares_cores = self._free_cores, True
        other._held, other._below = {}, self._held
        other._standing = set(self._standing)
        return other

    @property
    def free_cores(self) -> Mapping[int, float]:
        """By core id, the share of it that is free."""
        return self._free_cores

    def held(self, job: str) -> Placement | None:
        """What an active job holds; None where it holds nothing."""
        found = self._held.get(job)
        return self._below.get(job) if found is None and self._below is not None else found

    def stands(self, job: str) -> bool:
        """Whether a job has a place but stands still."""
        return job in self._standing

    @property
    def any_stands(self) -> bool:
        """Whether any job stands still."""
        return bool(self._standing)

    def hold(self, job: str, placement: Placement, *, stands: bool = False) -> None:
        """Book a placement for a job instead of what it held."""
        before = self.held(job)
        if before is not None:
            self.book(before, -1, stands=self.stands(job))
        self.book(placement, 1, stands=stands)
        self._held[job] = placement
        (self._standing.add if stands else self._standing.discard)(job)
        if self._below is None:
            self._pin(job, placement)

    def release(self, job: str) -> None:
        """Give back what a job holds, if it holds anything."""
        assert self._below is None, "a fork only takes"
        held = self._held.pop(job, None)
        if held is not None:
            self.book(held, -1, stands=self.stands(job))
            self.pinned.pop(job, None)
            self._standing.discard(job)

    def _pin(self, job: str, placement: Placement) -> None:
        if placement.cores:
            self.pinned[job] = None
        else:
            self.pinned.pop(job, None)

    def book(self, placement: Placement, sign: int, *, stands: bool = False) -> None:
        """Take what a placement books (1), or give it back (-1)."""
        self.free_memory -= sign * placement.memory
        if placement.device in self.free_device_memory:
            self.free_device_memory[placement.device] -= sign * placement.device_memory
        for other in placement.others:
            if other in self.free_device_memory:
                self.free_device_memory[other] -= sign * self.devices[other].memory
        if not stands:
            self._book_moving(placement, sign)

    def _book_moving(self, placement: Placement, sign: int) -> None:
        """What only a job that does not stand still books: cores, and a place on its devices."""
        self.free_cpu = round(self.free_cpu - sign * placement.cpu, 3)
        for device in placement.devices:
            if device in self.free_places:
                self.free_places[device] -= sign
        if placement.cores:
            self._book_cores(placement, sign)

    def _book_cores(self, placement: Placement, sign: int) -> None:
        if self._shares_cores:
            self._free_cores, self._shares_cores = dict(self._free_cores), False
        share = core_share(placement)
        for core in placement.cores:
            if core in self._free_cores:
                self._free_cores[core] = round(self._free_cores[core] - sign * share, 3)


def core_share(placement: Placement) -> float:
    """What a pinned placement books on each of its cores; 0 where it is not pinned."""
    return round(placement.cpu / len(placement.cores), 3) if placement.cores else 0.0
