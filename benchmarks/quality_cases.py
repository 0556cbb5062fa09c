"""What `quality.py` trains: each model on data of its workload's form, and some on the census.

What a case on generated data is told was chosen on other rows (seed 5) than those that it is judged
on (seed 3). The first two of the census are the example's, and the others are told the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
SEED = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model on one form of data.

    Attributes:
        model, params, optimizer, batch_size, epochs: as in a jobs file.
        like: a shape of generated data, or ``census``.
        data: options of the shape; empty for the census.
    """

    model: str
    like: str
    optimizer: Mapping[str, Any]
    params: Mapping[str, Any]
    data: Mapping[str, int] = field(default_factory=dict)
    batch_size: int = 256
    epochs: int = 2

    @property
    def name(self) -> str:
        return f"{self.model} on {self.like}"

    @property
    def source(self) -> dict[str, Any]:
        """The data as a jobs file says it, their held-out fifth included."""
        if self.like == "census":
            return census_data()
        return {
            "format": "generated", "like": self.like, "seed": SEED, **self.data,
            "valid": {"fraction": 0.2, "seed": 0},
        }  # fmt: skip


def census_data() -> dict[str, Any]:
    """As examples/adult.yaml has it: numbers in 32 quantile bins, a fixed split."""
    document = YAML(typ="safe").load((ROOT / "examples" / "adult.yaml").read_text())
    data: dict[str, Any] = document["defaults"]["data"]
    return {**data, "path": str((ROOT / "examples" / data["path"]).resolve())}


def _adam(lr: float) -> dict[str, Any]:
    return {"name": "adam", "lr": lr}


CRITEO = {"rows": 300_000, "max_table_rows": 100, "pair_percent": 100}
AVAZU = {"rows": 100_000, "max_table_rows": 100}
AMAZON = {"rows": 100_000, "items": 500, "categories": 20, "history": 5}
# DPIN sees at which positions a user clicked, but not how often: in long histories that is less.
KDD = {"rows": 100_000, "items": 500, "categories": 20, "history": 3}
SMALL = {"embedding_dim": 8, "mlp": [64, 32]}

PLANTED = (
    Case(
        model="dlrm", like="criteo", data=CRITEO, optimizer=_adam(0.003),
        params={"embedding_dim": 8, "bottom_mlp": [32, 8], "top_mlp": [64]},
    ),
    Case(model="deepfm", like="criteo", data=CRITEO, optimizer=_adam(0.003), params=SMALL),
    Case(
        model="dcn", like="criteo", data=CRITEO, optimizer=_adam(0.003),
        params={**SMALL, "cross_layers": 3}, epochs=4,
    ),
    Case(
        model="dcn_v2", like="criteo", data=CRITEO, optimizer=_adam(0.003),
        params={**SMALL, "cross_layers": 2},
    ),
    Case(model="difm", like="criteo", data=CRITEO, optimizer=_adam(0.003), params=SMALL),
    Case(
        model="widedeep", like="criteo", data=CRITEO, optimizer=_adam(0.003), params=SMALL, epochs=3
    ),
    Case(model="widedeep", like="avazu", data=AVAZU, optimizer=_adam(0.003), params=SMALL),
    Case(model="flen", like="avazu", data=AVAZU, optimizer=_adam(0.003), params=SMALL),
    Case(
        model="din", like="amazon", data=AMAZON, optimizer=_adam(0.003), epochs=3,
        params={"mlp": [64, 32], "attention_mlp": [32]},
    ),
    Case(model="dien", like="amazon", data=AMAZON, optimizer=_adam(0.003), params=SMALL),
    Case(
        model="bst", like="amazon", data=AMAZON, optimizer=_adam(0.003),
        params={**SMALL, "heads": 2},
    ),
    Case(
        model="dmr", like="alimama", optimizer=_adam(0.005),
        data={"rows": 100_000, "items": 500, "categories": 10, "history": 8, "users": 1000},
        params={"mlp": [64, 32], "length": 20, "negatives": 100},
    ),
    Case(
        model="dpin", like="kdd2012", data=KDD, optimizer=_adam(0.003), epochs=3,
        params={"base_mlp": [64, 32], "width": 32, "mlp": [32]},
    ),
    Case(
        model="bert4rec", like="beauty", optimizer=_adam(0.002), epochs=4,
        data={"rows": 40_000, "items": 500, "categories": 20},
        params={"length": 16, "layers": 1, "negatives": 200},
    ),
)  # fmt: skip


def _census(model: str, **params: Any) -> Case:
    return Case(
        model=model, like="census", optimizer={"name": "rowwise_adagrad", "lr": 0.02}, epochs=6,
        params={"embedding_dim": 16, **params},
    )  # fmt: skip


CENSUS = (
    _census("deepfm", mlp=[64, 32], dropout=0.3),
    _census("dlrm", bottom_mlp=[32, 16], top_mlp=[32]),
    _census("dcn_v2", mlp=[64, 32], cross_layers=2),
    _census("widedeep", mlp=[64, 32]),
)
