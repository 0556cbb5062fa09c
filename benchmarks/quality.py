"""Whether each model finds what there is to find: held-out AUC on data with a planted signal.

Each model is trained on generated rows of its workload's form. Beside its AUC stand that of the
probabilities from which the labels were drawn, which nothing can beat but by luck, and that of
logistic regression on the same features (one-hot ids, the mean of a list's ids, the numbers). The
model must find at least 90 % of what is above chance, and more than logistic regression.

    python benchmarks/quality.py              # all; writes results/quality.json, docs/models.md
    python benchmarks/quality.py --only dlrm  # those with that in their name, in place of the old
    python benchmarks/quality.py --table      # the table of the last results again
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression

from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.data.generated import shape, sizes_of
from rmixer.models.model import build
from rmixer.train import optimizers
from rmixer.train.loop import Settings, train
from rmixer.train.metrics import auc

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "quality.json"
DOCS = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- quality: begin -->", "<!-- quality: end -->"
SHARE_GOAL = 0.90

FIELDS = {"rows": 100_000, "max_table_rows": 100}
PAST = {"items": 1000, "categories": 20}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model on one form of data.

    Attributes:
        model, like, data, params, optimizer, batch_size, epochs: as in a jobs file.
    """

    model: str
    like: str
    data: Mapping[str, int]
    optimizer: Mapping[str, Any]
    batch_size: int = 512
    epochs: int = 4
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model} on {self.like}"


def _adam(lr: float) -> dict[str, Any]:
    return {"name": "adam", "lr": lr}


CASES = (
    Case(model="dlrm", like="criteo", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="deepfm", like="criteo", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="dcn", like="criteo", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="dcn_v2", like="criteo", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="difm", like="criteo", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="widedeep", like="criteo", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="widedeep", like="avazu", data=FIELDS, optimizer=_adam(0.002)),
    Case(model="flen", like="avazu", data=FIELDS, optimizer=_adam(0.002)),
    Case(
        model="din", like="amazon", data={"rows": 100_000, **PAST}, optimizer=_adam(0.002),
        batch_size=256,
    ),
    Case(
        model="dien", like="amazon", data={"rows": 100_000, **PAST}, optimizer=_adam(0.002),
        batch_size=256,
    ),
    Case(
        model="bst", like="amazon", data={"rows": 100_000, **PAST}, optimizer=_adam(0.002),
        batch_size=256,
    ),
    Case(
        model="dmr", like="alimama", data={"rows": 100_000, **PAST}, optimizer=_adam(0.002),
        batch_size=256,
    ),
    Case(
        model="dpin", like="kdd2012", data={"rows": 100_000, **PAST}, optimizer=_adam(0.002),
        batch_size=256,
    ),
    Case(
        model="bert4rec", like="beauty", data={"rows": 40_000, **PAST}, optimizer=_adam(0.002),
        batch_size=256,
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {row["name"]: row for row in kept}
    if not args.table:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory(prefix="quality-") as folder:
            for case in CASES:
                if args.only in case.name:
                    rows[case.name] = measure(case, Path(folder))
                    print(line(rows[case.name]), flush=True)
    document = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "rows": [rows[case.name] for case in CASES if case.name in rows],
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    write_table(document)


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Train the model and logistic regression; the held-out AUC of both and of the truth."""
    data = {
        "format": "generated", "like": case.like, "seed": 3, **case.data,
        "valid": {"fraction": 0.2, "seed": 0},
    }  # fmt: skip
    dataset = Dataset(cache.prepare(schema.parse(data), folder))
    began = time.perf_counter()
    torch.manual_seed(0)
    model = build(case.model, case.params, dataset.info)
    settings = Settings(batch_size=case.batch_size, epochs=case.epochs)
    result = train(model, dataset, optimizers.build(case.optimizer, model), settings)
    return {
        "name": case.name,
        "model": case.model,
        "data": data,
        "params": dict(case.params),
        "optimizer": dict(case.optimizer),
        "batch_size": case.batch_size,
        "epochs": case.epochs,
        "seconds": round(time.perf_counter() - began, 1),
        "auc": result.auc,
        "possible": best_auc(case, dataset),
        "logistic_regression": linear_auc(dataset),
    }


def best_auc(case: Case, dataset: Dataset) -> float:
    """The AUC of the probabilities from which the held-out labels were drawn."""
    rows = shape(case.like).rows(sizes_of(case.like, seed=3, **case.data))
    probability = np.concatenate([some.probability_B for some in rows])
    held = dataset.valid_rows
    odds = np.log(probability[held] / (1 - probability[held]))
    return auc(dataset.labels(held), odds)


def linear_auc(dataset: Dataset) -> float:
    """Logistic regression on one-hot ids, means of one-hot lists, and the numbers."""
    every = np.arange(dataset.info.rows)
    batch, labels = dataset.batch(every), dataset.labels(every)
    parts = []
    for j, one in enumerate(dataset.info.fields):
        ids = batch.sparse_BF[:, j].numpy()
        width = dataset.info.tables[one.table].rows
        parts.append(sp.csr_matrix((np.ones(len(ids)), (every, ids)), (len(every), width)))
    for sequence in dataset.info.sequences:
        lists = batch.sequences[sequence.name]
        owner, ids = lists.owner_L.numpy(), lists.values_L.numpy()
        weight = 1 / np.maximum(1, lists.length_B.numpy())[owner]
        width = dataset.info.tables[sequence.table].rows
        parts.append(sp.csr_matrix((weight, (owner, ids)), (len(every), width)))
    if dataset.info.dense:
        parts.append(sp.csr_matrix(batch.dense_BN.numpy()))
    x = sp.hstack(parts).tocsr()
    fitted = LogisticRegression(max_iter=300).fit(x[dataset.train_rows], labels[dataset.train_rows])
    held = dataset.valid_rows
    return auc(labels[held], fitted.decision_function(x[held]))


def share(row: Mapping[str, Any]) -> float:
    """How much of what is above chance was found."""
    return float((row["auc"] - 0.5) / (row["possible"] - 0.5))


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cases that miss a goal."""
    return [
        row["name"]
        for row in rows
        if share(row) < SHARE_GOAL or row["auc"] <= row["logistic_regression"]
    ]


def line(row: Mapping[str, Any]) -> str:
    return (
        f"{row['name']:22} {row['auc']:.4f} of {row['possible']:.4f}: {100 * share(row):.1f} %; "
        f"logistic regression {row['logistic_regression']:.4f}; {row['seconds']:.0f} s"
    )


def table(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    lines = [
        f"`python benchmarks/quality.py`, {document['machine']}, {document['date']}: held-out AUC.",
        "",
        "| model and data | rows | model | possible | found | logistic regression |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['data']['rows']:,} | {row['auc']:.4f} | {row['possible']:.4f} | "
        f"{100 * share(row):.1f} % | {row['logistic_regression']:.4f} |"
        for row in rows
    ]
    return "\n".join(lines)


def write_table(document: Mapping[str, Any]) -> None:
    """Put the figures into the page."""
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    DOCS.write_text(f"{before}{BEGIN}\n{table(document)}\n{END}{after}")


if __name__ == "__main__":
    main()
