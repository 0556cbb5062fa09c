"""`rmixer schema`: what editors check jobs files against is what jobs files are checked against."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from rmixer.cli import cli

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    done = CliRunner().invoke(cli, ["schema"])
    assert done.exit_code == 0
    document = json.loads(done.output)
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_valid(validator: Draft202012Validator, path: Path) -> None:
    """Every example passes, sweeps and templates included."""
    assert list(validator.iter_errors(YAML(typ="safe").load(path.read_text()))) == []


@pytest.mark.parametrize(
    "job",
    [
        {"model": "dlrm", "batchsize": 256},
        {"command": "python train.py", "retries": -1},
        {"model": "dlrm", "batch_size": [1]},
    ],
    ids=["unknown key", "negative", "list"],
)
def test_what_a_run_would_refuse_is_marked(
    validator: Draft202012Validator, job: dict[str, object]
) -> None:
    """An unknown key, a number out of its range, a value of another kind."""
    assert list(validator.iter_errors({"jobs": [{"name": "a", **job}]}))
