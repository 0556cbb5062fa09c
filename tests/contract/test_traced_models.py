"""Every model of the table under every optimizer: traced without memory, as it trains with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.estimate.timeline import gpu_peak, host_peak
from rmixer.models import MODELS
from rmixer.models.features import HISTORY_MODELS
from rmixer.models.model import build
from rmixer.trace import ours
from rmixer.trace.ours import Training, trace_training
from rmixer.trace.recorder import Recorder
from rmixer.train import optimizers
from rmixer.train.loop import Settings, train
from rmixer.train.optimizers_table import OPTIMIZERS

every_model = pytest.mark.parametrize("model", sorted(MODELS))
#: Every optimizer with three models; the others with one.
CASES = [
    (model, optimizer)
    for model in sorted(MODELS)
    for optimizer in sorted(OPTIMIZERS)
    if model in ("deepfm", "din", "dlrm") or optimizer == "adam"
]
#: What is not a default: the data have no column that is called position, and short histories.
PARAMS: dict[str, dict[str, Any]] = {
    "bert4rec": {"length": 8, "embedding_dim": 16, "negatives": 200},
    "bst": {"length": 8},
    "dmr": {"length": 8, "negatives": 200},
    "dpin": {"position": "cate"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Parsed data of both shapes."""
    place = tmp_path_factory.mktemp("cache")
    made = {}
    for like in ("criteo", "behaviour"):
        data = {"format": "generated", "like": like, "rows": 2500, "valid": {"fraction": 0.2}}
        if like == "behaviour":
            data |= {"categories": 20, "history": 4}
        made[like] = cache.prepare(schema.parse(data), place)
    return made


def training(folders: dict[str, Path], model: str, optimizer: str) -> Training:
    like = "behaviour" if model in HISTORY_MODELS else "criteo"
    return Training(
        model=model,
        params=PARAMS.get(model, {}),
        optimizer={"name": optimizer},
        batch_size=512,
        folder=folders[like],
    )


@pytest.mark.parametrize(("model", "optimizer"), CASES)
def test_the_traced_peak_is_that_of_a_real_training(
    folders: dict[str, Path], model: str, optimizer: str
) -> None:
    """The highest sum of living tensors: traced on fake ones, and counted while really training."""
    wanted = training(folders, model, optimizer)
    traced = _highest(trace_training(wanted))
    real = _highest(_really(wanted))
    assert traced == pytest.approx(real, rel=0.02)


@every_model
def test_a_gpu_that_is_not_there(folders: dict[str, Path], model: str) -> None:
    """Parameters, state and activations are all found, and reserved is at least allocated."""
    peak = gpu_peak(trace_training(training(folders, model, "adam"), "cuda"), workspace=1 << 23)
    weights = build(
        model, PARAMS.get(model, {}), Dataset(training(folders, model, "adam").folder).info
    )
    size = sum(p.nbytes for p in weights.parameters())
    assert peak.by_category["parameters"] >= size
    assert peak.by_category["optimizer_state"] >= 2 * size
    assert peak.reserved >= peak.allocated > 4 * size


@every_model
def test_costs_are_those_of_one_step(folders: dict[str, Path], model: str) -> None:
    """Products forward and twice backward: at least 6 FLOPs per dense weight and row."""
    trace = trace_training(training(folders, model, "rowwise_adagrad"))
    flops = sum(row[1] for row in trace["costs"].values())
    moved = sum(row[2] for row in trace["costs"].values())
    info = Dataset(training(folders, model, "sgd").folder).info
    module = build(model, PARAMS.get(model, {}), info)
    dense = sum(p.numel() for name, p in module.named_parameters() if "embedding" not in name)
    assert flops > 3 * 512 * dense
    assert moved > 0
    peak = host_peak(trace)
    assert peak.operator


def _really(wanted: Training) -> dict[str, Any]:
    """The same training on real tensors, watched by the same recorder without its fakes."""
    recorder = Recorder("cpu", large_bytes=1 << 60)
    source = ours._source(wanted)
    with recorder, torch.random.fork_rng(), ours._noted_unique(recorder):
        torch.manual_seed(0)
        module = build(wanted.model, wanted.params, source.info)
        recorder.label_model(module)
        optimizer = optimizers.build(wanted.optimizer, module)
        settings = Settings(batch_size=wanted.batch_size, steps=ours.STEPS)
        train(module, ours._Recorded(source, recorder), optimizer, settings)
    return recorder.document()


def _highest(trace: dict[str, Any]) -> int:
    live = highest = 0
    for event in trace["events"]:
        if event[0] in ("a", "f"):
            size = trace["storages"][event[1]][0]
            live += size if event[0] == "a" else -size
            highest = max(highest, live)
    return highest


def test_the_largest_batch_is_the_one_with_the_longest_lists(folders: dict[str, Path]) -> None:
    """Lists differ from batch to batch; the trace takes the batch with most ids of an epoch."""
    source = ours._Parsed(Dataset(folders["behaviour"]), training(folders, "din", "sgd"))
    dataset = Dataset(folders["behaviour"])
    rows = dataset.train_rows
    some = [source.batch(np.arange(4)) for _ in range(ours.STEPS)]
    found = max(len(one.sequences["hist_items"].values_L) for one in some)
    several = [dataset.batch(rows[i : i + 512]) for i in range(0, 1536, 512)]
    assert found >= max(len(some.sequences["hist_items"].values_L) for some in several)
