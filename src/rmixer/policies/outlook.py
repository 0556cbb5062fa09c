"""What a rule would do with the jobs at hand: the look-ahead's own simulation of a node.

Plain Python on small lists: one simulated plan of 72 jobs takes milliseconds. The rates are those
of the network for one station per GPU, solved by Newton's method and kept per set of jobs. A job on
the CPU runs at rate 1 there; its places are limited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rmixer.interference import Correction, company_key

#: What a job does on a device: demand of the station, and granularity.
Use = tuple[float, float]

_STEPS = 40
#: Above this slope the plain iteration is taken.
_FLAT = -0.1
_DONE = 1e-9


@lru_cache(maxsize=200_000)
def rates_of(uses: tuple[Use, ...], overhead: float) -> tuple[float, ...]:
    """The rates of jobs on one station, in the order given; see `rmixer.interference`.

    With S = sum of Q * s each queue is a root of D Q^2 - (1 + D A + D) Q + D (1 + A) = 0 with
    A = S / s, so that a device is one equation in S. The overhead of co-runners is taken after it.
    """
    others = 1.0 + overhead * (len(uses) - 1)
    if len(uses) == 1:
        return (1.0,)
    total = sum(d * s for d, s in uses)
    for _ in range(_STEPS):
        rest, slope = -total, -1.0
        for d, s in uses:
            a = total / s
            b = 1.0 + d * a + d
            root = math.sqrt(max(b * b - 4.0 * d * d * (1.0 + a), 1e-18))
            queue = 2.0 * d * (1.0 + a) / (b + root)
            rest += queue * s
            slope += (d - d * queue) / root
        step = rest / slope if slope < _FLAT else -rest  # where Newton would leave the rails
        total -= step
        if abs(step) < 1e-5 * total:
            break
    found = []
    for d, s in uses:
        a = total / s
        b = 1.0 + d * a + d
        root = math.sqrt(max(b * b - 4.0 * d * d * (1.0 + a), 1e-18))
        waiting = max(0.0, a - 2.0 * d * (1.0 + a) / (b + root))
        found.append(1.0 / ((1.0 + d * waiting) * others))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Task:
    """A job to be planned, as numbers.

    Attributes:
        id: the job.
        seconds: per device its time alone from the beginning, infinite where it cannot run.
        uses: per device what it does there.
        memory: per device what it books there, bytes.
        cpu: cores' worth that it books.
        host_memory: host memory that it books, bytes.
        priority: higher goes first.
        weight: of its completion, where jobs arrive over time.
        left: the share of its work that is left.
        device: where it runs, or None.
        kind: what was measured of other jobs of this kind holds for it; its id if empty.
        held: where it stands still with its memory: it waits for that device only.
    """

    id: str
    seconds: tuple[float, ...]
    uses: tuple[Use, ...]
    memory: tuple[int, ...]
    cpu: float = 0.0
    host_memory: int = 0
    priority: int = 0
    weight: float = 1.0
    left: float = 1.0
    device: int | None = None
    kind: str = ""
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A device of the node.

    Attributes:
        memory: what may be booked there, bytes; infinite on the CPU.
        places: at most so many jobs.
        is_cpu: whether it is the CPU.
        overhead: what each co-runner costs.
        kind: of device.
        is_barred: nothing is started there before those have gone on that stand still there.
    """

    memory: float
    places: float
    is_cpu: bool = False
    overhead: float = 0.0
    kind: str = ""
    is_barred: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """How the waiting jobs are taken.

    Attributes:
        order: of the tasks; each goes to the GPU that fits and has the least work left.
        places: per device, at most so many jobs.
        pinned: tasks that wait for one device.
        target: jobs may go to the CPU if they end before this; 0: none does.
    """

    order: tuple[int, ...]
    places: tuple[float, ...]
    pinned: tuple[tuple[int, int], ...] = ()
    target: float = 0.0


@dataclass(slots=True)
class Course:
    """What a rule leads to.

    Attributes:
        value: the makespan, or the weighted sum of completions; infinite where it was cut off.
        makespan: when the last job ends, seconds from now.
        starts: what starts now, in order: (task, device).
        ends: per task when it ends, seconds from now.
        begins: per task when and where it starts.
    """

    value: float
    makespan: float
    starts: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)
    begins: dict[int, tuple[float, int]] = field(default_factory=dict)


