"""The weighted rule for many GPUs or many waiting jobs, where looking ahead would cost too much.

A job starts where it adds the most to the predicted sum of rates, times its weight: where jobs
arrive over time the shorter one, the more so the longer it has waited; else the one with more work.
Only devices that have changed and jobs that are new are looked at. A job of several GPUs takes them
whole; the one that has waited longest reserves those that will be free first, and so does a job of
one GPU that has waited for more than twice its length. Others start there only if they are expected
to end before (EASY backfilling: Lifka 1995).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rmixer.interference import company_key
from rmixer.model import Job, Placement, Profile, Reason
from rmixer.policies.base import Plan
from rmixer.policies.fleet import Fleet
from rmixer.policies.live import kind_of
from rmixer.policies.pools import Floats, Pool
from rmixer.policies.traits import booked_memory, cores_of, profile_on

#: With more devices than this to be looked at, jobs are taken in order, each to its best device.
_FEW_DEVICES = 32
#: Where jobs of several GPUs run, or wait, a device that has jobs counts for so much more: one that
#: is empty is worth a whole rate to them.
_TOGETHER, _TOGETHER_NOW = 0.5, 1.0
#: A job that adds less than this to the sum of rates waits.
_LEAST_GAIN = 0.1
#: A job that has waited so many times its length reserves a device.
_PATIENCE = 2.0
#: How much the use of a device counts in a job's work.
_THERE = 0.15


@dataclass(frozen=True, slots=True)
class Kept:
    """The memo: the fleet, at which of its plans it is valid, and the reservation."""

    fleet: Fleet
    plans: int
    reservation: Reservation | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices of a pool that are kept for a job, from a time on."""

    job: str
    pool: int
    devices: frozenset[int]
    at: float


def decide(plan: Plan, *, margin: float, floor: float) -> Fleet:
    """Start what the rule starts, and say of new jobs why they wait.

    Args:
        plan: with the bookings so far.
        margin: what is booked on a GPU, times a job's memory.
        floor: no job is placed where it, or another, would be slower than this.

    Returns:
        What is known of the cluster; ``others`` are jobs that it does not plan.
    """
    snapshot, memo = plan.snapshot, plan.snapshot.memo
    kept = memo if isinstance(memo, Kept) and memo.plans == memo.fleet.plans else None
    if kept is None or snapshot.changed is None or kept.fleet.node is not snapshot.node:
        fleet, reservation = Fleet(snapshot.node, margin), None
        fleet.sync(snapshot, None)
    else:
        fleet, reservation = kept.fleet, kept.reservation
        fleet.sync(snapshot, snapshot.changed)
    rule = _Rule(plan, fleet, floor, reservation)
    rule.run()
    fleet.plans += 1
    plan.memo = Kept(fleet, fleet.plans, rule.reservation)
    return fleet


