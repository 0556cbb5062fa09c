"""Several trainings in one process, step by step in turn, each with the results that it has alone.

Those that see the same rows in the same order (same data, batch size and seed; other learning
rates, other weights to begin with, shorter or longer) read and sort each batch once, and keep their
embedding tables side by side (`rmixer.train.side_by_side`). The networks above the tables are
computed one after the other: a batched product of matrices is no faster on a CPU, and one after the
other the sums are rounded as in a training alone. A training that ends, fails or is stopped leaves
the others as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rmixer.errors import RmixerError
from rmixer.train.loop import Result, Run, Settings
from rmixer.train.side_by_side import SideBySide, kind_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from rmixer.data.batch import Batch
    from rmixer.data.dataset import Dataset
    from rmixer.launch.page import ProgressWriter
    from rmixer.train.checkpoint import Checkpoints
    from rmixer.train.optimizers import Combined

End = Result | RmixerError


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the trainings; the arguments of `rmixer.train.loop.train`.

    Attributes:
        random: the state of torch's generator after the model was built: of what the training
            draws, dropout for example. None: the generator as it is.
    """

    model: nn.Module
    optimizer: Combined
    settings: Settings
    random: Tensor | None = None
    progress: ProgressWriter | None = None
    should_stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda _: None
    checkpoints: Checkpoints | None = None


def train_together(
    members: Sequence[Member],
    dataset: Dataset,
    on_end: Callable[[int, End], None] = lambda _number, _end: None,
) -> list[End]:
    """Train several models on the training part of some data, and measure each at its end.

    Args:
        members: their models and optimizers are changed in place.
        dataset: of all of them.
        on_end: told of each end at once, by the number of the member, while others may go on.

    Returns:
        For each member its result, or the error with which it ended (`StoppedError`,
        `DivergedError`).
    """
    active = [_Active(number, member, dataset) for number, member in enumerate(members)]
    ends: dict[int, End] = {}

    def end(one: _Active, how: End) -> None:
        ends[one.number] = how
        on_end(one.number, how)

    for one in active:
        one.guarded(one.run.begin)
    groups = _groups(active)
    while groups:
        for group in groups:
            group.step(dataset)
            for one in group.ended():
                end(one, one.finish())
        groups = [group for group in groups if group.members]
    return [ends[number] for number in range(len(members))]


@dataclass
class _Active:
    """A training that goes on."""

    number: int
    member: Member
    dataset: Dataset
    error: RmixerError | None = None
    is_done: bool = False
    run: Run = field(init=False)
    rows: Iterator[NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        m = self.member
        self.run = Run(
            m.model, self.dataset, m.optimizer, m.settings, m.progress, m.should_stop, m.say,
            m.checkpoints,
        )  # fmt: skip
        self.rows = self.run.batches()
        self.random = m.random

    @property
    def goes_on(self) -> bool:
        return self.error is None and not self.is_done

    def guarded(self, what: Callable[..., Any], *given: Any) -> Any:
        """Call with the training's own random numbers; an error of ours ends it alone."""
        kept = torch.get_rng_state() if self.random is not None else None
        if self.random is not None:
            torch.set_rng_state(self.random)
        try:
            return what(*given)
        except RmixerError as error:
            self.error = error
            return None
        finally:
            if kept is not None:
                self.random = torch.get_rng_state()
                torch.set_rng_state(kept)

    def next_rows(self) -> NDArray[np.int64] | None:
        rows = next(self.rows, None)
        self.is_done = rows is None
        return rows

    def finish(self) -> End:
        if self.error is None:
            result = self.guarded(self.run.finish)
        return self.error or result

    def order(self) -> tuple[Any, ...]:
        """What must be equal for two trainings to see the same rows from here on."""
        run, settings = self.run, self.member.settings
        position = (run.step, run.epoch, run.batches_done)
        return (settings.batch_size, settings.seed, *position)


class _Group:
    """Trainings that see the same rows in each step from here on."""

    def __init__(self, members: list[_Active]) -> None:
        self.members = members
        self.left: list[_Active] = []
        self.shared: SideBySide | None = None
        self._share()

    def step(self, dataset: Dataset) -> None:
        """One step of each, without those that have ended before it."""
        rows = {one.number: one.guarded(one.next_rows) for one in self.members}
        self._leave([one for one in self.members if not one.goes_on])
        stopped = [one for one in self.members if one.member.should_stop()]
        self._leave(stopped)
        for one in stopped:
            one.guarded(one.run.stop)
        if not self.members:
            return
        read = _Once(dataset.batch)
        if self.shared:
            self.shared.begin_step()
        for one in self.members:
            one.guarded(one.run.advance, rows[one.number], read)
        if self.shared:
            moved = self.shared.end_step()
            for one in self.members:
                one.run.moved += moved
        self._leave([one for one in self.members if not one.goes_on])
        self._save()

    def ended(self) -> list[_Active]:
        """Those that have ended since the last call."""
        found, self.left = self.left, []
        return found

    def _save(self) -> None:
        for k, one in enumerate(self.members):
            if one.run.must_save():
                if self.shared:
                    self.shared.write_back(k)
                one.run.save()
                if self.shared:
                    self.shared.take_back(k)

    def _leave(self, some: list[_Active]) -> None:
        if not some:
            return
        if self.shared:
            for k in range(len(self.members)):
                self.shared.write_back(k)
        self.left += some
        self.members = [one for one in self.members if one not in some]
        self._share()

    def _share(self) -> None:
        self.shared = None
        members = [one.member for one in self.members]
        if len(members) > 1 and kind_of(members[0].model, members[0].optimizer) is not None:
            self.shared = SideBySide([m.model for m in members], [m.optimizer for m in members])


class _Once:
    """Reads a batch for the first who asks; the others get the same one."""

    def __init__(self, read: Callable[[NDArray[np.int64]], Batch]) -> None:
        self.read = read
        self.batch: Batch | None = None

    def __call__(self, rows: NDArray[np.int64]) -> Batch:
        if self.batch is None:
            self.batch = self.read(rows)
        return self.batch


def _groups(active: Sequence[_Active]) -> list[_Group]:
    """Those that see the same rows and can share their tables, together; others by themselves."""
    found: dict[Any, list[_Active]] = {}
    for one in active:
        kind = kind_of(one.member.model, one.member.optimizer)
        key = one.number if kind is None else repr((one.order(), kind))
        found.setdefault(key, []).append(one)
    return [_Group(members) for members in found.values()]
