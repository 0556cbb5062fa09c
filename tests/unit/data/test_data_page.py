"""docs/data.md is true: each of its examples is a `data` mapping that is right."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rmixer.data import FORMATS, schema
from rmixer.data.generated import LIKE

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
EXAMPLES = [
    YAML(typ="safe").load(text) for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.get("format", "auto"))
def test_an_example_is_right(example: dict) -> None:
    """Every block of YAML is what a jobs file may say under `data`."""
    assert schema.validate(example) == []


def test_every_format_is_on_the_page() -> None:
    """The first table has a row for each format, that of the shapes one for each shape."""
    first, rest = TEXT.split("\n## ", maxsplit=1)
    assert set(ROW.findall(first)) == set(FORMATS)
    assert set(ROW.findall(rest)) - {"like"} == set(LIKE)
