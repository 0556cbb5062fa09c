"""The training loop: one function for every model, data set and optimizer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch

from rmixer.data.dataset import in_order, shuffled
from rmixer.errors import RmixerError
from rmixer.launch import page
from rmixer.models.model import objective
from rmixer.train.metrics import auc, logloss

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from rmixer.data.batch import Batch
    from rmixer.data.dataset import Dataset
    from rmixer.train.checkpoint import Checkpoints
    from rmixer.train.optimizers import Combined

#: The loss is read, and looked at for NaN, every so many steps.
LOSS_STEPS = 20
PUBLISH_SECONDS = 0.05
PRINT_SECONDS = 5.0
EVALUATION_BATCH = 2048


class StoppedError(RmixerError):
    """The job was told to stop. No model is written."""


class DivergedError(RmixerError):
    """The training loss is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a training run is told.

    Attributes:
        batch_size: rows per step; the last batch of an epoch may be smaller.
        epochs: passes over the training part, if `steps` does not end it before.
        steps: if given, exactly so many steps, however many epochs that is.
        seed: of the order of the rows.
        stop_seconds: how long a checkpoint may take when the training is stopped.
    """

    batch_size: int = 2048
    epochs: int = 1
    steps: int | None = None
    seed: int = 0
    stop_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a training run did.

    Attributes:
        train_loss: mean over the steps of the last epoch.
        first_loss: of the first step.
        resumed_samples: how many of the samples earlier attempts have trained on.
        auc, logloss: on the held-out part; NaN where there is none.
        epochs: passes over the training part, whole or not.
    """

    steps: int
    samples: int
    epochs: int
    train_seconds: float
    train_loss: float
    first_loss: float = math.nan
    resumed_samples: int = 0
    auc: float = math.nan
    logloss: float = math.nan


