"""A training program of others, unchanged: RecBole, from its package, on the data in its package.

It needs an interpreter of its own, named by ``RMIXER_RECBOLE_PYTHON``; see docs/programs.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmixer.launch.pages import JobPages

PYTHON = os.environ.get("RMIXER_RECBOLE_PYTHON")
#: What `run_recbole` does, in its own steps, so that the number of batches can be asked for.
TRAIN = """
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import get_model, get_trainer, init_seed

config = Config(model="BPR", dataset="ml-100k", config_dict={"epochs": 3, "use_gpu": False})
init_seed(config["seed"], config["reproducibility"])
train, valid, _ = data_preparation(config, create_dataset(config))
model = get_model(config["model"])(config, train.dataset)
trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
trainer.fit(train, valid, verbose=False, saved=False)  # evaluates after each epoch
print("batches", 3 * len(train))
"""


@pytest.mark.e2e
@pytest.mark.skipif(not PYTHON, reason="RMIXER_RECBOLE_PYTHON names no interpreter with RecBole")
def test_recbole_is_counted_to_the_step(tmp_path: Path) -> None:
    """Three epochs of BPR with evaluations between: as many steps as it has batches."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "rmixer", "run", "--json", "--", str(PYTHON), "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = tmp_path / json.loads(done.stdout)["jobs"][0]["log"]
    said = dict(line.split() for line in log.read_text().splitlines() if line.startswith("batches"))
    page = JobPages(str(log.parent / "progress")).read()
    assert page is not None
    assert page["step"] == int(said["batches"]) > 100
