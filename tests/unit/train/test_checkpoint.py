"""A training that was stopped anywhere and goes on is the one that was never stopped, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies

from disks import small_disk_at
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.models.model import build
from rmixer.train import checkpoint, optimizers
from rmixer.train.checkpoint import Checkpoints
from rmixer.train.loop import Result, Settings, StoppedError, train

torch.set_num_threads(1)
DEEPFM = ("deepfm", {"embedding_dim": 4, "mlp": [8], "dropout": 0.2})
DIEN = ("dien", {"embedding_dim": 4, "mlp": [8]})


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    place = tmp_path_factory.mktemp("cache")
    data = {"format": "generated", "rows": 700, "max_table_rows": 200, "history": 3}
    made = {}
    for model, like in (("deepfm", "criteo"), ("dien", "behaviour")):
        made[model] = Dataset(cache.prepare(schema.parse({**data, "like": like}), place))
    return made


class Stops:
    """Asked before every step: says yes at one of them, once."""

    def __init__(self, at: int | None) -> None:
        self.at, self.asked = at, -1

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked == self.at


def attempt(
    dataset: Dataset, what: tuple, optimizer: str, kept: Checkpoints | None, stop: int | None = None
) -> tuple[torch.nn.Module, Result | None]:
    torch.manual_seed(0)
    model = build(what[0], what[1], dataset.info)
    built = optimizers.build({"name": optimizer, "lr": 0.01}, model)
    try:
        result = train(
            model, dataset, built, Settings(batch_size=64, epochs=3), checkpoints=kept,
            should_stop=Stops(stop),
        )  # fmt: skip
    except StoppedError:
        return model, None
    return model, result


@pytest.mark.parametrize("what", [DEEPFM, DIEN], ids=["deepfm", "dien"])
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sparse_adam"])
@pytest.mark.parametrize("stops", [(5,), (10, 10), (1, 14, 7)])
def test_it_ends_with_the_same_bits(
    tmp_path: Path, datasets: dict[str, Dataset], what: tuple, optimizer: str, stops: tuple
) -> None:
    """Stopped within an epoch, at its end, several times: weights and metrics are equal."""
    dataset = datasets[what[0]]
    whole, wanted = attempt(dataset, what, optimizer, None)
    kept = Checkpoints(tmp_path / "c", "me")
    for stop in stops:
        assert attempt(dataset, what, optimizer, kept, stop)[1] is None
    model, found = attempt(dataset, what, optimizer, kept)
    assert wanted is not None
    assert found is not None
    for key, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key
    for name in ("steps", "samples", "epochs", "train_loss", "first_loss", "auc", "logloss"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.resumed_samples > 0


def test_checkpoints_by_time_change_nothing(
    tmp_path: Path, datasets: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after every step; at most two are kept, and none when they are removed."""
    monkeypatch.setattr(checkpoint, "SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    dataset = datasets["deepfm"]
    whole, _ = attempt(dataset, DEEPFM, "adam", None)
    kept = Checkpoints(tmp_path / "c", "me")
    model, result = attempt(dataset, DEEPFM, "adam", kept)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True)
    )
    assert result is not None
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    last = [f"{result.steps - 1:09d}", f"{result.steps:09d}"]
    assert names == [f"{name}.{kind}" for name in last for kind in ("json", "pt")]
    kept.remove()
    assert not (tmp_path / "c").exists()


def saved(folder: Path, *steps: int, identity: str = "me") -> Checkpoints:
    kept = Checkpoints(folder, identity)
    for step in steps:
        assert kept.save(step, {"step": step, "weights": torch.arange(50.0)})
    return kept


def test_of_another_job_none_is_used(tmp_path: Path) -> None:
    """And it is said."""
    saved(tmp_path, 3, identity="other")
    said: list[str] = []
    assert Checkpoints(tmp_path, "me", said.append).load() is None
    assert said == ["checkpoint of step 3 is not used: it is of another job"]


@settings(max_examples=60, deadline=None)
@given(where=strategies.floats(0, 1, exclude_max=True), cut=strategies.booleans())
def test_a_damaged_one_is_seen_and_the_one_before_is_used(
    tmp_path_factory: pytest.TempPathFactory, where: float, cut: bool
) -> None:
    """Whichever byte is another one, or wherever it is cut off."""
    folder = tmp_path_factory.mktemp("c")
    kept = saved(folder, 1, 2)
    path = folder / "000000002.pt"
    content = bytearray(path.read_bytes())
    at = int(where * len(content))
    content[at] ^= 0x10
    path.write_bytes(content[:at] if cut else content)
    state = kept.load()
    assert state is not None
    assert state["step"] == 1


def test_a_half_written_one_does_not_count(tmp_path: Path) -> None:
    """Killed before the description was in place; the next one sweeps it away."""
    kept = saved(tmp_path, 1)
    (tmp_path / "000000009.pt").write_bytes(b"half")
    (tmp_path / ".000000010.part").write_bytes(b"half")
    state = kept.load()
    assert state is not None
    assert state["step"] == 1
    kept.save(2, {"step": 2})
    assert {path.name for path in tmp_path.glob("*.pt")} == {"000000001.pt", "000000002.pt"}
    assert not list(tmp_path.glob(".*.part"))


def test_both_damaged_is_none(tmp_path: Path) -> None:
    """Each is named, and the training begins anew."""
    saved(tmp_path, 1, 2)
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(b"x")
    (tmp_path / "000000001.json").write_text(json.dumps([]))
    said: list[str] = []
    assert Checkpoints(tmp_path, "me", said.append).load() is None
    assert len(said) == 2


def test_a_disk_that_takes_none_does_not_end_the_training(tmp_path: Path) -> None:
    """It is said with the step."""
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    kept = Checkpoints(tmp_path / "file" / "c", "me", said.append)
    assert not kept.save(7, {"step": 7})
    assert said[0].startswith("no checkpoint at step 7: ")


def test_a_full_disk_keeps_the_one_before(tmp_path: Path) -> None:
    """Nothing half-written stays, and what was there can be gone on from."""
    with small_disk_at(tmp_path, "1m") as disk:
        said: list[str] = []
        kept = Checkpoints(disk / "c", "me", said.append)
        assert kept.save(1, {"step": 1})
        assert not kept.save(2, {"step": 2, "weights": torch.ones(1 << 20)})
        assert "going on" in said[0]
        assert not list((disk / "c").glob(".*"))
        state = kept.load()
        assert state is not None
        assert state["step"] == 1


def test_a_dear_one_comes_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took 12 s is not written again for 10 minutes: 2 % of the time."""
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    real = torch.save

    def slow(*args: object) -> None:
        now[0] += 12.0
        real(*args)

    monkeypatch.setattr(torch, "save", slow)
    kept = Checkpoints(tmp_path, "me")
    now[0] = 61.0
    assert kept.is_due()
    kept.save(1, {})
    now[0] = 73.0 + 599.0
    assert not kept.is_due()
    now[0] = 73.0 + 601.0
    assert kept.is_due()
