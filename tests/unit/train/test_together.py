"""Trainings that share a process and their tables end as each does alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rmixer.data import cache, schema
from rmixer.data.batch import Batch
from rmixer.data.dataset import Dataset
from rmixer.models.model import build
from rmixer.train import optimizers, together
from rmixer.train.checkpoint import Checkpoints
from rmixer.train.loop import DivergedError, Result, Settings, StoppedError, train
from rmixer.train.together import End, Member, train_together

torch.set_num_threads(1)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dlrm": ("criteo", {"bottom_mlp": [16, 4], "top_mlp": [16], "embedding_dim": 4}),
    "deepfm": ("criteo", {"mlp": [16], "dropout": 0.2, "embedding_dim": 4}),
    "dcn_v2": ("criteo", {"mlp": [16], "embedding_dim": 2, "cross_layers": 2}),
    "widedeep": (
        "criteo",
        {"mlp": [16], "embedding_dim": 2, "crosses": [["C1", "C2"]], "cross_buckets": 50},
    ),
    "din": ("behaviour", {"mlp": [16], "attention_mlp": [8], "embedding_dim": 4}),
    "bert4rec": ("behaviour", {"embedding_dim": 4, "layers": 1}),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Dataset]:
    place = tmp_path_factory.mktemp("cache")
    data = {"format": "generated", "rows": 900, "max_table_rows": 200, "history": 4}
    return {
        like: Dataset(cache.prepare(schema.parse({**data, "like": like}), place))
        for like in ("criteo", "behaviour")
    }


class Double(Dataset):
    """Numbers in float64."""

    def batch(self, rows: Any) -> Batch:
        batch = super().batch(rows)
        return replace(batch, dense_BN=batch.dense_BN.double(), label_B=batch.label_B.double())


class StopAt:
    """Says yes when asked for that time, and after."""

    def __init__(self, at: float) -> None:
        self.at, self.asked = at, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.at


def member(
    dataset: Dataset, model: str, optimizer: Mapping[str, Any], init: int = 0, **settings: Any
) -> Member:
    """A training whose weights begin with one seed and whose rows are ordered by another."""
    torch.manual_seed(init)
    kind = torch.float64 if isinstance(dataset, Double) else torch.float32
    built = build(model, MODELS[model][1], dataset.info).to(kind)
    return Member(
        model=built,
        optimizer=optimizers.build(optimizer, built),
        settings=Settings(**{"batch_size": 64, "steps": 22, **settings}),
        random=torch.get_rng_state(),
    )


def alone(one: Member, dataset: Dataset) -> Result:
    assert one.random is not None
    torch.set_rng_state(one.random)
    return train(one.model, dataset, one.optimizer, one.settings)


def assert_same(one: Member, end: End, other: Member, result: Result, within: float) -> None:
    """Losses of training and evaluation, and every weight."""
    assert isinstance(end, Result), end
    for name in ("steps", "samples", "epochs"):
        assert getattr(end, name) == getattr(result, name)
    for name in ("first_loss", "train_loss", "auc", "logloss"):
        assert math.isclose(getattr(end, name), getattr(result, name), abs_tol=within), name
    for key, value in other.model.state_dict().items():
        torch.testing.assert_close(one.model.state_dict()[key], value, rtol=0, atol=within)


def check(dataset: Dataset, members: list[tuple[Any, ...]], within: float) -> None:
    ours = [member(dataset, *args[:-1], **args[-1]) for args in members]
    theirs = [member(dataset, *args[:-1], **args[-1]) for args in members]
    ends = train_together(ours, dataset)
    for one, end, other in zip(ours, ends, theirs, strict=True):
        assert_same(one, end, other, alone(other, dataset), within)


@pytest.mark.parametrize("model", MODELS)
def test_each_model_ends_as_alone(datasets: Mapping[str, Dataset], model: str) -> None:
    """Own learning rates, weights, dropout and lengths; the last reads other rows than the rest."""
    adam = [{"name": "adam", "lr": lr} for lr in (1e-3, 3e-3, 1e-2)]
    members = [
        (model, adam[0], 1, {"steps": 12}),
        (model, adam[1], 2, {"steps": 5}),
        (model, adam[2], 1, {"steps": 12}),
        (model, adam[2], 1, {"seed": 5, "steps": 8}),
    ]
    check(datasets[MODELS[model][0]], members, 1e-6)


@pytest.mark.parametrize("name", ["adagrad", "rowwise_adagrad", "sgd", "sparse_adam"])
def test_each_optimizer_ends_as_alone(datasets: Mapping[str, Dataset], name: str) -> None:
    """The learning rate is each one's own, in tables too."""
    members = [("dlrm", {"name": name, "lr": lr}, 0, {}) for lr in (0.001, 0.1)]
    check(datasets["criteo"], members, 1e-6)


