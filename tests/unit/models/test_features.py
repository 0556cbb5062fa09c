"""What columns a model needs, and what it can do without."""

from pathlib import Path
from typing import Any

import pytest

from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.models.features import validate
from rmixer.models.model import build
from rmixer.train import optimizers
from rmixer.train.loop import Settings, train


def csv(**columns: Any) -> dict[str, Any]:
    return {"format": "csv", "path": "d.csv", "schema": {"label": "y", **columns}}


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (csv(sparse=["item"], sequence={"hist": {"shares": "item"}}), None),
        (csv(sparse=["item"], sequence={"hist": {}}), "schema"),
        (csv(sparse=["item"]), "schema"),
        ({"format": "generated", "like": "behaviour", "rows": 9}, None),
        ({"format": "generated", "like": "criteo", "rows": 9}, "like"),
        ({"format": "criteo", "path": "train.tsv"}, "format"),
    ],
)
def test_din_needs_a_sequence_that_shares_a_field(data: dict[str, Any], key: str | None) -> None:
    """The key that would have to change is named; a model without that need is content."""
    assert [found for found, _ in validate("din", data)] == ([] if key is None else [key])
    assert validate("deepfm", data) == []


@pytest.mark.parametrize(
    ("columns", "right"),
    [
        ({"dense": ["x"]}, True),
        ({"sparse": ["a", "b"]}, True),
        ({"sparse": ["a"], "sequence": {"hist": {}}}, True),
        ({"sparse": ["a"]}, False),
        ({"sequence": {"hist": {}}}, False),
    ],
)
def test_dlrm_needs_two_vectors_or_numbers(columns: dict[str, Any], right: bool) -> None:
    """One embedding alone would never reach its top MLP: it could learn nothing."""
    assert (validate("dlrm", csv(**columns)) == []) == right


def test_a_format_of_somebody_else_is_not_checked() -> None:
    """Its columns are its own affair: it is not even imported."""
    assert validate("din", {"format": "no_such_module:Format"}) == []


@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
@pytest.mark.parametrize(
    ("model", "columns"),
    [
        ("dlrm", {"dense": ["x"]}),
        ("deepfm", {"dense": ["x"]}),
        ("dlrm", {"sequence": {"hist": {}, "more": {}}}),
        ("deepfm", {"sequence": {"hist": {}}}),
    ],
)
def test_models_learn_without_sparse_columns(
    tmp_path: Path, columns: dict[str, Any], model: str, optimizer: str
) -> None:
    """Numbers alone or lists alone are enough for a signal to be found."""
    path = tmp_path / "d.csv"
    path.write_text("y,x,hist,more\n" + "1,0.9,a b,d\n0,0.1,c,e\n" * 200)
    data = schema.parse({**csv(**columns), "path": str(path)})
    dataset = Dataset(cache.prepare(data, tmp_path / "cache"))
    params = {"embedding_dim": 4} | ({"bottom_mlp": [4]} if model == "dlrm" else {})
    built = build(model, params, dataset.info)
    settings = Settings(batch_size=20, epochs=8)
    chosen = optimizers.build({"name": optimizer, "lr": 0.03}, built)
    assert train(built, dataset, chosen, settings).auc == 1.0
