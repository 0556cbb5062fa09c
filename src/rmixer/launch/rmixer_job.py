"""What a training loop of your own can tell RMixer, and what it can ask: ``rmixer.job()``.

    with rmixer.job() as job:
        for step, batch in enumerate(batches, start=1):
            ...
            job.report(step, samples=step * 256, loss=loss)
            if job.should_stop:
                break

In a program that RMixer did not start all of it does nothing. Standard library only, Python 3.8 and
later, nothing of rmixer: the folder of this file is on the path of every job, so an interpreter
without rmixer says ``from rmixer_job import job`` instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Dict, Iterator, Optional, Type

_HERE = os.path.dirname(os.path.abspath(__file__))
PROGRESS, RESULT, CHECKPOINT = "RMIXER_PROGRESS", "RMIXER_RESULT", "RMIXER_CHECKPOINT"


def job() -> "Job":
    """The job that this program is; a context manager (see `Job`)."""
    return Job()


class Job:
    """A program's side of its job.

    Attributes:
        should_stop: whether RMixer wants the program to end: cancelled, interrupted, out of time.
            It has ten seconds (the run's grace time) to keep a checkpoint and leave the loop; how
            it exits does not matter then.
        checkpoint_path: where a checkpoint of this job belongs; its folder is there. A later
            attempt of the same job finds the file again, whatever has happened to this one. None in
            a program that RMixer did not start.
        attempt: 1, or more when the job is tried again; 0 in a program that RMixer did not start.
    """

    def __init__(self) -> None:
        checkpoint = os.environ.get(CHECKPOINT)
        self.checkpoint_path: Optional[Path] = Path(checkpoint) if checkpoint else None
        number = os.environ.get("RMIXER_ATTEMPT", "0")
        self.attempt = int(number) if number.isdigit() else 0
        self.should_stop = False
        self._result = os.environ.get(RESULT)
        self._page = _Page(os.environ.get(PROGRESS) or None)
        self._metrics: Dict[str, float] = {}
        self._before: Any = None
        self._handles = False

    def report(
        self,
        step: Optional[int] = None,
        samples: Optional[int] = None,
        *,
        total_steps: Optional[int] = None,
        loss: Any = None,
        **metrics: Any,
    ) -> None:
        """Say how far the training is. It costs some microseconds; call it in every step.

        Args:
            step: optimizer steps that are done, those of earlier attempts included.
            samples: training samples that are done, likewise.
            total_steps: of the whole training, where it is known; then the rest is predicted.
            loss: of the newest step; anything that ``float`` takes. A tensor on a GPU makes the
                program wait for it: give one now and then.
            metrics: the newest value of each, for the report: ``auc=0.78``.

        Raises:
            TypeError, ValueError: a value is not a number.
        """
        values = {"step": step, "samples": samples, "total_steps": total_steps}
        counts = {name: int(value) for name, value in values.items() if value is not None}
        wrong = [name for name, value in counts.items() if value < 0]
        if wrong:
            raise ValueError("%s must not be negative: %d" % (wrong[0], counts[wrong[0]]))
        self._metrics.update((name, _number(value)) for name, value in metrics.items())
        newest = None if loss is None else _number(loss)
        if newest is not None:
            self._metrics["train_loss"] = newest
        self._page.show(counts, newest)

    @contextlib.contextmanager
    def saving(self) -> Iterator[Optional[Path]]:
        """A path to write a checkpoint to; it takes the place of the last one when it is whole.

        Whatever kills the program meanwhile, the last whole one stays. None, and nothing to write,
        in a program that RMixer did not start.

        Raises:
            OSError: it cannot be put in its place.
        """
        if self.checkpoint_path is None:
            yield None
            return
        self.checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
        new = self.checkpoint_path.with_name("%s.%d" % (self.checkpoint_path.name, os.getpid()))
        try:
            yield new
            if new.exists():
                _sync(new)
                os.replace(str(new), str(self.checkpoint_path))
                _sync(new.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()

    def __enter__(self) -> "Job":  # noqa: PYI034 - Python 3.8 has no `Self`
        if self.checkpoint_path is not None:
            self.checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
        if self._result and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._stop)
            self._handles = True
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._handles and signal.getsignal(signal.SIGTERM) == self._stop:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        self._page.publish()
        if self._result:
            self._write_result(self._result)

    def _stop(self, number: int, frame: Optional[FrameType]) -> None:
        self.should_stop = True
        if callable(self._before):
            self._before(number, frame)

    def _write_result(self, path: str) -> None:
        """What the report shows of the job at its end."""
        finite = {name: x if math.isfinite(x) else None for name, x in self._metrics.items()}
        document: Dict[str, Any] = {"schema_version": 1, "metrics": finite}
        document.update(self._page.counts)
        new = "%s.%d" % (path, os.getpid())
        with contextlib.suppress(OSError):  # the training is done: its end is not to fail for this
            with open(new, "w") as file:
                json.dump(document, file)
            os.replace(new, path)


class _Page:
    """The progress page of this process, if the program has one.

    Where the launcher counts steps in this process, both write the same page, and what the program
    says itself is taken.
    """

    def __init__(self, path: Optional[str]) -> None:
        self.path = path
        self.counts: Dict[str, int] = {}
        self._writer: Any = None
        self._pid = 0  # of the process that has opened it

    def show(self, counts: Dict[str, int], loss: Optional[float]) -> None:
        if "samples" in counts:
            self.counts["samples"] = counts["samples"]
        if "step" in counts:
            self.counts["steps"] = counts["step"]
        writer = self._open()
        if writer is None:
            return
        for name, value in counts.items():
            setattr(writer, name, value)
        if loss is not None:
            writer.loss = loss
        writer.publish()

    def publish(self) -> None:
        if self._writer is not None:
            self._writer.publish()

    def _open(self) -> Any:
        if self.path is not None and self._pid != os.getpid():  # a forked child has its own
            self._pid = os.getpid()
            self._writer = self._shared() or self._own(self.path)
            if self._writer is not None:
                self._begin(self._writer)
        return self._writer

    def _shared(self) -> Any:
        launcher = sys.modules.get("rmixer_launcher")
        return launcher.writer_of_this_process() if launcher is not None else None

    def _own(self, path: str) -> Any:
        page = _load("page")
        try:
            return page.ProgressWriter(page.claim(path))
        except OSError as error:
            sys.stderr.write("rmixer: its steps are not shown: %s\n" % (error,))
            return None

    def _begin(self, writer: Any) -> None:
        writer.told, writer.phase = 1, _load("page").TRAINING
        if not writer.first_step_at:
            writer.first_step_at = time.time()


def _number(value: Any) -> float:
    """Also of a tensor that wants a gradient, which torch would warn of."""
    detach = getattr(value, "detach", None)
    return float(detach() if callable(detach) else value)


def _sync(path: Path) -> None:
    descriptor = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load(name: str) -> Any:
    """A module beside this one, which may or may not be part of a package here."""
    full = "rmixer_" + name
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, os.path.join(_HERE, name + ".py"))
        if spec is None or spec.loader is None:
            raise ImportError("no file %s.py in %s" % (name, _HERE))
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]
