"""Where the time of a training goes: input, forward, backward, optimizer; cumulated seconds.

Measured at the borders that every PyTorch program has, with a clock and no synchronising:

* *input*: waiting for the next batch of a ``DataLoader``, and what a step does before it calls the
  model;
* *forward*: from there until the backward pass begins, the loss included;
* *backward*: ``Tensor.backward``, ``torch.autograd.backward`` and ``grad``;
* *optimizer*: the outermost steps. What runs inside of another phase is not counted twice.

When the model is called is known only in the steps in which modules are watched (`Counter.look`);
in the others the time before the backward pass, waiting for batches left out, is divided as it was
there. What lies between the end of a step and the fetch of the next batch (evaluation, saving,
logging) belongs to no phase, nor does what follows upon ``eval()`` of the model.

These are times of the thread that trains. On a GPU that is launching kernels: where the queue is
full or the program asks for a value, the wait is in the phase in which it happens.

Standard library only, Python 3.8 and later; torch is used where the program has imported it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, List, Optional

#: Weight of the newest look in how the time before the backward pass is divided.
_NEWEST = 0.5


class Phases:
    """The clock of one process.

    Args:
        on_eval: is called when the model is put to evaluation.

    Attributes:
        fetched: the thread that trains has got a batch; who has taken note makes it False.
    """

    def __init__(self, on_eval: Callable[[], None]) -> None:
        self.on_eval = on_eval
        self.fetched = False
        self.root: Callable[[], Any] = _nothing  # the outermost module that trains
        self.thread = threading.main_thread().ident
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child does."""
        self.input = self.forward = self.backward = self.optimizer = 0.0
        self.booked = self.booked_before = 0.0  # sum of all four: now, and when the step began
        self.began = 0.0  # when the optimizer's step did
        # of the input in what is before the backward pass, waiting left out: without and with it
        self.shares: List[Optional[float]] = [None, None]
        self.evaluating = self.stepping = False
        self.inside = False  # of a backward pass
        self._cut()

    def _cut(self) -> None:
        """What began the interval that is open is not known, or does not count."""
        self.mark = self.waited = self.called = 0.0

    def install(self, torch: Any) -> None:
        """Put the clock at the borders: functions that are public, and what all loaders use."""
        torch.autograd.backward = self.timed(torch.autograd.backward)
        torch.autograd.grad = self.timed(torch.autograd.grad)
        torch.nn.Module.eval = self._noticed(torch.nn.Module.eval)
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        iterator.__next__ = self.fetching(iterator.__next__)

    # --- what happens ----------------------------------------------------------------------------

    def call(self, module: Any) -> None:
        """The outermost module that trains is called, in a step that is looked at."""
        if self.root() is not module:
            self.root = weakref.ref(module)
        if not self.called:
            self.called = perf_counter()

    def before_step(self) -> None:
        """An outermost step of an optimizer begins."""
        self.began = self.mark = perf_counter()
        self.stepping = True
        if self.waited:  # no backward pass has taken it
            self.input += self.waited
            self.booked += self.waited
            self.waited = 0.0
        self.booked_before = self.booked

    def after_step(self) -> None:
        """It has ended."""
        if self.stepping:
            now = self.mark = perf_counter()
            self.stepping = False
            own = now - self.began - (self.booked - self.booked_before)
            self.optimizer += own
            self.booked += own

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is the backward pass, with the clock around it."""

        @functools.wraps(function)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.inside or get_ident() != self.thread:  # inside: a part of the outer one
                return function(*args, **kwargs)
            began = perf_counter()
            if self.mark or self.called:
                self._before_backward(began)
            booked, self.inside = self.booked, True
            try:
                return function(*args, **kwargs)
            finally:
                now = perf_counter()
                own = now - began - (self.booked - booked)
                self.backward += own
                self.booked += own
                self.mark, self.waited, self.called = now, 0.0, 0.0
                self.evaluating = self.inside = False

        return backward

    def _before_backward(self, now: float) -> None:
        """Divide what lies between the last border and the backward pass."""
        began = self.mark or self.called
        kind = self.waited > 0
        rest = max(0.0, now - began - self.waited)
        if self.stepping:  # the step asks for the gradient itself; it has its batch
            share = 0.0
        elif self.called and self.mark and rest:
            share = min(1.0, max(0.0, (self.called - began - self.waited) / rest))
            before = self.shares[kind]
            mean = share if before is None else _NEWEST * share + (1 - _NEWEST) * before
            self.shares[kind] = mean
        else:  # where it was never looked at, all of it is taken for the forward pass
            share = 0.0 if self.called else self.shares[kind] or 0.0
        self.input += self.waited + share * rest
        self.forward += rest - share * rest
        self.booked += self.waited + rest

    def fetching(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What gives the next batch of an iterator, with the clock around it."""

        @functools.wraps(function)
        def fetch(iterator: Any) -> Any:
            if get_ident() != self.thread:
                return function(iterator)
            began = perf_counter()
            batch = function(iterator)
            waited = perf_counter() - began
            if self.waited and not self.evaluating:  # a second loader, or a batch ahead
                self.waited += waited
                if self.called:
                    self.called += waited
            else:
                self.mark, self.waited, self.called = began, waited, 0.0
            self.fetched = True
            return batch

        return fetch

    def _noticed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def evaluate(module: Any) -> Any:
            if self._is_model(module):
                self.evaluating = True
                self._cut()
                self.on_eval()
            return function(module)

        return evaluate

    def _is_model(self, module: Any) -> bool:
        """Whether it is the model that trains, has it inside, or is what it wraps."""
        root = self.root()
        if root is None:
            return False
        wrapped = (getattr(root, "module", None), getattr(root, "_orig_mod", None))
        return any(module is one for one in wrapped) or any(one is root for one in module.modules())


def _nothing() -> None:
    """The model before one has been called."""