def train(
    model: nn.Module,
    dataset: Dataset,
    optimizer: Combined,
    settings: Settings,
    *,
    progress: page.ProgressWriter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Train a model on the training part, then measure it on the held-out part.

    The order of the rows depends on the seed alone, and torch's generator is left as it was found,
    so at one thread count the same seed gives the same weights, whatever else the machine does, and
    however often it was stopped and went on from a checkpoint.

    Args:
        model: its parameters are changed in place.
        dataset: columns in the cache.
        optimizer: of all parameters of the model.
        settings: see there.
        progress: the page that the runner watches, if any.
        should_stop: asked before every step and evaluation batch.
        say: gets a line for people every few seconds.
        checkpoints: where to go on from, and where to write; none if None.

    Raises:
        StoppedError: ``should_stop`` said so.
        DivergedError: the loss is not finite; the message names the step.
    """
    run = Run(model, dataset, optimizer, settings, progress, should_stop, say, checkpoints)
    return run.run()


class Run:
    """A training, step by step; see `train`."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        optimizer: Combined,
        settings: Settings,
        progress: page.ProgressWriter | None,
        should_stop: Callable[[], bool],
        say: Callable[[str], None],
        checkpoints: Checkpoints | None,
    ) -> None:
        self.model, self.dataset, self.optimizer = model, dataset, optimizer
        self.settings, self.progress = settings, progress
        self.should_stop, self.say, self.checkpoints = should_stop, say, checkpoints
        rows, size = len(dataset.train_rows), settings.batch_size
        steps = settings.epochs * -(-rows // size)
        self.total = steps if settings.steps is None else settings.steps
        self.step = self.samples = self.moved = self.epoch = 0
        self.seconds = [0.0, 0.0, 0.0, 0.0]  # input, forward, backward, optimizer
        self.unread: list[Tensor] = []
        self.loss, self.loss_sum, self.loss_count = math.nan, 0.0, 0
        self.first_loss = math.nan
        self.batches_done = self.resumed_samples = 0  # of this epoch; by earlier attempts
        self.earlier_seconds = 0.0
        self.published = self.printed = 0.0

    def run(self) -> Result:
        """Everything."""
        self.begin()
        for rows in self.batches():
            if self.should_stop():
                self.stop()
            self.advance(rows, self.dataset.batch)
            if self.must_save():
                self.save()
        return self.finish()

    def begin(self) -> None:
        """Before the first step: take up a checkpoint, if there is one."""
        self.started = time.perf_counter()
        self.model.train()
        self._go_on()
        self._begin()

    def stop(self) -> NoReturn:
        """End here, between two steps, the rows of the next one taken.

        Raises:
            StoppedError: always.
        """
        kept = self.save(stopping=True)
        where = "; a checkpoint is kept" if kept else ""
        raise StoppedError(f"stopped after {self.step} of {self.total} steps{where}")

    def must_save(self) -> bool:
        """Whether a checkpoint is due after this step."""
        return self.checkpoints is not None and self.checkpoints.is_due()

    def finish(self) -> Result:
        """After the last step: the parameters are brought up to date and the model is measured."""
        self._read_losses()
        self.optimizer.flush()
        self._publish(time.perf_counter(), force=True)
        seconds = self._seconds()
        measured = self._evaluate()
        return Result(
            steps=self.step,
            samples=self.samples,
            epochs=self.epoch,
            train_seconds=seconds,
            train_loss=self.loss_sum / max(1, self.loss_count),
            first_loss=self.first_loss,
            resumed_samples=self.resumed_samples,
            **measured,
        )

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """The rows of each step to come."""
        rows, settings = self.dataset.train_rows, self.settings
        begun = self.epoch > 0  # by an earlier attempt
        while self.step < self.total:
            if not begun:
                self._read_losses()
                self.loss_sum, self.loss_count = 0.0, 0
                self.epoch, self.batches_done = self.epoch + 1, 0
            begun = False
            batches = shuffled(rows, settings.batch_size, settings.seed, self.epoch)
            for batch in islice(batches, self.batches_done, None):
                if self.step >= self.total:
                    return
                yield batch
                self.batches_done += 1

    def _seconds(self) -> float:
        return self.earlier_seconds + time.perf_counter() - self.started

    def save(self, *, stopping: bool = False) -> bool:
        """Write where the training is: between two steps, nothing flushed.

        A stopped job has little time: without knowing better, as much as the last one took.
        """
        if self.checkpoints is None or not self.step:
            return False
        if stopping and self.checkpoints.cost_seconds > self.settings.stop_seconds:
            return False
        self._read_losses()
        # Between two steps of `batches` the newest batch is done but not yet counted.
        done = self.batches_done + (0 if stopping else 1)
        return self.checkpoints.save(
            self.step,
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "counts": [self.step, self.samples, self.moved, self.epoch, done],
                "losses": [self.loss, self.loss_sum, float(self.loss_count), self.first_loss],
                "seconds": [self._seconds(), *self.seconds],
                "threads": torch.get_num_threads(),
            },
        )

    def _go_on(self) -> None:
        """Take up the newest checkpoint, if there is one."""
        state = self.checkpoints.load() if self.checkpoints is not None else None
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.step, self.samples, self.moved, self.epoch, self.batches_done = state["counts"]
        self.loss, self.loss_sum, count, self.first_loss = state["losses"]
        self.loss_count = int(count)
        self.earlier_seconds, *self.seconds = state["seconds"]
        self.resumed_samples = self.samples
        if state["threads"] != torch.get_num_threads():
            self.say(f"with {state['threads']} threads, as before: the sums are rounded likewise")
            torch.set_num_threads(state["threads"])
        self.say(f"going on from step {self.step} of {self.total}")

    def advance(self, rows: NDArray[np.int64], read: Callable[[NDArray[np.int64]], Batch]) -> None:
        """One step, on the batch that ``read`` makes of some rows.

        Raises:
            DivergedError: the loss is not finite; it is looked at every few steps.
        """
        at0 = time.perf_counter()
        batch = read(rows)
        at1 = time.perf_counter()
        loss = objective(self.model, batch)
        at2 = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        at3 = time.perf_counter()
        self.moved += self.optimizer.step()
        self.optimizer.zero_grad()
        at4 = time.perf_counter()
        self.unread.append(loss.detach())
        self.step += 1
        self.samples += len(rows)
        for i, seconds in enumerate((at1 - at0, at2 - at1, at3 - at2, at4 - at3)):
            self.seconds[i] += seconds
        if len(self.unread) == LOSS_STEPS:
            self._read_losses()
        self._publish(at4)

    def _read_losses(self) -> None:
        """Fetch the losses since the last call and check them."""
        first = self.step - len(self.unread)
        values = torch.stack(self.unread).tolist() if self.unread else []
        self.unread.clear()
        for step, value in enumerate(values, start=first + 1):
            if not math.isfinite(value):
                raise DivergedError(
                    f"the training loss is {value} at step {step}; lower the learning rate"
                )
            self.loss = value
            self.loss_sum += value
            self.loss_count += 1
            if step == 1:
                self.first_loss = value

    def _evaluate(self) -> dict[str, float]:
        rows = self.dataset.valid_rows
        if not len(rows):
            return {}
        self._phase(page.EVALUATING)
        logits = predict(self.model, self.dataset, rows, self.should_stop)
        labels = self.dataset.labels(rows)
        return {"auc": auc(labels, logits), "logloss": logloss(labels, logits)}

    def _begin(self) -> None:
        if self.progress:
            self.progress.total_steps = self.total
            self.progress.first_step_at = time.time()
        self._phase(page.TRAINING)

    def _phase(self, phase: int) -> None:
        if self.progress:
            self.progress.phase = phase
            self.progress.publish()

    def _publish(self, now: float, *, force: bool = False) -> None:
        if now - self.printed > PRINT_SECONDS and self.printed:
            self._read_losses()
            self.say(
                f"step {self.step}/{self.total}  loss {self.loss:.5f}  {self._rate():.0f} samples/s"
            )
        if now - self.printed > PRINT_SECONDS:
            self.printed = now
        if self.progress and (force or now - self.published > PUBLISH_SECONDS):
            self.published = now
            write = self.progress
            write.step, write.samples, write.moved_bytes = self.step, self.samples, self.moved
            write.loss = self.loss
            write.input_seconds, write.forward_seconds = self.seconds[0], self.seconds[1]
            write.backward_seconds, write.optimizer_seconds = self.seconds[2], self.seconds[3]
            write.publish()

    def _rate(self) -> float:
        return self.samples / max(1e-9, sum(self.seconds))


def predict(
    model: nn.Module,
    dataset: Dataset,
    rows: NDArray[np.int64],
    should_stop: Callable[[], bool] = lambda: False,
) -> NDArray[np.float32]:
    """The log-odds of some rows, in evaluation mode; the model's mode is left as it was.

    Raises:
        StoppedError: ``should_stop`` said so.
    """
    was_training = model.training
    model.eval()
    parts: list[NDArray[np.float32]] = []
    try:
        with torch.inference_mode():
            for some in in_order(rows, EVALUATION_BATCH):
                if should_stop():
                    raise StoppedError("stopped during evaluation")
                parts.append(model(dataset.batch(some)).float().numpy())
    finally:
        model.train(was_training)
    return np.concatenate(parts) if parts else np.empty(0, np.float32)
