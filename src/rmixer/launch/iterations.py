"""How many iterations the steps of a program's optimizers are.

A program may have several optimizers: generator and discriminator, dense and sparse parameters, one
per fold. What its users call an iteration is then not a step of each. Iterations are the steps of a
*leader*: the first optimizer that steps. Another one takes the lead

* when the leader is gone (a fold has ended, and its optimizer with it);
* when it has stepped first on two batches of a ``DataLoader`` while the leader did not;
* where no batches are seen, when it has stepped `PATIENCE` times more than it did between two steps
  of the leader.

Its steps since then are counted, so nothing is lost when one optimizer follows upon another. Two
that take turns have one iteration per turn of both.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict

#: Long enough for the critic of a Wasserstein GAN, which steps five times per step of the other.
PATIENCE = 20
#: Batches of its own after which an optimizer leads.
BATCHES = 2
#: Optimizers that are remembered; those that are gone are forgotten when there are more.
REMEMBERED = 64


class _Other:
    """An optimizer that does not lead, and its steps since the leader's last."""

    def __init__(self, optimizer: Any) -> None:
        self.alive: Callable[[], Any] = weakref.ref(optimizer)
        self.usual = -1  # between the last two steps of the leader; -1: was not there
        self.forget()

    def forget(self) -> None:
        self.steps = self.batches = 0
        self.own = 0  # steps from the first on that was the first on its batch

    def see(self, on_new_batch: bool) -> None:
        self.steps += 1
        self.batches += on_new_batch
        if self.batches:
            self.own += 1

    def beyond(self) -> int:
        """The steps that were not part of an iteration of the leader."""
        return self.own if self.batches else self.steps - max(0, self.usual)


class Iterations:
    """Turns steps into iterations.

    Attributes:
        on_new_batch: to be set when a batch was fetched.
    """

    def __init__(self) -> None:
        self.on_new_batch = True
        self._leader: Callable[[], Any] = _nobody
        self._led = 0
        self._others: Dict[int, _Other] = {}
        self._waiting: Dict[int, _Other] = {}  # those that have stepped since the leader's last

    def step(self, optimizer: Any) -> int:
        """How many iterations a step of that optimizer adds; mostly 1 or 0."""
        on_new_batch, self.on_new_batch = self.on_new_batch, False
        if self._leader() is optimizer:
            self._led += 1
            if self._waiting:
                self._settle()
            return 1
        other = self._others.get(id(optimizer))
        if other is None or other.alive() is not optimizer:
            other = self._others[id(optimizer)] = _Other(optimizer)
        other.see(on_new_batch)
        self._waiting[id(optimizer)] = other
        if self._takes_over(other):
            return self._lead(optimizer, other)
        return 0

    def rest(self) -> int:
        """At the program's end: the steps of one that has only begun to follow the leader."""
        new = [other for other in self._waiting.values() if other.usual < 0]
        first = self._led == 1  # both may belong to the only iteration that there was
        steps = max([other.beyond() - (first and not other.batches) for other in new], default=0)
        self._waiting = {}
        return steps

    def _takes_over(self, other: _Other) -> bool:
        return self._leader() is None or other.batches >= BATCHES or other.beyond() > PATIENCE

    def _lead(self, optimizer: Any, other: _Other) -> int:
        steps = max(1, other.beyond())
        self._leader, self._led = other.alive, steps
        del self._others[id(optimizer)], self._waiting[id(optimizer)]
        self._settle()
        return steps

    def _settle(self) -> None:
        """The leader has stepped: what the others did belongs to its iteration."""
        for other in self._waiting.values():
            other.usual = other.steps
            other.forget()
        self._waiting = {}
        if len(self._others) > REMEMBERED:
            self._others = {key: one for key, one in self._others.items() if one.alive()}


def _nobody() -> None:
    """The leader before there is one."""
