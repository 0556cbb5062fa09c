"""Estimates before a run: booked where they can be had, and never in its way."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from support import Workplace

from rmixer import events as ev
from rmixer.resources import MIB
from rmixer.store import Store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DATA = {"format": "generated", "like": "criteo", "rows": 4000, "max_table_rows": 500}
SHY = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from rmixer.models.dlrm import DLRM

class Shy(DLRM):
    @classmethod
    def from_config(cls, params, info):
        if _get_current_dispatch_mode_stack():
            raise ZeroDivisionError("not while somebody looks")
        return super().from_config({}, info)
"""


def submitted(place: Workplace) -> dict[str, Any]:
    """The estimate of each job as it was admitted."""
    return {e.spec.name: e.estimate for e in place.events() if isinstance(e, ev.Submitted)}


def forget(place: Workplace) -> None:
    """As on a machine that has the data but has run nothing."""
    shutil.rmtree(place.directory / "home")


def test_parsed_data_make_a_traced_reservation(place: Workplace) -> None:
    """The first run knows nothing of its data; with them parsed, a new store books a trace."""
    place.write({"name": "a", "model": "dlrm", "data": DATA, "batch_size": 256, "threads": 1})
    assert place.run("run", "jobs.yaml").returncode == 0
    assert submitted(place)["a"].source == "default"
    forget(place)
    assert place.run("run", "jobs.yaml", "--fresh").returncode == 0
    estimate = submitted(place)["a"]
    assert estimate.source == "trace"
    assert 100 * MIB < estimate.expected < estimate.memory
    (job,) = json.loads(place.paths().report_json.read_text())["jobs"]
    assert job["memory"]["measured_peak_bytes"] < job["memory"]["reserved_bytes"]


def test_a_model_that_cannot_be_traced_trains_all_the_same(place: Workplace) -> None:
    """Its trace raises; the job starts from the default and succeeds."""
    (place.directory / "shy.py").write_text(SHY)
    place.write({"name": "b", "model": "shy:Shy", "data": DATA, "batch_size": 256, "threads": 1})
    assert place.run("run", "jobs.yaml").returncode == 0
    forget(place)
    done = place.run("run", "jobs.yaml", "--fresh")
    assert done.returncode == 0, done.stderr
    assert submitted(place)["b"].source == "default"


def test_an_estimate_is_held_against_what_was_measured(place: Workplace) -> None:
    """The store has the error of a trace, and the next reservation comes from the measured peak."""
    place.write({"name": "a", "model": "dlrm", "data": DATA, "batch_size": 256, "threads": 1})
    assert place.run("run", "jobs.yaml").returncode == 0
    forget(place)
    assert place.run("run", "jobs.yaml", "--fresh").returncode == 0
    store = Store(place.directory / "home" / "store.sqlite")
    (error,) = store.estimate_errors("trace")
    assert 0.7 < error < 1.3
    assert place.run("run", "jobs.yaml", "--fresh").returncode == 0
    estimate = submitted(place)["a"]
    assert estimate.source == "history"
    assert estimate.memory > estimate.expected > 100 * MIB
    assert len(store.estimate_errors("history")) == 1
