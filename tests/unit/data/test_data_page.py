"""docs/data.md is true: each of its examples is a `data` mapping that is right."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rmixer.data import FORMATS, schema

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text()
EXAMPLES = [
    YAML(typ="safe").load(text) for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["format"])
def test_an_example_is_right(example: dict) -> None:
    """Every block of YAML is what a jobs file may say under `data`."""
    assert schema.validate(example) == []


def test_every_format_is_on_the_page() -> None:
    """The table has a row for each format, and no other."""
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(FORMATS)