class Outlook:
    """The tasks and devices of a node now; `follow` says what a rule leads to.

    Args:
        tasks: running and waiting jobs.
        places: the devices.
        cores: cores' worth that may be booked.
        host_memory: host memory that may be booked, bytes.
        floor: no job is placed where it, or another, would be slower than this.
        by_completion: value the weighted sum of completions instead of the makespan.
        correction: of the rates, by what was measured.
        vetoed: companies that are not put together: the device's kind, then those of the jobs.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        places: Sequence[Place],
        *,
        cores: float,
        host_memory: float,
        floor: float = 0.25,
        by_completion: bool = False,
        correction: Correction | None = None,
        vetoed: frozenset[tuple[str, ...]] = frozenset(),
    ) -> None:
        self.tasks, self.places = list(tasks), list(places)
        self.cores, self.host_memory, self.floor = cores, host_memory, floor
        self.by_completion = by_completion
        self.running = [i for i, task in enumerate(tasks) if task.device is not None]
        self.waiting = [i for i, task in enumerate(tasks) if task.device is None]
        self.gpus = [d for d, place in enumerate(places) if not place.is_cpu]
        self.cpus = [d for d, place in enumerate(places) if place.is_cpu]
        self.simulated = 0
        self._vetoed = vetoed
        self._kinds = [task.kind or task.id for task in tasks]
        self._correction = correction if correction is not None and correction.effects else None
        self.alike = self._alike()

    def _alike(self) -> list[int | None]:
        """Per task a number; where a task does not fit, none of the same number does."""
        if self._vetoed or self._correction is not None:
            return [None] * len(self.tasks)  # there the kind counts as well
        numbers: dict[object, int] = {}
        found: list[int | None] = []
        for task in self.tasks:
            able = tuple(seconds < math.inf for seconds in task.seconds)
            key = (task.uses, task.memory, task.cpu, task.host_memory, able)
            found.append(None if task.held is not None else numbers.setdefault(key, len(numbers)))
        return found

    def follow(self, rule: Rule, limit: float = math.inf) -> Course:
        """Simulate a rule; cut off where its value is sure to be above the limit."""
        self.simulated += 1
        return _Run(self, rule).to_the_end(limit)

    def may_meet(self, device: int, members: Sequence[int], i: int) -> bool:
        """Whether a task may join: neither those there nor all of them are vetoed."""
        if not self._vetoed or not members:
            return True
        there = [self._kinds[k] for k in members]
        kind = self.places[device].kind
        return not (
            company_key(kind, there) in self._vetoed
            or company_key(kind, [*there, self._kinds[i]]) in self._vetoed
        )

    def speeds(self, device: int, members: Sequence[int]) -> list[float]:
        """Per member the share of its work there that it does in a second."""
        place = self.places[device]
        if place.is_cpu:
            return [1.0 / self.tasks[i].seconds[device] for i in members]
        rates = self.rates(device, members)
        return [
            rate / self.tasks[i].seconds[device] for rate, i in zip(rates, members, strict=True)
        ]

    def rates(self, device: int, members: Sequence[int]) -> list[float]:
        """Per member its rate on that device, corrected by what was measured."""
        predicted = self._predicted(device, members)
        if self._correction is None or len(members) <= 1:
            return predicted
        factors = self._correction.factors([self._kinds[i] for i in members])
        return [min(1.0, p * factor) for p, factor in zip(predicted, factors, strict=True)]

    def _predicted(self, device: int, members: Sequence[int]) -> list[float]:
        """Per member its rate by the network."""
        uses = [self.tasks[i].uses[device] for i in members]
        ranked = sorted(range(len(uses)), key=uses.__getitem__)
        found = rates_of(tuple(uses[k] for k in ranked), self.places[device].overhead)
        rates = [0.0] * len(uses)
        for k, rate in zip(ranked, found, strict=True):
            rates[k] = rate
        return rates


class _Run:
    """One simulated plan."""

    def __init__(self, outlook: Outlook, rule: Rule) -> None:
        self.look, self.rule = outlook, rule
        self.now = 0.0
        self.left = {i: task.left for i, task in enumerate(outlook.tasks)}
        self.on: list[list[int]] = [[] for _ in outlook.places]
        self.speed: dict[int, float] = {}
        self.memory = [place.memory for place in outlook.places]
        self.cores, self.host = outlook.cores, outlook.host_memory
        self.pinned = dict(rule.pinned)
        self.pending = [i for i in rule.order if outlook.tasks[i].device is None]
        self.course = Course(math.inf, math.inf)
        self.value = 0.0
        self.standing = [0] * len(outlook.places)
        for i in outlook.waiting:
            if (held := outlook.tasks[i].held) is not None:
                self.standing[held] += 1
        for i in outlook.running:
            device = outlook.tasks[i].device
            assert device is not None
            self._book(i, device)
        for device in range(len(self.on)):
            self._set_speeds(device)

    def to_the_end(self, limit: float) -> Course:
        """Events until nobody is left."""
        self._fill(self.look.gpus)
        while self.speed:
            step = min(self.left[i] / speed for i, speed in self.speed.items())
            self.now += step
            if self.now > limit and not self.look.by_completion:
                return self.course
            ended = []
            for i, speed in self.speed.items():
                self.left[i] -= step * speed
                if self.left[i] <= _DONE:
                    ended.append(i)
            freed = {self._end(i) for i in ended}
            if self.value > limit:
                return self.course
            self._fill([d for d in self.look.gpus if d in freed])
            for device in freed:
                self._set_speeds(device)
        if self.pending:
            return self.course  # somebody fits nowhere by this rule
        self.course.makespan = self.now
        self.course.value = self.value if self.look.by_completion else self.now
        return self.course

    def _end(self, i: int) -> int:
        task = self.look.tasks[i]
        del self.speed[i]
        device = next(d for d, members in enumerate(self.on) if i in members)
        self.on[device].remove(i)
        self.memory[device] += task.memory[device]
        self.cores += task.cpu
        self.host += task.host_memory
        self.course.ends[i] = self.now
        if self.look.by_completion:
            self.value += task.weight * self.now
        return device

    def _book(self, i: int, device: int) -> None:
        task = self.look.tasks[i]
        self.on[device].append(i)
        self.cores -= task.cpu
        if task.held is not None:  # its memory is booked
            self.standing[device] -= 1
            return
        self.memory[device] -= task.memory[device]
        self.host -= task.host_memory

    def _set_speeds(self, device: int) -> None:
        members = self.on[device]
        if members:
            self.speed.update(zip(members, self.look.speeds(device, members), strict=True))

    # --- who starts -------------------------------------------------------------------------

    def _fill(self, devices: Sequence[int]) -> None:
        """Start waiting jobs in the order of the rule, then on the CPU those that end in time."""
        changed = set()
        rest = []
        refused: set[int | None] = set()
        for i in self.pending:
            alike = None if i in self.pinned else self.look.alike[i]
            able = bool(devices) and (alike is None or alike not in refused)
            device = self._gpu_for(i, devices) if able else None
            if device is None:
                rest.append(i)
                refused.add(alike)
            else:
                self._start(i, device)
                changed.add(device)
        self.pending = rest
        if self.rule.target and self.pending:
            changed |= self._fill_cpu()
        for device in changed:
            self._set_speeds(device)

    def _start(self, i: int, device: int) -> None:
        self._book(i, device)
        self.course.begins[i] = (self.now, device)
        if self.now == 0.0:
            self.course.starts.append((i, device))

    def _gpu_for(self, i: int, devices: Sequence[int]) -> int | None:
        task = self.look.tasks[i]
        if task.cpu > self.cores + _DONE:
            return None
        if task.host_memory > self.host and task.held is None:
            return None
        only = self.pinned.get(i) if task.held is None else task.held
        best, least = None, math.inf
        for device in devices:
            if only is not None and device != only:
                continue
            if not self._has_memory(task, device) or task.seconds[device] == math.inf:
                continue
            members = self.on[device]
            if len(members) >= min(self.rule.places[device], self.look.places[device].places):
                continue
            if not self.look.may_meet(device, members, i):
                continue
            work = self._work(device)
            if work < least and self._above_floor(i, device, members):
                best, least = device, work
        return best

    def _has_memory(self, task: Task, device: int) -> bool:
        """Whether there is memory for it, and nobody before it who has waited for too long."""
        if task.held is not None:
            return True
        barred = self.look.places[device].is_barred and self.standing[device] > 0
        return not barred and task.memory[device] <= self.memory[device]

    def _above_floor(self, i: int, device: int, members: Sequence[int]) -> bool:
        if not members or self.look.floor <= 0:
            return True
        uses = [self.look.tasks[k].uses[device] for k in members]
        uses.append(self.look.tasks[i].uses[device])
        grains = sum(s for _, s in uses)
        worst = max(d * (grains - s) / s for d, s in uses)  # everybody always in front
        if worst * self.look.floor <= 1.0 - self.look.floor:
            return True
        return min(self.look.rates(device, [*members, i])) >= self.look.floor

    def _work(self, device: int) -> float:
        """The work of the station that is left there, seconds."""
        tasks = self.look.tasks
        return sum(
            self.left[i] * tasks[i].seconds[device] * (tasks[i].uses[device][0] + 0.02)
            for i in self.on[device]
        )

    def _fill_cpu(self) -> set[int]:
        """The jobs that relieve the GPUs most for their time on the CPU, if they end in time."""
        changed: set[int] = set()
        for device in self.look.cpus:
            place = self.look.places[device]
            while len(self.on[device]) < min(place.places, self.rule.places[device]):
                able = [i for i in self.pending if self._ends_in_time(i, device)]
                if not able:
                    break
                i = max(able, key=lambda i: self._relief(i, device))
                self.pending.remove(i)
                self._start(i, device)
                changed.add(device)
        return changed

    def _ends_in_time(self, i: int, device: int) -> bool:
        task = self.look.tasks[i]
        only = self.pinned.get(i) if task.held is None else task.held
        return (
            (only is None or only == device)
            and self.look.may_meet(device, self.on[device], i)
            and task.cpu <= self.cores + _DONE
            and task.host_memory <= self.host
            and self.now + task.seconds[device] <= self.rule.target
        )

    def _relief(self, i: int, device: int) -> float:
        task = self.look.tasks[i]
        gpu = min(
            (task.seconds[d] * (task.uses[d][0] + 0.05) for d in self.look.gpus
             if task.seconds[d] < math.inf), default=math.inf,
        )  # fmt: skip
        return gpu / task.seconds[device]
