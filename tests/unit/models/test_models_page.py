"""The page of models says what the table has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from rmixer.models.kinds import ModelParams
from rmixer.models.params import PARAMS

DOCS = Path(__file__).resolve().parents[3] / "docs"
_COMMON = {field.name for field in fields(ModelParams)}


def test_every_model_has_its_line_with_its_parameters() -> None:
    """By name, with all parameters of its own."""
    lines = [
        line for line in (DOCS / "models.md").read_text().splitlines() if line.startswith("| `")
    ]
    found = {line.split("`")[1]: set(re.findall(r"`(\w+)`", line.split("|")[4])) for line in lines}
    wanted = {
        name: {field.name for field in fields(kind)} - _COMMON for name, kind in PARAMS.items()
    }
    assert {name: params - _COMMON for name, params in found.items()} == wanted
