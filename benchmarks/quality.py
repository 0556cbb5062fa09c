"""Whether each model finds what there is to find: held-out AUC on data with a planted signal.

Each model is trained on generated rows of its workload's form. Beside its AUC stand that of the
probabilities from which the labels were drawn, which nothing can beat but by luck, and that of
logistic regression on the same features (one-hot ids, the mean of a list's ids, the numbers). The
model must find at least 90 % of what is above chance, and more than logistic regression. On the
census at least three models must reach 0.912; where its file is not, the former figures stay.

    python benchmarks/quality.py              # all; writes results/quality.json, docs/models.md
    python benchmarks/quality.py --only dlrm  # those with that in their name, in place of the old
    python benchmarks/quality.py --table      # the tables of the last results again
    python benchmarks/quality.py --json       # what is measured on stdout, and nothing is written
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression

import pages
from quality_cases import CENSUS, PLANTED, ROOT, SEED, Case
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.data.generated import shape, sizes_of
from rmixer.models.model import build
from rmixer.train import optimizers
from rmixer.train.loop import Settings, train
from rmixer.train.metrics import auc

RESULTS = ROOT / "benchmarks" / "results" / "quality.json"
DOCS = ROOT / "docs" / "models.md"
SHARE_GOAL = 0.90
CENSUS_GOAL, CENSUS_MODELS = 0.912, 3
SMOKE_ROWS = 4000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--table", action="store_true", help="only write the tables again")
    parser.add_argument("--json", action="store_true", help="the document on stdout")
    parser.add_argument("--smoke", action="store_true", help="a few rows; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in (*PLANTED, *CENSUS) if args.only in case.name]
    if not chosen:
        parser.error(f"no case has {args.only!r} in its name")
    if args.table:
        chosen = []
    elif args.smoke:
        chosen = [smaller(case) for case in chosen if case.like != "census"]
    found = measured(chosen, sys.stderr if args.json else sys.stdout)
    if args.json or args.smoke:
        document = new_document(found)
        if args.json:
            print(json.dumps(document))
        return 0
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else new_document({})
    rows = {row["name"]: row for row in kept["rows"] + kept["census"]}
    document = new_document({**rows, **found}) if found else kept
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    write_tables(document)
    for name in missed(document):
        print(f"missed: {name}")
    return 1 if missed(document) else 0


def smaller(case: Case) -> Case:
    """To see whether it runs."""
    return replace(case, data={**case.data, "rows": SMOKE_ROWS}, epochs=1)


def measured(cases: Sequence[Case], say: Any) -> dict[str, dict[str, Any]]:
    """The rows of some cases by name; without those whose data are not here."""
    rows = {}
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        for case in cases:
            if case.like == "census" and not Path(case.source["path"]).exists():
                print(f"{case.name}: skipped, the census is not here", file=say)
                continue
            rows[case.name] = measure(case, Path(folder))
            print(line(rows[case.name]), flush=True, file=say)
    return rows


def new_document(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "rows": [rows[case.name] for case in PLANTED if case.name in rows],
        "census": [rows[case.name] for case in CENSUS if case.name in rows],
    }


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Train the model and logistic regression; the held-out AUC of both and of the truth."""
    dataset = Dataset(cache.prepare(schema.parse(case.source), folder))
    began = time.perf_counter()
    torch.manual_seed(0)
    model = build(case.model, case.params, dataset.info)
    settings = Settings(batch_size=case.batch_size, epochs=case.epochs)
    result = train(model, dataset, optimizers.build(case.optimizer, model), settings)
    return {
        "name": case.name,
        **settings_of(case),
        "held_out_rows": len(dataset.valid_rows),
        "seconds": round(time.perf_counter() - began, 1),
        "auc": result.auc,
        "possible": None if case.like == "census" else best_auc(case, dataset),
        "logistic_regression": linear_auc(dataset.folder),
    }


def settings_of(case: Case) -> dict[str, Any]:
    """What a case was told."""
    return {
        "model": case.model,
        "like": case.like,
        "data": dict(case.data),
        "params": dict(case.params),
        "optimizer": dict(case.optimizer),
        "batch_size": case.batch_size,
        "epochs": case.epochs,
    }


def best_auc(case: Case, dataset: Dataset) -> float:
    """The AUC of the probabilities from which the held-out labels were drawn."""
    rows = shape(case.like).rows(sizes_of(case.like, seed=SEED, **case.data))
    probability = np.concatenate([some.probability_B for some in rows])
    held = dataset.valid_rows
    return auc(dataset.labels(held), probability[held])


@lru_cache
def linear_auc(folder: Path) -> float:
    """Logistic regression on one-hot ids, means of one-hot lists, and the numbers."""
    dataset = Dataset(folder)
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


def missed(document: Mapping[str, Any]) -> list[str]:
    """The cases that miss a goal; ``census`` if too few models reach its."""
    names = [
        row["name"]
        for row in document["rows"]
        if share(row) < SHARE_GOAL or row["auc"] <= row["logistic_regression"]
    ]
    reached = {row["model"] for row in document["census"] if row["auc"] >= CENSUS_GOAL}
    return names + ["census"] * (len(reached) < CENSUS_MODELS)


def line(row: Mapping[str, Any]) -> str:
    best = f" of {row['possible']:.4f}: {100 * share(row):.1f} %" if row["possible"] else ""
    return (
        f"{row['name']:22} {row['auc']:.4f}{best}; "
        f"logistic regression {row['logistic_regression']:.4f}; {row['seconds']:.0f} s"
    )


def tables(document: Mapping[str, Any]) -> str:
    """Both, as they stand in the page."""
    lines = [
        f"`python benchmarks/quality.py`, {document['machine']}, {document['date']}: held-out AUC.",
        "",
        "| model and data | rows | model | possible | found | logistic regression |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['data']['rows']:,} | {row['auc']:.4f} | {row['possible']:.4f} | "
        f"{100 * share(row):.1f} % | {row['logistic_regression']:.4f} |"
        for row in document["rows"]
    ]
    if document["census"]:
        lines += ["", "| model and data | model | logistic regression |", "|---|---:|---:|"]
    lines += [
        f"| {row['name']} | {row['auc']:.4f} | {row['logistic_regression']:.4f} |"
        for row in document["census"]
    ]
    return "\n".join(lines)


def write_tables(document: Mapping[str, Any]) -> None:
    """Put the figures into the page."""
    pages.put(DOCS, "quality", tables(document))


if __name__ == "__main__":
    sys.exit(main())
