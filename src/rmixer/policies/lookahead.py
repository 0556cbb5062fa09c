"""The look-ahead: a portfolio of rules, simulated; the best is improved by local search.

The members are orders of the waiting jobs times places per GPU, each with the CPU as a training
device and without. The best by the simulated makespan is improved by exchanges in the order, by
other places, and by binding jobs to devices, within a budget of simulated plans. What the best
starts now is started. Later the incumbent is kept: it is simulated again from where things stand,
beside the portfolio where that has become different from what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from rmixer.policies.outlook import Course, Outlook, Rule, Task

#: Places per GPU that are tried.
PLACES = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, math.inf)
#: The CPU takes what ends there before these shares of the plan without it.
_TARGETS = (0.75, 0.85, 0.93, 1.0)
#: So many further orders are drawn, where there are not just a few jobs.
_MIXED, _FEW = 60, 6
#: Up to so many waiting jobs on so many GPUs as many plans are simulated as there are to be.
_FULL_JOBS, _FULL_GPUS = 72, 4
#: A plan that is later than expected by more than this is made anew.
SURPRISE = 0.02
#: Few jobs have few plans: at most so many are simulated per pair of waiting jobs.
_PER_PAIR = 5
#: At the beginning of the search a plan may be worse than the one before by this.
_THRESHOLD = 0.01
#: The share of the budget that is spent where the incumbent still holds.
_LITTLE = 0.1


@dataclass(frozen=True, slots=True)
class Memo:
    """The incumbent plan, by job id, and when it ends, seconds since the run began.

    Attributes:
        order, pinned, places, target_at: the rule; ``target_at`` since the run began.
        value: the makespan's end that was expected.
        known: the jobs that were there.
        running: those of them that run by that plan.
    """

    order: tuple[str, ...]
    places: tuple[float, ...]
    pinned: tuple[tuple[str, int], ...]
    target_at: float
    value: float
    known: frozenset[str]
    running: frozenset[str] = frozenset()


def choose(
    outlook: Outlook, now: float, memo: Memo | None, *, budget: int, seed: int
) -> tuple[Rule, Course]:
    """The best rule that was found, and what it leads to.

    Args:
        outlook: the jobs and devices now.
        now: seconds since the run began.
        memo: the incumbent.
        budget: simulated plans of local search.
        seed: of the search.
    """
    search = _Search(outlook, Random(f"{seed}:{len(outlook.waiting)}:{now}"))
    if memo is not None:
        search.offer(_revived(outlook, memo, now))
        expected = memo.value - now
        there = frozenset(task.id for task in outlook.tasks)
        running = frozenset(outlook.tasks[i].id for i in outlook.running)
        if search.best.value < math.inf and (there, running) == (memo.known, memo.running):
            search.improve(int(budget * _LITTLE))  # nothing has happened but that rates were seen
            return search.rule, search.best
        alike = there <= memo.known
        if alike and search.best.makespan <= expected * (1.0 + SURPRISE) + 1e-6:
            search.improve(int(budget * _LITTLE * search.effort))
            return search.rule, search.best
    search.portfolio()
    search.improve(int(budget * search.effort))
    return search.rule, search.best


def remember(outlook: Outlook, rule: Rule, course: Course, now: float) -> Memo:
    """The plan, for the next decision."""
    name = [task.id for task in outlook.tasks]
    return Memo(
        order=tuple(name[i] for i in rule.order),
        places=rule.places,
        pinned=tuple((name[i], device) for i, device in rule.pinned),
        target_at=now + rule.target if rule.target else 0.0,
        value=now + course.makespan,
        known=frozenset(name),
        running=frozenset(name[i] for i in (*outlook.running, *(i for i, _ in course.starts))),
    )


def _revived(outlook: Outlook, memo: Memo, now: float) -> Rule:
    """The incumbent for the jobs that wait now; new ones stand in front of shorter ones.

    Where jobs arrive over time they stand in front of longer ones.
    """
    index = {task.id: i for i, task in enumerate(outlook.tasks)}
    waiting = set(outlook.waiting)
    order = [index[name] for name in memo.order if name in index and index[name] in waiting]
    for i in sorted(waiting - set(order), key=lambda i: -_longest(outlook.tasks[i])):
        length = _longest(outlook.tasks[i])
        sign = -1.0 if outlook.by_completion else 1.0
        later = (k for k, j in enumerate(order) if sign * (length - _longest(outlook.tasks[j])) > 0)
        order.insert(next(later, len(order)), i)
    pinned = tuple((index[name], d) for name, d in memo.pinned if index.get(name) in waiting)
    places = memo.places if len(memo.places) == len(outlook.places) else _all(outlook, math.inf)
    target = max(0.0, memo.target_at - now) if memo.target_at else 0.0
    return Rule(_by_priority(outlook, order), places, pinned, target)


def _longest(task: Task) -> float:
    return min(task.seconds) * task.left


class _Search:
    """The best rule so far."""

    def __init__(self, outlook: Outlook, draw: Random) -> None:
        self.look, self.draw = outlook, draw
        self.rule = Rule(tuple(outlook.waiting), _all(outlook, math.inf))
        self.best = Course(math.inf, math.inf)

    @property
    def effort(self) -> float:
        """The share of the plans that is simulated: 1 up to a size, then less.

        What a plan costs grows with the square of the waiting jobs, and with the GPUs.
        """
        waiting = max(1, len(self.look.waiting))
        return min(1.0, (_FULL_JOBS / waiting) ** 2 * _FULL_GPUS / max(1, len(self.look.gpus)))

    def offer(self, rule: Rule) -> Course:
        """Try a rule; keep it if it is the best."""
        course = self.look.follow(rule, self.best.value)
        if course.value < self.best.value:
            self.rule, self.best = rule, course
        return course

    def portfolio(self) -> None:
        """Orders times places; for each number of places the best order with the CPU too."""
        found: list[tuple[float, int, Rule]] = []
        for order in _orders(self.look):
            for places in PLACES:
                rule = Rule(order, _all(self.look, places))
                course = self.look.follow(rule, self.best.value * 1.2)
                if course.value < self.best.value:
                    self.rule, self.best = rule, course
                found.append((course.value, len(found), rule))
        self._mixed(found)
        if not self.look.cpus:
            return
        best_of = {rule.places: (value, rule) for value, _, rule in sorted(found, reverse=True)}
        for value, rule in best_of.values():
            end = value if value < math.inf else self._without_gpus()
            for share in _TARGETS:
                self.offer(replace(rule, target=end * share))

    def _mixed(self, found: list[tuple[float, int, Rule]]) -> None:
        """Orders by length, demand and memory with exponents that are drawn."""
        tasks, gpus = self.look.tasks, self.look.gpus
        if len(self.look.waiting) < _FEW or not gpus:
            return
        few = sorted(found)[: len(PLACES)]
        for _ in range(int(_MIXED * self.effort)):
            a, b, c = self.draw.uniform(0, 1.5), self.draw.uniform(-0.5, 1), self.draw.uniform(0, 1)
            sign = -1.0 if self.look.by_completion else 1.0
            key = {
                i: sign * _longest(tasks[i]) ** a
                * (max(tasks[i].uses[d][0] for d in gpus) + 0.05) ** b
                * (max(tasks[i].memory[d] for d in gpus) + 1.0) ** c
                for i in self.look.waiting
            }  # fmt: skip
            order = sorted(self.look.waiting, key=key.__getitem__, reverse=True)
            places = self.draw.choice(few)[2].places
            rule = Rule(_by_priority(self.look, order), places)
            found.append((self.offer(rule).value, len(found), rule))

    def _without_gpus(self) -> float:
        """Long enough for everything, where some jobs fit on no GPU."""
        return sum(max(s for s in task.seconds if s < math.inf) for task in self.look.tasks)

    def improve(self, budget: int) -> None:
        """Local search with a threshold: neighbours that are a little worse are gone to as well.

        The threshold falls to nothing by the end (Dueck and Scheuer 1990).
        """
        waiting = len(self.look.waiting)
        if waiting == 0 or self.best.value == math.inf:
            return
        budget = min(budget, _PER_PAIR * waiting * waiting)
        best = self.rule, self.best
        for left in range(budget, 0, -1):
            rule = self._neighbour(waiting)
            limit = self.best.value * (1.0 + _THRESHOLD * (left - 1) / budget)
            course = self.look.follow(rule, limit)
            if course.value <= limit and course.value < math.inf:
                self.rule, self.best = rule, course
                if course.value < best[1].value:
                    best = rule, course
        self.rule, self.best = best

    def _neighbour(self, waiting: int) -> Rule:
        """Half of them for the device that ends last, the others anywhere."""
        what = self.draw.random()
        if waiting > 1 and what < 0.5:  # noqa: PLR2004
            rule = self._for_the_last()
            if rule is not None:
                return rule
        if waiting > 1 and what < 0.62:  # noqa: PLR2004
            return self._exchanged()
        if waiting > 1 and what < 0.78:  # noqa: PLR2004
            return self._moved(self.draw.randrange(waiting))
        if len(self.look.places) > 1 and what < 0.88:  # noqa: PLR2004
            return self._bound(self.draw.choice(self.look.waiting))
        if self.rule.target and what < 0.94:  # noqa: PLR2004
            return replace(self.rule, target=self.rule.target * self.draw.uniform(0.9, 1.05))
        return self._other_places()

    def _for_the_last(self) -> Rule | None:
        """A job of the device that ends last: earlier, or elsewhere, or exchanged with another."""
        begins, ends = self.best.begins, self.best.ends
        if not begins:
            return None
        last = max(begins, key=lambda i: ends.get(i, 0.0))
        device = begins[last][1]
        here = [i for i in begins if begins[i][1] == device]
        i = last if self.draw.random() < 0.3 else self.draw.choice(here)  # noqa: PLR2004
        others = [d for d in range(len(self.look.places))
                  if d != device and self.look.tasks[i].seconds[d] < math.inf
                  and (self.rule.target or d not in self.look.cpus)]  # fmt: skip
        what = self.draw.random()
        if not others or what < 0.3:  # noqa: PLR2004
            return self._moved(self.rule.order.index(i), earlier=True)
        other = self.draw.choice(others)
        pinned = dict(self.rule.pinned) | {i: other}
        there = [j for j in begins if begins[j][1] == other
                 and self.look.tasks[j].seconds[device] < math.inf]  # fmt: skip
        if there and what < 0.7:  # noqa: PLR2004
            pinned[self.draw.choice(there)] = device
        return replace(self.rule, pinned=tuple(pinned.items()))

    def _exchanged(self) -> Rule:
        order = list(self.rule.order)
        i, j = self.draw.randrange(len(order)), self.draw.randrange(len(order))
        order[i], order[j] = order[j], order[i]
        return replace(self.rule, order=_by_priority(self.look, order))

    def _moved(self, at: int, *, earlier: bool = False) -> Rule:
        order = list(self.rule.order)
        i = order.pop(at)
        order.insert(self.draw.randrange(at + 1 if earlier else len(order) + 1), i)
        return replace(self.rule, order=_by_priority(self.look, order))

    def _bound(self, i: int) -> Rule:
        """Bind a job to a device, or let it go."""
        others = [(j, d) for j, d in self.rule.pinned if j != i]
        able = [d for d, s in enumerate(self.look.tasks[i].seconds) if s < math.inf]
        device = self.draw.choice([*able, None])
        if device is None or (device in self.look.cpus and not self.rule.target):
            return replace(self.rule, pinned=tuple(others))
        return replace(self.rule, pinned=(*others, (i, device)))

    def _other_places(self) -> Rule:
        places = list(self.rule.places)
        device = self.draw.randrange(len(places))
        now = places[device]
        options = [math.inf, *((now + 1, max(1.0, now - 1)) if now < math.inf else PLACES[:-1])]
        places[device] = self.draw.choice(options)
        return replace(self.rule, places=tuple(places))


def _all(outlook: Outlook, places: float) -> tuple[float, ...]:
    return tuple(math.inf if place.is_cpu else places for place in outlook.places)


def _orders(outlook: Outlook) -> Iterator[tuple[int, ...]]:
    """Longest first; most work first, with and without a share for being there; most memory.

    Where jobs arrive over time the shortest first, the least work, the least memory.
    """
    tasks = outlook.tasks

    def seconds(i: int) -> float:
        return _longest(tasks[i])

    def demand(i: int) -> float:
        return max((tasks[i].uses[d][0] for d in outlook.gpus), default=1.0)

    def memory(i: int) -> float:
        return max((tasks[i].memory[d] for d in outlook.gpus), default=0) + 1.0

    keys: tuple[Callable[[int], float], ...] = (
        seconds,
        lambda i: seconds(i) * demand(i),
        lambda i: seconds(i) * (demand(i) + 0.15),
        lambda i: seconds(i) * memory(i),
    )
    if outlook.by_completion:  # the shortest first, for its weight
        keys = (
            lambda i: -seconds(i) / tasks[i].weight,
            lambda i: -seconds(i) * (demand(i) + 0.15) / tasks[i].weight,
            lambda i: -seconds(i) * memory(i) / tasks[i].weight,
            seconds,
        )
    for key in keys:
        yield _by_priority(outlook, sorted(outlook.waiting, key=key, reverse=True))


def _by_priority(outlook: Outlook, order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(order, key=lambda i: -outlook.tasks[i].priority))
