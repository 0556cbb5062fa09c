"""The models learn what can be learned: planted signals, and the census."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder

from rmixer.data import cache, schema, synthetic
from rmixer.data.dataset import Dataset
from rmixer.data.info import RESERVED_IDS
from rmixer.models.model import build
from rmixer.train import optimizers
from rmixer.train.loop import DivergedError, Settings, StoppedError, train
from rmixer.train.metrics import auc

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[3]
ADULT = ROOT.parent / "shared" / "data" / "adult_census" / "adult.csv.gz"


def dataset(data: dict, folder: Path) -> Dataset:
    return Dataset(cache.prepare(schema.parse(data), folder))


def auc_of(data: Dataset, name: str, params: dict, optimizer: dict, settings: Settings) -> float:
    torch.manual_seed(settings.seed)
    model = build(name, params, data.info)
    return train(model, data, optimizers.build(optimizer, model), settings).auc


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    data = {"format": "generated", "like": "criteo", "rows": 60_000, "max_table_rows": 1000}
    return dataset(data, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dlrm", {"embedding_dim": 8, "bottom_mlp": [32, 8], "top_mlp": [64]}),
        ("deepfm", {"embedding_dim": 8, "mlp": [64]}),
    ],
)
def test_it_finds_the_signal_in_criteo_shaped_rows(
    criteo: Dataset, name: str, params: dict
) -> None:
    settings = Settings(batch_size=256, epochs=2)
    found = auc_of(criteo, name, params, {"name": "rowwise_adagrad", "lr": 0.03}, settings)
    assert found > 0.68


def test_din_finds_the_signal_that_is_only_in_the_sequence(tmp_path: Path) -> None:
    data = dataset(
        {"format": "generated", "like": "behaviour", "rows": 40_000, "items": 300, "categories": 20,
         "history": 6},
        tmp_path,
    )  # fmt: skip
    params = {"embedding_dim": 8, "attention_mlp": [32], "mlp": [32]}
    settings = Settings(batch_size=256, epochs=2)
    optimizer = {"name": "adam", "lr": 0.005}
    din = auc_of(data, "din", params, optimizer, settings)
    # Nothing but the item and its category: what can be known without the history.
    (rows,) = [np.concatenate([c.probability_B for c in synthetic.behaviour(40_000, 0, items=300, categories=20, history=6)])]  # fmt: skip
    best = auc(data.labels(data.valid_rows), rows[data.valid_rows])
    assert best > 0.8
    assert din > 0.72


def test_it_stops_when_asked_and_says_where(criteo: Dataset) -> None:
    model = build("deepfm", {"embedding_dim": 2, "mlp": [4]}, criteo.info)
    asked = iter([False, False, True])
    with pytest.raises(StoppedError, match="stopped after 2 of 9 steps"):
        train(
            model, criteo, optimizers.build({"name": "sgd"}, model), Settings(steps=9),
            should_stop=lambda: next(asked),
        )  # fmt: skip


def test_a_loss_that_is_not_finite_names_its_step(criteo: Dataset) -> None:
    model = build("deepfm", {"embedding_dim": 2, "mlp": [4]}, criteo.info)
    optimizer = optimizers.build({"name": "sgd", "lr": 1e-9}, model)
    seen = []

    def poison() -> bool:
        seen.append(0)
        if len(seen) == 24:
            with torch.no_grad():
                model.bias.fill_(float("nan"))
        return False

    with pytest.raises(DivergedError, match="the training loss is nan at step 24"):
        train(model, criteo, optimizer, Settings(steps=60, batch_size=64), should_stop=poison)


def logistic_regression(data: Dataset) -> float:
    """Held-out AUC of logistic regression on the same columns, ids one-hot."""
    train_rows, valid_rows = np.asarray(data.train_rows), np.asarray(data.valid_rows)
    parts = []
    encoder = OneHotEncoder(handle_unknown="ignore")
    encoder.fit(data.batch(train_rows).sparse_BF.numpy())
    for rows in (train_rows, valid_rows):
        batch = data.batch(rows)
        parts.append(
            sparse.hstack(
                [encoder.transform(batch.sparse_BF.numpy()), batch.dense_BN.numpy()]
            ).tocsr()
        )
    model = LogisticRegression(max_iter=2000).fit(parts[0], data.labels(train_rows))
    return auc(data.labels(valid_rows), model.decision_function(parts[1]))


@pytest.mark.skipif(not ADULT.exists(), reason=f"needs {ADULT}")
def test_the_census_jobs_beat_logistic_regression_on_the_same_columns(tmp_path: Path) -> None:
    jobs = YAML(typ="safe").load((ROOT / "examples" / "adult.yaml").read_text())
    defaults = jobs["defaults"]
    assert (ROOT / "examples" / defaults["data"]["path"]).samefile(ADULT)
    data = dataset({**defaults["data"], "path": str(ADULT)}, tmp_path)
    assert data.info.rows == 48_842
    assert data.info.tables[0].rows == RESERVED_IDS + 8
    settings = Settings(
        batch_size=defaults["batch_size"], epochs=defaults["epochs"], seed=defaults["seed"]
    )
    floor = logistic_regression(data)
    for job in jobs["jobs"]:
        for lr in job["sweep"]["lr"]:
            optimizer = {**job["optimizer"], "lr": lr}
            found = auc_of(data, job["model"], job["params"], optimizer, settings)
            assert found > max(0.912, floor)