@pytest.mark.parametrize("model", ["dlrm", "deepfm", "dcn_v2", "widedeep", "din"])
def test_in_float64_a_hundred_steps_are_those_alone(
    datasets: Mapping[str, Dataset], model: str
) -> None:
    """Within 1e-9 at a learning rate of 1e-3: rounding is all that could differ."""
    dataset = Double(datasets[MODELS[model][0]].folder)
    members = [
        (model, {"name": "adam", "lr": lr}, 3, {"steps": 100, "batch_size": 16})
        for lr in (1e-3, 5e-4)
    ]
    check(dataset, members, 1e-9)


def test_tables_are_shared_by_those_that_see_the_same_rows(
    datasets: Mapping[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their seed, batch size and optimizer; one that leaves makes the rest share anew."""
    shared: list[int] = []
    original = together.SideBySide

    def spy(models: Any, built: Any) -> Any:
        shared.append(len(models))
        return original(models, built)

    monkeypatch.setattr(together, "SideBySide", spy)
    adam = {"name": "adam"}
    chosen = [
        member(datasets["criteo"], "dlrm", adam, steps=4),
        member(datasets["criteo"], "dlrm", adam, steps=4),
        member(datasets["criteo"], "dlrm", adam, steps=2),
        member(datasets["criteo"], "dlrm", adam, seed=1, steps=4),
        member(datasets["criteo"], "dlrm", adam, batch_size=32, steps=4),
        member(datasets["criteo"], "dlrm", {"name": "sgd"}, steps=4),
        member(datasets["criteo"], "dcn_v2", adam, steps=4),
    ]
    train_together(chosen, datasets["criteo"])
    assert shared == [3, 2]


def test_one_that_diverges_does_not_touch_the_others(datasets: Mapping[str, Dataset]) -> None:
    """Its numbers are no numbers for 20 steps; its neighbours' are to the end those alone."""
    dataset = datasets["criteo"]
    rates = (1e-3, 1e30, 2e-3)
    ours = [member(dataset, "dlrm", {"name": "sgd", "lr": lr}) for lr in rates]
    told: list[int] = []
    ends = train_together(ours, dataset, lambda number, _end: told.append(number))
    assert isinstance(ends[1], DivergedError)
    assert told[0] == 1
    for k in (0, 2):
        other = member(dataset, "dlrm", {"name": "sgd", "lr": rates[k]})
        assert_same(ours[k], ends[k], other, alone(other, dataset), 1e-6)


def test_stopped_ones_go_on_from_their_checkpoints_alone_or_together(
    tmp_path: Path, datasets: Mapping[str, Dataset]
) -> None:
    """Cancelled at other steps than each other; one goes on alone, one in company."""
    dataset, adam = datasets["criteo"], [{"name": "adam", "lr": lr} for lr in (1e-3, 2e-3, 3e-3)]
    kept = [Checkpoints(tmp_path / str(k), "me") for k in range(2)]
    begun = [
        replace(member(dataset, "deepfm", adam[k]), checkpoints=kept[k], should_stop=StopAt(at))
        for k, at in enumerate((7, 19))
    ]
    ends = train_together([*begun, member(dataset, "deepfm", adam[2])], dataset)
    assert [type(end) for end in ends] == [StoppedError, StoppedError, Result]
    again = [replace(member(dataset, "deepfm", adam[k]), checkpoints=kept[k]) for k in range(2)]
    first = train(
        again[0].model, dataset, again[0].optimizer, again[0].settings, checkpoints=kept[0]
    )
    second = train_together([member(dataset, "deepfm", adam[2]), again[1]], dataset)[1]
    for k, end in enumerate((first, second)):
        other = member(dataset, "deepfm", adam[k])
        assert_same(again[k], end, other, alone(other, dataset), 1e-6)


def test_a_checkpoint_on_the_way_changes_nothing(
    tmp_path: Path, datasets: Mapping[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One member writes its state after every step, while its tables are beside another's."""
    dataset, adam = datasets["criteo"], {"name": "adam", "lr": 1e-3}
    saving = Checkpoints(tmp_path / "c", "me")
    monkeypatch.setattr(saving, "is_due", lambda: True)
    ours = [
        replace(member(dataset, "dlrm", adam), checkpoints=saving),
        member(dataset, "dlrm", adam, 1),
    ]
    ends = train_together(ours, dataset)
    for k in range(2):
        other = member(dataset, "dlrm", adam, k)
        assert_same(ours[k], ends[k], other, alone(other, dataset), 1e-6)
