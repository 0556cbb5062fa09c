"""Who runs and who waits on the GPUs of a cluster, as arrays that are kept from plan to plan.

A plan costs what has changed since the last one: `Fleet.sync` takes in the jobs that are new or
another, and remembers which devices and which waiting jobs have to be looked at. Everything else
was looked at before, and nothing could start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rmixer.model import CPU, Active, Device, Job, Node, Pending, Placement, StateName
from rmixer.policies.base import Snapshot, placement_of
from rmixer.policies.live import gpu_use, kind_of
from rmixer.policies.pools import Floats, Pool, Uses
from rmixer.policies.traits import booked_memory, devices_of, profile_on, seconds_on

#: Jobs that arrive later than this after the beginning make it a queue and not a batch, seconds.
BATCH_SECONDS = 1.0
#: A job of which no length is known counts as this long.
_UNKNOWN_SECONDS = 600.0
_FIRST_ROWS = 256


@dataclass(slots=True)
class Running:
    """A job on devices of a pool; one on several has each of them whole."""

    placement: Placement
    profiles: object
    pool: int
    devices: tuple[int, ...]
    use: int
    kind: str
    seconds: float
    left: float
    since: float
    rate: float = 1.0

    def is_another(self, placement: Placement, profiles: object) -> bool:
        """Whether the job is elsewhere, books another amount or is known to use another."""
        mine = self.placement.devices, self.placement.device_memory, self.profiles
        return mine != (placement.devices, placement.device_memory, profiles)


@dataclass(slots=True)
class Queue:
    """The waiting jobs of one GPU, a row each; a row that is free needs infinite memory.

    Attributes:
        uses, seconds, memory: [pools, rows].
        priority, queued, number: [rows].
        rows: by job.
        names: by row.
    """

    pools: int
    uses: NDArray[np.intp] = field(init=False)
    seconds: Floats = field(init=False)
    memory: Floats = field(init=False)
    priority: Floats = field(init=False)
    queued: Floats = field(init=False)
    number: Floats = field(init=False)
    rows: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _came: int = 0

    def __post_init__(self) -> None:
        self._allot(_FIRST_ROWS)

    def _allot(self, rows: int) -> None:
        old = len(self.names)
        shapes = {"uses": 0, "seconds": math.inf, "memory": math.inf}
        for name, empty in shapes.items():
            fresh = np.full((self.pools, rows), empty)
            if old:
                fresh[:, :old] = getattr(self, name)[:, :old]
            setattr(self, name, fresh)
        for name in ("priority", "queued", "number"):
            column = np.zeros(rows)
            if old:
                column[:old] = getattr(self, name)[:old]
            setattr(self, name, column)

    def __len__(self) -> int:
        """Rows that are or were in use."""
        return len(self.names)

    def add(self, job: Job, uses: list[int], seconds: list[float], memory: list[float]) -> int:
        """A row for a job."""
        if self._free:
            row = self._free.pop()
            self.names[row] = job.id
        else:
            row = len(self.names)
            if row == self.memory.shape[1]:
                self._allot(2 * row)
            self.names.append(job.id)
        self.rows[job.id] = row
        self.uses[:, row], self.seconds[:, row], self.memory[:, row] = uses, seconds, memory
        self.priority[row], self.queued[row] = job.spec.priority, job.queued_at
        self._came += 1
        self.number[row] = self._came
        return row

    def drop(self, job: str) -> None:
        """Free the row of a job, if it has one."""
        row = self.rows.pop(job, None)
        if row is not None:
            self.memory[:, row] = math.inf
            self._free.append(row)


class Fleet:
    """The pools, the queue, and what has to be looked at.

    Args:
        node: the machine.
        margin: what is booked on a GPU, times a job's memory.

    Attributes:
        running: by job.
        gangs: waiting jobs of several GPUs, in the order in which they came.
        lengths: of the gangs, seconds alone where they are fastest.
        named: waiting jobs that ask for one GPU by its id.
        waiting: all waiting jobs that are planned here.
        others: those that are not.
        dirty: devices that have changed: (pool, device).
        fresh: waiting jobs that have not been looked at.
        plans: how many plans were made from it.
    """

    def __init__(self, node: Node, margin: float) -> None:
        self.node, self.margin = node, margin
        self.uses = Uses()
        by_kind: dict[tuple[str, str, int], list[Device]] = {}
        for device in node.devices:
            if device.kind != CPU:
                key = device.kind, device.sharing, device.memory
                by_kind.setdefault(key, []).append(device)
        self.pools = [Pool(devices, self.uses) for devices in by_kind.values()]
        self.where = {
            device.id: (p, d)
            for p, pool in enumerate(self.pools)
            for d, device in enumerate(pool.devices)
        }
        self.on: dict[tuple[int, int], list[str]] = {at: [] for at in self.where.values()}
        self.queue = Queue(len(self.pools))
        self.running: dict[str, Running] = {}
        self.gangs: dict[str, Job] = {}
        self.named: dict[str, Job] = {}
        self.lengths: dict[str, float] = {}
        self.others: dict[str, Job] = {}
        self.waiting: dict[str, Job] = {}
        self.dirty: dict[tuple[int, int], None] = dict.fromkeys(self.where.values())
        self.fresh: dict[str, None] = {}
        self.by_completion = False
        self.all_again = False
        self.gangs_running = 0
        self.plans = 0

    # --- what has changed -------------------------------------------------------------------

    def sync(self, snapshot: Snapshot, changed: Iterable[str] | None) -> None:
        """Take in these jobs, or all of them."""
        if changed is None:
            for job in snapshot.active:
                self.take(job, snapshot.now)
            for job in snapshot.pending:
                self.take(job, snapshot.now)
        else:
            jobs = snapshot.jobs
            waiting = []
            for name in changed:  # ends first: they make room
                job = jobs[name]
                if isinstance(job.state, Pending):
                    waiting.append(job)
                else:
                    self.take(job, snapshot.now)
            for job in sorted(waiting, key=lambda job: (job.queued_at, job.id)):
                if _is_ready(job, snapshot):
                    self.take(job, snapshot.now)
                else:
                    self._forget(job.id, snapshot.now)
        for pool in self.pools:
            pool.keep_up()

    def take(self, job: Job, now: float) -> None:
        """What has become of a job."""
        if isinstance(job.state, Active):
            placement, known = placement_of(job), self.running.get(job.id)
            if known is None or known.is_another(placement, job.profiles):
                self._forget(job.id, now)
                self.start(job, placement, now)
            return
        self._forget(job.id, now)
        if isinstance(job.state, Pending):
            self._wait(job)

    def _forget(self, job: str, now: float) -> None:
        self.queue.drop(job)
        for table in (self.waiting, self.gangs, self.lengths, self.named, self.others, self.fresh):
            table.pop(job, None)
        gone = self.running.pop(job, None)
        if gone is None:
            return
        pool = self.pools[gone.pool]
        self.gangs_running -= len(gone.devices) > 1
        for device in gone.devices:
            at = gone.pool, device
            self.on[at].remove(job)
            pool.free[device] += self._booked(gone, device)
            pool.places[device] += 1
            self._settle(at, now)
            self.dirty[at] = None

    def start(self, job: Job, placement: Placement, now: float) -> None:
        """A job is on its devices."""
        self.queue.drop(job.id)
        for table in (self.waiting, self.gangs, self.lengths, self.named, self.fresh):
            table.pop(job.id, None)
        found = [self.where[device] for device in placement.devices if device in self.where]
        if not found:
            return
        p = found[0][0]
        pool = self.pools[p]
        seconds = self._seconds(job, pool)
        record = Running(
            placement=placement,
            profiles=job.profiles,
            pool=p,
            devices=tuple(device for _, device in found),
            use=self.use_of(job, pool),
            kind=kind_of(job),
            seconds=seconds,
            left=_left(job),
            since=now,
        )
        self.running[job.id] = record
        self.gangs_running += len(record.devices) > 1
        for pool_ in self.pools:
            pool_.keep_up()
        for device in record.devices:
            self.on[p, device].append(job.id)
            pool.free[device] -= self._booked(record, device)
            pool.places[device] -= 1
            self._settle((p, device), now)

    def _booked(self, record: Running, device: int) -> float:
        whole = len(record.devices) > 1
        return float(
            self.pools[record.pool].devices[device].memory
            if whole
            else record.placement.device_memory
        )

    def _settle(self, at: tuple[int, int], now: float) -> None:
        """The company of a device is another: what was done, the new rates, the expected end."""
        pool, members = self.pools[at[0]], [self.running[name] for name in self.on[at]]
        state = tuple(sorted(member.use for member in members))
        end = now
        if members:
            rates = pool.rates([member.use for member in members])
            for member, rate in zip(members, rates, strict=True):
                member.left -= (now - member.since) * member.rate / member.seconds
                member.since, member.rate = now, rate
                end = max(end, now + max(0.0, member.left) * member.seconds / rate)
        pool.ends[at[1]] = end
        pool.set_state(at[1], state)

    def _wait(self, job: Job) -> None:
        """A job joins the queue it belongs to."""
        self.by_completion = self.by_completion or job.queued_at > BATCH_SECONDS
        devices = devices_of_kinds(job, self.pools, self.node)
        if not any(devices):
            self.others[job.id] = job
            return
        self.waiting[job.id] = job
        for pool in self.pools:  # so that pools keep up with it
            self.use_of(job, pool)
        if (job.spec.gpus or 1) > 1:
            self.gangs[job.id] = job
            self.lengths[job.id] = self.seconds_of(job)
            self.fresh[job.id] = None
            return
        if job.spec.device not in ("auto", "gpu"):
            self.named[job.id] = job
            self.fresh[job.id] = None
            return
        uses, seconds, memory = [], [], []
        for pool, may in zip(self.pools, devices, strict=True):
            uses.append(self.use_of(job, pool) if may else 0)
            seconds.append(self._seconds(job, pool) if may else math.inf)
            need = float(booked_memory(job, pool.devices[0], self.margin)) if may else math.inf
            memory.append(need)
        self.queue.add(job, uses, seconds, memory)
        self.fresh[job.id] = None

    @property
    def has_gangs(self) -> bool:
        """Whether jobs of several GPUs wait or run."""
        return bool(self.gangs) or self.gangs_running > 0

    def use_of(self, job: Job, pool: Pool) -> int:
        """The number of a job's use of a pool."""
        return self.uses.number(gpu_use(profile_on(job, pool.kind)))

    def seconds_of(self, job: Job) -> float:
        """A job's time alone where it is fastest."""
        return min(self._seconds(job, pool) for pool in self.pools if pool.kind in job.profiles)

    def _seconds(self, job: Job, pool: Pool) -> float:
        seconds = seconds_on(job, pool.kind)
        return seconds if 0.0 < seconds < math.inf else _UNKNOWN_SECONDS


def devices_of_kinds(job: Job, pools: Sequence[Pool], node: Node) -> list[bool]:
    """Per pool whether a job may use it and has a profile there."""
    if job.spec.device in ("auto", "gpu") or job.spec.gpus:
        return [pool.kind in job.profiles for pool in pools]
    allowed = {device.id for device in devices_of(job, node)}
    return [
        pool.kind in job.profiles and any(device.id in allowed for device in pool.devices)
        for pool in pools
    ]


def _is_ready(job: Job, snapshot: Snapshot) -> bool:
    """Whether a waiting job only needs room."""
    assert isinstance(job.state, Pending)
    if job.state.not_before > snapshot.now:
        return False
    return all(
        name in snapshot.jobs and snapshot.jobs[name].state.name == StateName.SUCCEEDED
        for name in job.spec.after
    )


def _left(job: Job) -> float:
    """The share of its work that a running job has left, as far as it has told."""
    progress = job.progress
    if progress is None or not progress.total_steps:
        return 1.0
    return max(0.01, 1.0 - progress.step / progress.total_steps)
