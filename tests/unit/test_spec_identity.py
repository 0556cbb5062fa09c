"""Ids, signatures and families."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmixer.model import JobSpec
from rmixer.spec import jobs_from_dicts
from rmixer.spec.dependencies import find_cycle
from rmixer.spec.identity import MAX_ID, family_words, unique_ids

DATA = {"format": "generated", "like": "criteo", "rows": 10}


def command(folder: Path, argv: list[str], **keys: Any) -> JobSpec:
    return jobs_from_dicts([{"name": "a", "command": argv, **keys}], folder)[0]


def training(folder: Path, **keys: Any) -> JobSpec:
    return jobs_from_dicts([{"name": "a", "model": "dlrm", "data": DATA, **keys}], folder)[0]


@given(st.lists(st.text(min_size=1)))
def test_ids_are_unique_safe_and_stable(names: list[str]) -> None:
    """Any names give ids that are distinct file names of at most 100 letters."""
    ids = unique_ids(names)
    assert len(set(ids)) == len(names)
    assert all(re.fullmatch(rf"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{{0,{MAX_ID - 1}}}", i) for i in ids)
    assert unique_ids(names) == ids


@pytest.mark.parametrize(
    "change",
    [
        {"model": "deepfm"},
        {"params": {"top_mlp": [8]}},
        {"batch_size": 16},
        {"epochs": 2},
        {"steps": 5},
        {"threads": 1},
        {"env": {"A": 1}},
        {"data": {**DATA, "rows": 11}},
        {"optimizer": {"name": "sgd"}},
    ],
)
def test_what_affects_a_training_is_in_signature_and_family(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Each of these makes another job of another family."""
    one, other = training(tmp_path), training(tmp_path, **change)
    assert one.signature != other.signature
    assert one.family != other.family


@pytest.mark.parametrize("change", [{"seed": 5}, {"optimizer": {"lr": 0.5}}])
def test_seed_and_learning_rate_of_a_training_are_not_in_the_family(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """They make another job of the same family."""
    one, other = training(tmp_path), training(tmp_path, **change)
    assert one.signature != other.signature
    assert one.family == other.family


@pytest.mark.parametrize(
    "change",
    [{"name": "b"}, {"memory": "1GiB"}, {"priority": 3}, {"retries": 2}, {"device": "cpu"},
     {"seed": 0}, {"fuse": "never"}, {"profile": {"threads": 1}}],
)  # fmt: skip
def test_what_does_not_affect_the_result_is_in_neither(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """The same work under another name, booking or spelling is the same job."""
    one = training(tmp_path)
    other = jobs_from_dicts([{"name": "a", "model": "dlrm", "data": DATA, **change}], tmp_path)[0]
    assert (one.signature, one.family) == (other.signature, other.family)


def test_a_changed_data_file_is_another_job(tmp_path: Path) -> None:
    """The state of the file is part of the signature."""
    file = tmp_path / "x.tsv"
    file.write_text("1")
    data = {"format": "criteo", "path": "x.tsv"}
    before = training(tmp_path, data=data)
    assert training(tmp_path, data=data) == before
    os.utime(file, ns=(1, 1))
    assert training(tmp_path, data=data).signature != before.signature


def test_a_changed_script_is_another_job(tmp_path: Path) -> None:
    """The content of the script counts, its time does not."""
    file = tmp_path / "train.py"
    file.write_text("1")
    before = command(tmp_path, ["python3", "train.py"])
    os.utime(file, ns=(1, 1))
    assert command(tmp_path, ["python3", "train.py"]) == before
    file.write_text("2")
    assert command(tmp_path, ["python3", "train.py"]).signature != before.signature


@pytest.mark.parametrize("change", [{"env": {"A": "1"}}, {"threads": 2}, {"workdir": "sub"}])
def test_what_affects_a_command_is_in_its_signature(tmp_path: Path, change: dict[str, Any]) -> None:
    """Environment, threads and working directory."""
    (tmp_path / "sub").mkdir()
    one, other = command(tmp_path, ["echo", "1"]), command(tmp_path, ["echo", "1"], **change)
    assert one.signature != other.signature
    assert one.family != other.family


@pytest.mark.parametrize(
    ("argv", "family"),
    [
        (["t", "--lr", "0.1", "x"], ["t", "--lr", "*", "x"]),
        (["t", "--lr=0.1", "--seed=3"], ["t", "--lr=*", "--seed=*"]),
        (["t", "--learning_rate", "1", "--learning-rate", "2"], ["t", "--learning_rate", "*", "--learning-rate", "*"]),
        (["t", "--seed", "-1"], ["t", "--seed", "*"]),
        (["t", "--save", "--rows", "5"], ["t", "--save", "--rows", "5"]),
        (["t", "--output-dir", "o", "--out=o"], ["t", "--output-dir", "*", "--out=*"]),
        (["t", "optimizer.lr=0.1", "lr=2"], ["t", "optimizer.lr=*", "lr=*"]),
        (["t", "--dim", "16", "--lrs", "3"], ["t", "--dim", "16", "--lrs", "3"]),
    ],
)  # fmt: skip
def test_the_family_of_a_command_leaves_out_what_a_sweep_varies(
    argv: list[str], family: list[str]
) -> None:
    """By the usual names of options, joined or apart, and as key=value."""
    assert family_words(argv) == family


def test_members_of_a_sweep_of_commands_are_one_family(tmp_path: Path) -> None:
    """So the second learns from the first."""
    jobs = jobs_from_dicts(
        [{"name": "a", "command": "echo --lr {lr} --out runs/{lr}", "sweep": {"lr": [1, 2]}}],
        tmp_path,
    )
    assert jobs[0].signature != jobs[1].signature
    assert jobs[0].family == jobs[1].family


nodes = st.integers(0, 6).map(str)


@given(st.dictionaries(nodes, st.lists(nodes, max_size=3)))
def test_a_circle_is_found_if_and_only_if_there_is_one(after: dict[str, list[str]]) -> None:
    """What is found is a circle; where nothing is found the jobs can be put in order."""
    cycle = find_cycle(after)
    if cycle is None:
        left = dict(after)
        while left:
            ready = [job for job, before in left.items() if not set(before) & set(left)]
            assert ready, "a circle was missed"
            for job in ready:
                del left[job]
    else:
        assert cycle[0] == cycle[-1]
        assert all(b in after[a] for a, b in itertools.pairwise(cycle))


def test_a_long_chain_is_no_circle() -> None:
    """Ten thousand jobs one after the other need no deep recursion."""
    assert find_cycle({str(n): [str(n + 1)] for n in range(10_000)}) is None
