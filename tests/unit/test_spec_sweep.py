"""Grids and templates."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmixer.spec import jobs_from_dicts
from rmixer.spec.sweep import (
    UnknownTemplateError,
    combinations,
    fill,
    format_value,
    has_template,
    template_names,
)

names = st.from_regex(r"[a-z_][a-z0-9_]{0,4}", fullmatch=True)
scalars = st.one_of(
    st.integers(-1000, 1000), st.floats(-1, 1), st.from_regex(r"[A-Za-z0-9 ]{1,5}", fullmatch=True)
)
grids = st.dictionaries(
    names, st.lists(scalars, min_size=1, max_size=4, unique_by=format_value), min_size=1, max_size=3
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{lr}", 0.1),
        ("{n}", 3),
        ("{flag}", True),
        ("{mlp}", [512, 256]),
        ("x-{lr}", "x-0.1"),
        ("{lr}{n}", "0.13"),
        ("{flag}!", "true!"),
        ("mlp {mlp}", "mlp 512-256"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{0.1}"),
        ("{{{{lr}}}}", "{{lr}}"),
        ("{print $1}", "{print $1}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ('{"a": {"b": {lr}}}', '{"a": {"b": 0.1}}'),
        ("{{ x", "{{ x"),
        ("x }}", "x }}"),
        ("{}", "{}"),
        ("${lr}", "$0.1"),
        ("", ""),
    ],
)
def test_fill(text: str, filled: Any) -> None:
    """A whole template keeps the value's type; paired double braces become literal ones."""
    result = fill(text, {"lr": 0.1, "n": 3, "flag": True, "mlp": [512, 256]})
    assert result == filled
    assert type(result) is type(filled)


def test_an_unknown_name_is_an_error_or_stays() -> None:
    """It stays in commands only."""
    with pytest.raises(UnknownTemplateError, match="lrr"):
        fill("{lrr}", {"lr": 1})
    assert fill("{lrr} {lr}", {"lr": 1}, lenient=True) == "{lrr} 1"


@given(st.text(), st.text())
def test_doubled_braces_protect_any_text(inner: str, outer: str) -> None:
    """``{{`` and ``}}`` around a text without braces give the text in single braces."""
    inner, outer = re.sub(r"[{}]", "", inner), re.sub(r"[{}]", "", outer)
    text = f"{outer}{{{{{inner}}}}}{outer}"
    assert fill(text, {inner: "wrong"}) == f"{outer}{{{inner}}}{outer}"
    assert not has_template(text)


@given(st.text())
def test_a_text_without_templates_and_doubled_braces_is_left_alone(text: str) -> None:
    """Nothing else in a text means anything."""
    text = text.replace("{{", "").replace("}}", "")
    if not template_names(text):
        assert fill(text, {}) == text


@given(grids)
def test_a_sweep_gives_one_job_per_combination(sweep: dict[str, list[Any]]) -> None:
    """As many jobs as the product says, names and ids unique, order and types as in the grid."""
    job = {
        "name": "job",
        "command": ["echo", *(f"{{{key}}}" for key in sweep)],
        "sweep": sweep,
    }
    jobs = jobs_from_dicts([job])
    grid = list(combinations(sweep))
    expected = 1
    for values in sweep.values():
        expected *= len(values)
    assert len(jobs) == len(grid) == expected
    assert len({job.id for job in jobs}) == len({job.name for job in jobs}) == expected
    assert [list(job.payload["argv"][1:]) for job in jobs] == [
        [format_value(value) for value in one.values()] for one in grid
    ]
    assert [job.id for job in jobs_from_dicts([job])] == [job.id for job in jobs]


def test_the_last_key_of_a_sweep_runs_fastest() -> None:
    """The order of a grid is that of nested loops."""
    jobs = jobs_from_dicts(
        [{"name": "{a}-{b}", "command": "echo", "sweep": {"a": [1, 2], "b": ["x", "y"]}}]
    )
    assert [job.name for job in jobs] == ["1-x", "1-y", "2-x", "2-y"]


def test_a_key_that_the_name_does_not_mention_is_appended() -> None:
    """Names of a sweep are unique without the user's doing."""
    jobs = jobs_from_dicts(
        [{"name": "a-{lr}", "command": "echo", "sweep": {"seed": [1, 2], "lr": [0.1]}}]
    )
    assert [job.name for job in jobs] == ["a-0.1-1", "a-0.1-2"]


def test_values_are_filled_at_any_depth_with_their_type() -> None:
    """In maps and lists; a text that has more than the template stays text."""
    jobs = jobs_from_dicts(
        [
            {
                "name": "a",
                "model": "dlrm",
                "params": {"top_mlp": ["{w}", 4], "embedding_dim": 16},
                "optimizer": {"name": "{opt}", "lr": "{lr}"},
                "data": {"format": "generated", "like": "criteo", "rows": "{w}"},
                "sweep": {"w": [8], "opt": ["sgd"], "lr": [1e-3]},
            }
        ]
    )
    payload = jobs[0].payload
    assert payload["params"]["top_mlp"] == [8, 4]
    assert payload["optimizer"]["lr"] == 1e-3
    assert payload["data"]["rows"] == 8
    assert jobs[0].name == "a-8-sgd-0.001"


def test_only_names_of_the_sweep_are_replaced_in_a_command() -> None:
    """``{print $1}``, JSON and other braces survive, in a text and in a list."""
    text, words = jobs_from_dicts(
        [
            {"name": "t", "command": "awk '{print $1}' {x} '{y}'", "sweep": {"x": [5]}},
            {"name": "l", "command": ["awk", "{print $1}", "{x}", '{"a": {"b": 1}}'], "sweep": {"x": [5]}},
        ]
    )  # fmt: skip
    assert text.payload["argv"] == ["awk", "{print $1}", "5", "{y}"]
    assert words.payload["argv"] == ["awk", "{print $1}", "5", '{"a": {"b": 1}}']
