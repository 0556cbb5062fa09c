"""The trainings of RMixer under the recorder: the very loop that trains, on fake tables.

Batches are real: the largest of the first epoch where the data are parsed, so that list lengths and
touched rows are true; uniformly drawn ids where only table sizes are known, which touch the most
rows that a batch can touch on average.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch

from rmixer.data.batch import Batch, Lists
from rmixer.data.dataset import Dataset, shuffled
from rmixer.data.info import DataInfo
from rmixer.errors import UsageError
from rmixer.models import layers, params
from rmixer.models.model import build
from rmixer.trace.cost import operator_cost
from rmixer.trace.recorder import INPUTS, Recorder
from rmixer.trace.surface import Surface
from rmixer.train import optimizers
from rmixer.train.loop import EVALUATION_BATCH, Settings, train

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The peak is reached by the second step; a heap may still grow in the third. With four or six,
#: estimates of models with lists, whose batches all differ in size, came no nearer.
STEPS = 3
#: So many batches of the first epoch are looked at for the one with the longest lists.
_SEARCHED_BATCHES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training to trace.

    Attributes:
        model, params, optimizer, batch_size, seed: as in a jobs file.
        folder: the parsed data.
        info: the shape of data that are not parsed, from their headers.
        Without either, table sizes are in ``params.table_rows``.
    """

    model: str
    params: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    batch_size: int
    seed: int = 0
    folder: Path | None = None
    info: DataInfo | None = None


class _Rows(Protocol):
    """Where batches come from."""

    info: DataInfo
    train_rows: NDArray[np.int64]
    valid_rows: NDArray[np.int64]

    def batch(self, rows: NDArray[np.int64]) -> Batch: ...


def trace_training(training: Training, logical: str = "cpu") -> dict[str, Any]:
    """The trace of building a model, a few steps and one batch of evaluation.

    Raises:
        UsageError: neither data nor table sizes, or a parameter is not right.
    """
    source = _source(training)
    recorder = Recorder(logical, cost=operator_cost)
    with recorder.recording(), Surface(recorder), _noted_unique(recorder), torch.random.fork_rng():
        torch.manual_seed(training.seed)
        model = build(training.model, training.params, source.info)
        recorder.label_model(model)
        recorder.large_bytes = sys.maxsize  # what is made from now on without a fake is input
        optimizer = optimizers.build(training.optimizer, model)
        settings = Settings(batch_size=training.batch_size, steps=STEPS, seed=training.seed)
        train(model, cast("Dataset", _Recorded(source, recorder)), optimizer, settings)
        return recorder.document()


class _Recorded:
    """What the training loop needs of a data set: batches are labelled, and steps are marked."""

    def __init__(self, rows: _Rows, recorder: Recorder) -> None:
        self._rows, self._recorder = rows, recorder
        self.info, self.train_rows, self.valid_rows = rows.info, rows.train_rows, rows.valid_rows

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        self._recorder.mark("batch")
        if not _is_evaluation(rows):
            self._recorder.clear_costs()
        else:
            self._recorder.cost = None
        batch = self._rows.batch(rows)
        self._recorder.label_all(batch, INPUTS, "batch")
        return batch

    def labels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.arange(len(rows), dtype=np.uint8) % 2


def _source(training: Training) -> _Rows:
    if training.folder is not None:
        return _Parsed(Dataset(training.folder), training)
    if training.info is not None:
        return _Drawn(training.info, training)
    parsed = params.parse(training.model, training.params) if ":" not in training.model else None
    rows = parsed.table_rows if parsed else training.params.get("table_rows")
    if not rows:
        raise UsageError("neither data nor params.table_rows say how large the tables are")
    dense = parsed.dense_features if parsed else training.params.get("dense_features", 13)
    return _Drawn(DataInfo.from_sizes(rows, dense), training)


class _Parsed:
    """The rows of a data set: the largest batch of the first epoch, and its first ones."""

    def __init__(self, dataset: Dataset, training: Training) -> None:
        self._dataset = dataset
        self.info = dataset.info
        self._batches = self._choose(dataset.train_rows, training)
        self._next = itertools.cycle(self._batches)
        self._evaluated = np.asarray(dataset.valid_rows[:EVALUATION_BATCH])
        rows = len(self._batches[0]) if self._batches else 0
        self.train_rows = np.arange(STEPS * rows)
        # One batch of evaluation shows what it needs: none is larger.
        self.valid_rows = -1 - np.arange(len(self._evaluated))

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        evaluation = _is_evaluation(rows)
        return self._dataset.batch(self._evaluated if evaluation else next(self._next))

    def _choose(self, rows: NDArray[np.int64], training: Training) -> list[NDArray[np.int64]]:
        """Where there are lists: the first ones, then the batch with most ids; else the first."""
        batches = shuffled(rows, training.batch_size, training.seed, 1)
        if not self.info.sequences:
            return list(itertools.islice(batches, 1))
        found = list(itertools.islice(batches, _SEARCHED_BATCHES))
        largest = max(found, key=self._dataset.list_ids, default=np.empty(0, np.int64))
        return [*found[: STEPS - 1], largest]


class _Drawn:
    """Rows that are not there, of tables of known sizes: ids drawn uniformly, lists full."""

    def __init__(self, info: DataInfo, training: Training) -> None:
        self.info = info
        self._generator = np.random.default_rng(training.seed)
        size, evaluated = training.batch_size, EVALUATION_BATCH
        if info.rows:
            size, evaluated = min(size, info.train_rows), min(evaluated, info.valid_rows)
        self.train_rows = np.arange(STEPS * size)
        self.valid_rows = -1 - np.arange(evaluated)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        size, draw = len(rows), self._generator.integers
        ids = [draw(0, self.info.tables[f.table].rows, size) for f in self.info.fields]
        sparse = np.stack(ids, 1) if ids else np.empty((size, 0), np.int64)
        return Batch(
            dense_BN=torch.zeros(size, len(self.info.dense)),
            sparse_BF=torch.from_numpy(sparse.astype(np.int32)),
            label_B=torch.zeros(size),
            sequences={
                s.name: Lists.of(
                    draw(0, self.info.tables[s.table].rows, size * s.max_length).astype(np.int32),
                    np.full(size, s.max_length),
                )
                for s in self.info.sequences
            },
        )


def _is_evaluation(rows: NDArray[np.int64]) -> bool:
    """Rows of the held-out part are numbered below 0."""
    return bool(len(rows) and rows[0] < 0)


@contextmanager
def _noted_unique(recorder: Recorder) -> Iterator[None]:
    """The rows that a batch touches are found outside torch: tell the recorder what that takes."""
    original = layers.distinct

    def distinct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        recorder.temporary("numpy.unique" if recorder.logical == "cpu" else "_unique2", len(rows))
        found = original(rows)
        for tensor in found:
            recorder.label(tensor, "", "")
        return found

    layers.distinct = distinct
    try:
        yield
    finally:
        layers.distinct = original