class _Rule:
    """One plan."""

    def __init__(
        self, plan: Plan, fleet: Fleet, floor: float, reservation: Reservation | None
    ) -> None:
        self.plan, self.fleet, self.floor = plan, fleet, floor
        self.reservation = reservation
        self.now = plan.snapshot.now
        self.refused: set[str] = set()

    def run(self) -> None:
        fleet = self.fleet
        if self.reservation is not None and self.reservation.job not in fleet.waiting:
            self._lift()
        self._start_gangs()
        self._reserve()
        self._start_kept()
        self._start_named()
        dirty, fresh = list(fleet.dirty), list(fleet.fresh)
        fleet.dirty.clear()
        fleet.fresh.clear()
        if fleet.all_again or len(dirty) > _FEW_DEVICES:
            fleet.all_again = False
            self._fill_in_order(list(fleet.queue.rows))
        else:
            self._fill_devices(dirty)
            self._fill_in_order([job for job in fresh if job in fleet.queue.rows])
        self._explain(fresh)

    # --- jobs of one GPU --------------------------------------------------------------------

    def _fill_devices(self, dirty: Sequence[tuple[int, int]]) -> None:
        """The best job for one of these devices, then the next, until none is left."""
        best = {at: self._best_row(*at) for at in dirty}
        while True:
            able = {at: found for at, found in best.items() if found is not None}
            if not able:
                return
            at = max(able, key=lambda one: (able[one][1:], (-one[0], -one[1])))
            row = able[at][0]
            name = self.fleet.queue.names[row]
            if not self._start(name, *at):
                self.refused.add(name)
            for other, found in best.items():
                if other == at or (found is not None and found[0] == row):
                    best[other] = self._best_row(*other)

    def _best_row(self, p: int, d: int) -> tuple[int, float, float] | None:
        """The row that gains most there: (row, priority, score)."""
        queue, pool = self.fleet.queue, self.fleet.pools[p]
        if pool.places[d] < 1 or not queue.rows:
            return None
        rows = np.flatnonzero(queue.memory[p, : len(queue)] <= pool.free[d])
        if not len(rows):
            return None
        uses = queue.uses[p, rows]
        gain = pool.gain[d, uses]
        able = (gain >= _LEAST_GAIN) & (pool.least[d, uses] >= self.floor)
        until = self._until(p, d)
        if until < math.inf:  # alone, or those that are there would end later
            able &= pool.count[d] == 0
            able &= self.now + queue.seconds[p, rows] <= until
        if self.refused:
            able &= np.array([queue.names[row] not in self.refused for row in rows])
        rows, gain = rows[able], gain[able]
        if not len(rows):
            return None
        score = gain * self._weight(p, rows)
        priority = queue.priority[rows]
        chosen = np.lexsort((queue.number[rows], -score, -priority))[0]
        return int(rows[chosen]), float(priority[chosen]), float(score[chosen])

    def _weight(self, p: int, rows: NDArray[np.intp]) -> Floats:
        """What a gain in rate is worth, by row."""
        queue = self.fleet.queue
        seconds = queue.seconds[p, rows]
        if self.fleet.by_completion:
            weight: Floats = (1.0 + (self.now - queue.queued[rows]) / seconds) / seconds
            return weight
        demand = self.fleet.uses.table[queue.uses[p, rows], 0]
        work: Floats = seconds * (demand + _THERE)
        return work

    def _fill_in_order(self, jobs: Sequence[str]) -> None:
        """Each to the device where it gains most, the weightiest first."""
        queue = self.fleet.queue
        if len(jobs) <= 1:
            for job in jobs:
                self._start_somewhere(queue.rows[job])
            return
        rows = np.array([queue.rows[job] for job in jobs])
        pools = range(len(self.fleet.pools))
        weight = np.max(
            [np.where(queue.memory[p, rows] < math.inf, self._weight(p, rows), 0.0) for p in pools],
            axis=0,
        )
        order = np.lexsort((queue.number[rows], -weight, -queue.priority[rows]))
        hopeless: set[tuple[object, ...]] = set()
        for row in rows[order]:
            key = (*queue.uses[:, row], *queue.memory[:, row], self._short(row))
            if key in hopeless:
                continue
            if not self._start_somewhere(int(row)):
                hopeless.add(key)

    def _start_somewhere(self, row: int) -> bool:
        """Where a job gains most, of the devices where its company is not vetoed."""
        name, refused = self.fleet.queue.names[row], set[tuple[int, int]]()
        while (at := self._best_device(row, refused)) is not None:
            if not self._is_vetoed(self._job(name), *at):
                return self._start(name, *at)
            refused.add(at)
        return False

    def _short(self, row: int) -> bool:
        """Whether a job is expected to end before a reservation begins."""
        kept = self.reservation
        if kept is None:
            return False
        return bool(self.now + self.fleet.queue.seconds[kept.pool, row] <= kept.at)

    def _best_device(self, row: int, refused: set[tuple[int, int]]) -> tuple[int, int] | None:
        queue, best, most = self.fleet.queue, None, 0.0
        together = _TOGETHER if self.fleet.has_gangs else 0.0
        together = _TOGETHER_NOW if self.fleet.gangs else together
        for p, pool in enumerate(self.fleet.pools):
            need, use = queue.memory[p, row], queue.uses[p, row]
            if need == math.inf:
                continue
            gain = pool.gain[:, use]
            able = (pool.free >= need) & (pool.places >= 1) & (gain >= _LEAST_GAIN)
            able &= pool.least[:, use] >= self.floor
            kept = self.reservation
            if kept is not None and kept.pool == p:
                devices = list(kept.devices)
                able[devices] &= self._short(row) & (pool.count[devices] == 0)
            able[[d for q, d in refused if q == p]] = False
            if not able.any():
                continue
            worth = gain + together * (pool.count > 0) if together else gain
            device = int(np.argmax(np.where(able, worth, -1.0)))
            value = float(gain[device]) / queue.seconds[p, row]
            if value > most:
                best, most = (p, device), value
        return best

    def _start(self, name: str, p: int, d: int) -> bool:
        """Start a job there, unless the host has no room or the company is vetoed."""
        job, pool = self._job(name), self.fleet.pools[p]
        placement = self._placement(job, pool, [d])
        if self._is_vetoed(job, p, d):
            return False
        if self.plan.lacks(placement) is not None:
            self.fleet.all_again = True  # what stands in its way is not this device
            return False
        self.plan.start(job, placement)
        self.fleet.start(job, placement, self.now)
        return True

    def _is_vetoed(self, job: Job, p: int, d: int) -> bool:
        vetoed = self.plan.snapshot.companies.vetoed
        if not vetoed:
            return False
        company = [self.fleet.running[name].kind for name in self.fleet.on[p, d]]
        return company_key(self.fleet.pools[p].kind, [*company, kind_of(job)]) in vetoed

    def _job(self, name: str) -> Job:
        return self.fleet.waiting[name]

    def _placement(self, job: Job, pool: Pool, devices: Sequence[int]) -> Placement:
        profile: Profile | None = profile_on(job, pool.kind)
        first = pool.devices[devices[0]]
        memory = booked_memory(job, first, self.fleet.margin)
        return Placement(
            device=first.id,
            others=tuple(pool.devices[d].id for d in devices[1:]),
            threads=job.spec.threads or (profile.threads if profile else None),
            cpu=cores_of(profile),
            memory=min(job.estimate.memory, self.plan.snapshot.node.memory),
            device_memory=first.memory if len(devices) > 1 else memory,
        )

    def _start_named(self) -> None:
        """Those that ask for one device."""
        for name, job in list(self.fleet.named.items()):
            p, d = self.fleet.where[job.spec.device]
            if name not in self.fleet.fresh and (p, d) not in self.fleet.dirty:
                continue
            pool = self.fleet.pools[p]
            use = self.fleet.use_of(job, pool)
            fits = booked_memory(job, pool.devices[d], self.fleet.margin) <= pool.free[d]
            room = pool.places[d] >= 1 and self._until(p, d) == math.inf
            if fits and room and pool.least[d, use] >= self.floor:
                self._start(name, p, d)

    # --- jobs of several GPUs, and reservations ---------------------------------------------

    def _until(self, p: int, d: int) -> float:
        """Until when a device may be used by others than the one that it is kept for."""
        kept = self.reservation
        return kept.at if kept is not None and kept.pool == p and d in kept.devices else math.inf

    def _start_gangs(self) -> None:
        """The one with the reservation first, then the weightiest that fit beside it."""
        fleet, kept = self.fleet, self.reservation
        if not fleet.gangs:
            return
        if kept is not None and kept.job in fleet.gangs and self._start_gang(kept.job):
            self._lift()
        emptied = any(fleet.pools[p].count[d] == 0 for p, d in fleet.dirty)
        able = self._gangs_that_fit(list(fleet.gangs if emptied else fleet.fresh))
        for name in sorted(able, key=lambda name: self._rank(fleet.gangs[name])):
            self._start_gang(name)

    def _gangs_that_fit(self, names: Sequence[str]) -> list[str]:
        """Those for which enough devices are empty, as far as can be seen at once."""
        fleet, kept = self.fleet, self.reservation
        empty = max(len(pool.empty) for pool in fleet.pools)
        if not empty:
            return []
        room = max(len(self._free_devices(p, math.inf)) for p in range(len(fleet.pools)))
        until = math.inf if kept is None else kept.at
        found = []
        for name in names:
            job = fleet.gangs.get(name)
            if job is None:
                continue
            count = job.spec.gpus or 1
            soon = count <= empty and self.now + fleet.lengths[name] <= until
            if count <= room or soon:
                found.append(name)
        return found

    def _rank(self, job: Job) -> tuple[float, float, float]:
        seconds = self.fleet.lengths[job.id]
        weight = 1.0 + max(0.0, self.now - job.queued_at) / seconds
        each = seconds * (job.spec.gpus or 1)
        value = weight / each if self.fleet.by_completion else each
        return -job.spec.priority, -value, job.queued_at

    def _start_gang(self, name: str) -> bool:
        job = self.fleet.gangs[name]
        count = job.spec.gpus or 1
        for p, pool in enumerate(self.fleet.pools):
            if pool.kind not in job.profiles:
                continue
            mine = self.reservation is not None and self.reservation.job == name
            ends = self.now if mine else self.now + self.fleet.lengths[name]
            free = self._free_devices(p, ends)
            if len(free) < count:
                continue
            placement = self._placement(job, pool, free[:count])
            if self.plan.lacks(placement) is None:
                self.plan.start(job, placement)
                self.fleet.start(job, placement, self.now)
                return True
        return False

    def _free_devices(self, p: int, ends: float) -> list[int]:
        """Empty devices, without those that are kept for another before these end."""
        kept = self.reservation
        empty = self.fleet.pools[p].empty
        if kept is None or kept.pool != p or ends <= kept.at:
            found: list[int] = empty.tolist()
            return found
        return [d for d in empty.tolist() if d not in kept.devices]

    def _reserve(self) -> None:
        """Keep devices for the job that has waited longest; those kept before are free for all."""
        before = self.reservation
        if before is not None and not self.fleet.dirty:
            return  # everything is as it was
        self._choose_reservation()
        after = self.reservation
        if before is not None and after is not None:
            let_go = {(before.pool, d) for d in before.devices}
            let_go -= {(after.pool, d) for d in after.devices}
            self.fleet.dirty.update(dict.fromkeys(sorted(let_go)))

    def _start_kept(self) -> None:
        """A job of one GPU starts where it is kept for, as soon as it fits."""
        kept = self.reservation
        row = self.fleet.queue.rows.get(kept.job) if kept is not None else None
        if kept is None or row is None:
            return
        (device,) = kept.devices
        pool, use = self.fleet.pools[kept.pool], self.fleet.queue.uses[kept.pool, row]
        fits = bool(self.fleet.queue.memory[kept.pool, row] <= pool.free[device])
        room = bool(pool.places[device] >= 1 and pool.least[device, use] >= self.floor)
        if fits and room and self._start(kept.job, kept.pool, device):
            self._lift()

    def _choose_reservation(self) -> None:
        if self.reservation is not None and self.reservation.job in self.fleet.gangs:
            self._keep_for(self.fleet.gangs[self.reservation.job])
        elif self.reservation is None and self.fleet.gangs:
            first = min(
                self.fleet.gangs.values(), key=lambda job: (-job.spec.priority, job.queued_at)
            )
            self._keep_for(first)
        elif self.reservation is None:
            self._reserve_for_one()

    def _keep_for(self, job: Job) -> None:
        """The devices that will be free first."""
        count = job.spec.gpus or 1
        for p, pool in enumerate(self.fleet.pools):
            able = np.flatnonzero(pool.open)
            if pool.kind in job.profiles and len(able) >= count:
                ends = np.where(pool.count[able] > 0, pool.ends[able], -math.inf)
                first = able[np.argsort(ends, kind="stable")[:count]]
                at = max(self.now, float(pool.ends[first].max()))
                if self.reservation is not None and self.reservation.job == job.id:
                    at = min(at, self.reservation.at)  # it is not put off
                self.reservation = Reservation(job.id, p, frozenset(map(int, first)), at)
                return

    def _reserve_for_one(self) -> None:
        """For a job of one GPU that has waited too long."""
        queue = self.fleet.queue
        if not self.fleet.by_completion or not queue.rows:
            return
        seconds = queue.seconds[:, : len(queue)].min(axis=0)
        waited = (self.now - queue.queued[: len(queue)]) / seconds
        held = np.isfinite(queue.memory[:, : len(queue)]).any(axis=0)
        late = np.flatnonzero(held & (waited > _PATIENCE))
        if not len(late):
            return
        row = int(late[np.argmin(queue.queued[late])])
        for p, pool in enumerate(self.fleet.pools):
            able = np.flatnonzero(pool.open)
            if queue.memory[p, row] < math.inf and len(able):
                device = int(able[np.argmin(pool.ends[able])])
                at = max(self.now, float(pool.ends[device]))
                self.reservation = Reservation(queue.names[row], p, frozenset([device]), at)
                return

    def _lift(self) -> None:
        """What was kept is free for all."""
        if self.reservation is not None:
            self.fleet.dirty.update(
                dict.fromkeys((self.reservation.pool, d) for d in self.reservation.devices)
            )
        self.reservation = None

    # --- reasons ----------------------------------------------------------------------------

    def _explain(self, fresh: Sequence[str]) -> None:
        """Why jobs that are new do not start now."""
        for name in fresh:
            job = self.fleet.waiting.get(name)
            if job is not None:
                self.plan.wait(job, self._reason(name, job))

    def _reason(self, name: str, job: Job) -> Reason:
        queue, row = self.fleet.queue, self.fleet.queue.rows.get(name)
        kept = self.reservation
        if row is None:
            count = job.spec.gpus or 1
            free = max(len(pool.empty) for pool in self.fleet.pools)
            wanted = job.spec.device if count == 1 else f"{count} whole GPUs, {free} are free"
            return Reason("Priority", detail=f"waits for {wanted}")
        p = int(np.argmin(queue.seconds[:, row]))
        pool, need = self.fleet.pools[p], queue.memory[p, row]
        if need > pool.free.max():
            return Reason("GpuMemory", need, float(pool.free.max()))
        able = (pool.free >= need) & (pool.places >= 1)
        least = float(pool.least[able, queue.uses[p, row]].max(initial=0.0))
        if able.any() and least < self.floor:
            return Reason("Interference", least, self.floor)
        first = "others" if kept is None or kept.job == name else self._job(kept.job).spec.name
        return Reason("Priority", detail=f"{first} first")
