"""Who waits, who runs and what is booked: kept up with every change of a job.

All of it follows from the jobs and the node; it is kept so that an event costs what it changes, and
not what there is. Waiting jobs are ready (nothing but room is missing), blocked (a predecessor has
not succeeded) or due at a time (a back-off).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import overload

from rmixer.model import Active, Job, Node, Pending, Reason, StateName
from rmixer.policies.base import never_fits
from rmixer.policies.ledger import Ledger


class Roster:
    """Indexes over the jobs of a run.

    Args:
        jobs: the jobs by id, in the order of submission; read, never written.
        node: the machine.

    Attributes:
        ledger: what the active jobs book.
        ready: waiting jobs that only need room.
        blocked: those that wait for a predecessor.
        due: those that were given a time before which they do not start.
        timed: active jobs that have a deadline, or are being stopped.
        changed: jobs that are new or another since this was last emptied.
        version: grows with every change.
        any_closed: whether no job may start on one of the devices now.
        unchecked: waiting ones among them, to be looked at once.
    """

    def __init__(self, jobs: Mapping[str, Job], node: Node) -> None:
        self._jobs = jobs
        self.version = 0
        self._numbers: dict[str, int] = {}
        self._pending = Ids(self._numbers)
        self._active = Ids(self._numbers)
        self.ready = Ids(self._numbers)
        self.blocked = Ids(self._numbers)
        self.due: dict[str, None] = {}
        self.timed: dict[str, None] = {}
        self.changed: dict[str, None] = {}
        self.unchecked: dict[str, None] = {}
        self._priorities: dict[str, None] = {}
        self._behind: dict[str, dict[str, None]] = {}
        self._waiting_of: dict[str, dict[str, None]] = {}
        self._known_of: dict[str, str] = {}
        self._too_large: dict[tuple[object, ...], Reason | None] = {}
        for job in jobs.values():
            self._enter(job)
        self.fit_to(node)

    def fit_to(self, node: Node) -> None:
        """The node is another one: everything has to be looked at again."""
        self.node, self.ledger = node, Ledger(node, self.active)
        self.any_closed = any(device.closed for device in node.devices)
        self._too_large.clear()
        self.check_all()
        self.changed = dict.fromkeys(self._jobs)
        self.version += 1

    def check_all(self) -> None:
        """Look at every waiting job again."""
        self.unchecked.update(dict.fromkeys(self._pending))

    def put(self, job: Job) -> None:
        """Take in what a job has become; it is in the jobs already."""
        self._enter(job)
        if isinstance(job.state, Active):
            self.ledger.take(job)
        else:
            self.ledger.release(job.id)

    # --- questions --------------------------------------------------------------------------

    @property
    def pending(self) -> tuple[Job, ...]:
        """Jobs that wait, in the order of submission."""
        return self._in_order(self._pending)

    @property
    def active(self) -> tuple[Job, ...]:
        """Jobs that hold a placement, in the order of submission."""
        return self._in_order(self._active)

    def eligible(self) -> tuple[Job, ...]:
        """The ready ones, by priority, then in the order of submission."""
        found = self._in_order(self.ready)
        if self._priorities:
            found = tuple(sorted(found, key=lambda job: -job.spec.priority))
        return found

    @property
    def any_pending(self) -> bool:
        """Whether any job waits."""
        return len(self._pending) > 0

    @property
    def any_active(self) -> bool:
        """Whether any job holds a placement."""
        return len(self._active) > 0

    def never_fits(self, job: Job) -> Reason | None:
        """Why a job could not run on the node even alone, or None; worked out once of each kind."""
        spec = job.spec
        need = job.estimate.memory, job.estimate.device_memory
        key = (spec.device, spec.gpus, spec.threads, *need)
        if key not in self._too_large:
            self._too_large[key] = never_fits(spec, job.estimate, self.node)
        return self._too_large[key]

    def number(self, job: str) -> int:
        """The place of a job in the order of submission."""
        return self._numbers[job]

    def siblings(self, job: Job) -> list[Job]:
        """The other members of a job's family that wait."""
        members = self._waiting_of.get(job.spec.family, {}) if job.spec.family else {}
        return [other for other in self._sorted(members) if other.id != job.id]

    def known_member(self, family: str) -> Job | None:
        """The first member of a family of which a profile is known."""
        found = self._known_of.get(family)
        return None if found is None else self._jobs[found]

    def behind(self, job: str) -> list[Job]:
        """Waiting jobs that name this one as a predecessor."""
        return self._sorted(self._behind.get(job, ()))

    def _sorted(self, names: Iterable[str]) -> list[Job]:
        return [self._jobs[name] for name in sorted(names, key=self._numbers.__getitem__)]

    def _in_order(self, names: Iterable[str]) -> tuple[Job, ...]:
        return tuple(map(self._jobs.__getitem__, names))

    # --- changes ----------------------------------------------------------------------------

    def _enter(self, job: Job) -> None:
        number = self._numbers.setdefault(job.id, len(self._numbers))
        self.changed[job.id] = None
        self.version += 1
        if job.spec.family and job.profile is not None:
            first = self._known_of.setdefault(job.spec.family, job.id)
            if number < self._numbers[first]:
                self._known_of[job.spec.family] = job.id
        if isinstance(job.state, Pending):
            self._enter_queue(job, job.state)
            return
        self._leave_queue(job)
        if isinstance(job.state, Active):
            self._active.add(job.id)
            self._set(self.timed, job.id, job.state.stopping or job.spec.timeout_seconds)
            return
        self._leave_active(job)
        for other in self.behind(job.id):
            self._enter(other)

    def _enter_queue(self, job: Job, state: Pending) -> None:
        self._leave_active(job)
        self._pending.add(job.id)
        self.unchecked[job.id] = None
        if job.spec.family:
            self._waiting_of.setdefault(job.spec.family, {})[job.id] = None
        for before in job.spec.after:
            self._behind.setdefault(before, {})[job.id] = None
        free = self.first_missing(job) is None
        later = free and state.not_before > 0.0
        self._set(self._priorities, job.id, job.spec.priority)
        self._set(self.due, job.id, later)
        for index, belongs in ((self.blocked, not free), (self.ready, free and not later)):
            if belongs:
                index.add(job.id)
            else:
                index.pop(job.id)

    def _leave_queue(self, job: Job) -> None:
        for index in (self._pending, self.ready, self.blocked):
            index.pop(job.id)
        for table in (self.due, self.unchecked, self._priorities):
            table.pop(job.id, None)
        if job.spec.family:
            self._waiting_of.get(job.spec.family, {}).pop(job.id, None)
        for before in job.spec.after:
            self._behind.get(before, {}).pop(job.id, None)

    def _leave_active(self, job: Job) -> None:
        self._active.pop(job.id)
        self.timed.pop(job.id, None)

    @staticmethod
    def _set(table: dict[str, None], job: str, value: object) -> None:
        if value:
            table[job] = None
        else:
            table.pop(job, None)

    def ripen(self, now: float) -> None:
        """Those whose time has come only need room."""
        for id in list(self.due):  # noqa: A001
            state = self._jobs[id].state
            if isinstance(state, Pending) and state.not_before <= now:
                del self.due[id]
                self.ready.add(id)
                self.changed[id] = None
                self.version += 1

    def first_missing(self, job: Job) -> str | None:
        """The first predecessor of a job that has not succeeded."""
        for id in job.spec.after:  # noqa: A001
            before = self._jobs.get(id)
            if before is None or before.state.name != StateName.SUCCEEDED:
                return id
        return None


