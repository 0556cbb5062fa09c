"""The paper's workloads: all of them are in the example, and every one learns."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.models.model import build
from rmixer.train import optimizers
from rmixer.train.loop import Result, Settings, train

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
DOCUMENT = YAML(typ="safe").load((ROOT / "examples" / "workloads.yaml").read_text())
JOBS: dict[str, dict[str, Any]] = {
    job["name"]: {**DOCUMENT["defaults"], **job} for job in DOCUMENT["jobs"]
}
#: A real sample of the data set of a workload, by how its name begins.
SAMPLES = {
    "alidisplay": ("alimama", "alimama_small/paddlerec_dmr_alimama.csv"),
    "amazon": ("amazon", "amazon_small/paddlerec_din_electronics.txt"),
    "criteo": ("criteo", "criteo_small/deepctr_criteo_sample.csv"),
    "kdd": ("kdd2012", "kdd_dpin_small/paddlerec_dpin_sample.txt"),
}


def test_all_published_workloads_are_there() -> None:
    """By their names, models, batch sizes and optimizers."""
    table = SHARED / "facts" / "published-workloads.csv"
    if not table.exists():
        pytest.skip(f"{table} is not here")
    rows = csv.DictReader(table.read_text().splitlines())
    published = [row for row in rows if not row["workload"].endswith(("_512", "_96"))]
    found = {
        name: (job["model"], str(job["batch_size"]), job["optimizer"]["name"])
        for name, job in JOBS.items()
    }
    assert found == {
        row["workload"]: (row["model"], row["batch_size"], row["optimizer"]) for row in published
    }
    assert len(found) == 14


def trained(job: dict[str, Any], data: dict[str, Any], place: Path, steps: int) -> Result:
    dataset = Dataset(cache.prepare(schema.parse(data), place))
    torch.manual_seed(0)
    model = build(job["model"], job.get("params", {}), dataset.info)
    optimizer = optimizers.build(job["optimizer"], model)
    return train(model, dataset, optimizer, Settings(batch_size=64, steps=steps))


@pytest.mark.parametrize("name", sorted(JOBS))
def test_it_learns_from_generated_rows(name: str, tmp_path: Path) -> None:
    """On a small piece of its data the loss falls."""
    data = {**JOBS[name]["data"], "rows": 2000, "valid": {"fraction": 0.0}}
    found = trained(JOBS[name], data, tmp_path, 90)
    assert found.train_loss < found.first_loss


@pytest.mark.parametrize("name", sorted(n for n in JOBS if n.split("_")[0] in SAMPLES))
def test_it_learns_from_a_real_sample(name: str, tmp_path: Path) -> None:
    """Some hundred real rows are learned by heart, little by little."""
    kind, file = SAMPLES[name.split("_", maxsplit=1)[0]]
    path = SHARED / "data" / file
    if not path.exists():
        pytest.skip(f"{path} is not here")
    data = {"format": kind, "path": str(path), "valid": {"fraction": 0.0}}
    found = trained(JOBS[name], data, tmp_path, 100)
    assert np.isfinite(found.train_loss)
    assert found.train_loss < found.first_loss
