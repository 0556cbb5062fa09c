"""The `data` part of a jobs file is checked without reading a file, torch or polars."""

import subprocess
import sys

import pytest

from rmixer.data import schema
from rmixer.errors import UsageError

CSV = {"format": "csv", "path": "a.csv", "schema": {"label": "y", "dense": ["a"], "sparse": ["b"]}}


def test_a_right_mapping_has_no_problem() -> None:
    assert schema.validate(CSV) == []
    assert schema.validate({"format": "criteo", "path": "train.tsv"}) == []
    assert schema.validate({"format": "generated", "like": "criteo", "rows": 10}) == []


@pytest.mark.parametrize(
    ("data", "key", "part"),
    [
        ({}, "format", "is missing"),
        ({"format": "crito"}, "format", "did you mean 'criteo'?"),
        ({"format": "no.module:Here"}, "format", "cannot be loaded"),
        ({"format": "criteo"}, "path", "name the data file"),
        ({**CSV, "pth": "x"}, "pth", "did you mean 'path'?"),
        ({**CSV, "schema": None}, "schema", "write at least label"),
        ({**CSV, "schema": {"label": "y"}}, "schema", "has no feature"),
        ({**CSV, "schema": {"dense": ["a"]}}, "schema.label", "is missing"),
        ({**CSV, "schema": {"label": "y", "dens": ["a"]}}, "schema.dens", "did you mean 'dense'?"),
        ({**CSV, "schema": {"label": "y", "dense": "a"}}, "schema.dense", "no list of column"),
        ({**CSV, "schema": {"label": "y", "dense": ["y"]}}, "schema.dense", "already label"),
        (
            {**CSV, "schema": {"label": "y", "dense": ["a"], "columns": ["y", "b"]}},
            "schema.dense",
            "unknown column 'a'",
        ),
        (
            {
                **CSV,
                "schema": {"label": "y", "sparse": ["item"], "sequence": {"h": {"shares": "itm"}}},
            },
            "schema.sequence.h.shares",
            "did you mean 'item'?",
        ),
        (
            {**CSV, "schema": {"label": "y", "sequence": {"h": {"seperator": ","}}}},
            "schema.sequence.h.seperator",
            "did you mean 'separator'?",
        ),
        ({**CSV, "schema": {"label": "y", "sequence": [3]}}, "schema.sequence", "write a mapping"),
        ({**CSV, "schema": {**CSV["schema"], "delimiter": "::"}}, "schema.delimiter", "character"),
        ({**CSV, "transform": {"dense": "log"}}, "transform.dense", "did you mean 'log1p'?"),
        ({**CSV, "transform": {"bins": -1}}, "transform.bins", "at least 0"),
        ({**CSV, "transform": 3}, "transform", "no mapping"),
        ({**CSV, "valid": {"fraction": 1.0}}, "valid.fraction", "below 1"),
        ({**CSV, "valid": {"by": "tial"}}, "valid.by", "did you mean 'tail'?"),
        ({"format": "generated", "like": "criteo"}, "rows", "how many rows"),
        ({"format": "generated", "rows": 5, "like": "x"}, "like", "unknown shape"),
        ({"format": "generated", "rows": 0, "like": "criteo"}, "rows", "at least 1"),
        (
            {"format": "generated", "rows": 5, "like": "behaviour", "items": 3, "categories": 9},
            "items",
            "at least as many items",
        ),
    ],
)
def test_each_fault_names_its_key_and_what_would_be_right(data: dict, key: str, part: str) -> None:
    problems = schema.validate(data)
    assert [found for found, message in problems if part in message] == [key], problems
    with pytest.raises(UsageError, match=r"data\."):
        schema.parse(data)


def test_a_sequence_may_be_a_mapping_a_list_of_names_or_of_mappings() -> None:
    base = {"label": "y", "sparse": ["item"]}
    forms = [
        {"h": {"shares": "item"}},
        [{"name": "h", "shares": "item"}],
    ]
    for form in forms:
        parsed = schema.parse_schema({**base, "sequence": form})
        assert parsed.sequences == (schema.SequenceColumn(name="h", shares="item"),)
    assert schema.parse_schema({**base, "sequence": ["h"]}).sequences[0].shares is None


def test_the_format_decides_the_default_transform() -> None:
    assert schema.parse({"format": "criteo", "path": "x"}).transform.dense == "log1p"
    assert schema.parse(CSV).transform.dense == "standard"


def test_checking_loads_neither_torch_nor_polars() -> None:
    code = (
        "import sys; from rmixer.data import schema; from rmixer.models import params;"
        "from rmixer.train import optimizers_table;"
        f"assert schema.validate({CSV!r}) == [];"
        "schema.validate({'format': 'criteo', 'path': 'x'});"
        "schema.validate({'format': 'generated', 'like': 'criteo', 'rows': 3});"
        "params.validate('dlrm', {}); optimizers_table.validate({});"
        "bad = {'torch', 'polars', 'pydantic'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