class Jobs(Sequence[Job]):
    """Jobs by id, looked up when they are asked for; before anything has changed.

    Args:
        roster: where they are from.
        find: gives them.
    """

    def __init__(self, roster: Roster, find: Callable[[], tuple[Job, ...]]) -> None:
        self._roster, self._find, self._version = roster, find, roster.version
        self._found: tuple[Job, ...] | None = None

    def _all(self) -> tuple[Job, ...]:
        if self._found is None:
            assert self._roster.version == self._version, "the state has changed since"
            self._found = self._find()
        return self._found

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Job, ...]: ...
    def __getitem__(self, index: int | slice) -> Job | tuple[Job, ...]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Job]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class Ids:
    """Ids in the order of submission; where they came in another they are sorted when asked for."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._ids: dict[str, None] = {}
        self._last = -1
        self._sorted = True

    def add(self, id: str) -> None:  # noqa: A002
        """Take one in, if it is not there."""
        if id in self._ids:
            return
        number = self._numbers[id]
        self._sorted = self._sorted and number > self._last
        self._last = max(self._last, number)
        self._ids[id] = None

    def pop(self, id: str) -> None:  # noqa: A002
        """Let one go, if it is there."""
        if self._ids.pop(id, self) is None and not self._ids:
            self._last, self._sorted = -1, True

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: str) -> bool:  # noqa: A002
        return id in self._ids

    def __iter__(self) -> Iterator[str]:
        if not self._sorted:
            self._ids = dict.fromkeys(sorted(self._ids, key=self._numbers.__getitem__))
            self._sorted = True
        return iter(self._ids)
