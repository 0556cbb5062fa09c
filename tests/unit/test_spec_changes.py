"""What differs between two versions of a jobs file."""

from __future__ import annotations

import pytest

from rmixer.spec import describe_changes

BASE = "jobs:\n  - {name: a, command: echo 1, retries: 2}\n  - {name: b, command: echo 2}\n"


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (BASE, ""),
        ("# more\n" + BASE, ""),
        (BASE.replace("retries: 2", "retries: 3"), "job 'a'.retries was 2, is 3"),
        (BASE.replace(", retries: 2", ""), "job 'a'.retries is gone"),
        ("jobs:\n  - {name: c, command: 'true'}\n" + BASE[6:], "job 'c' is new"),
        ("jobs:\n  - {name: a, command: echo 1, retries: 2}\n", "job 'b' is gone"),
        (BASE + "policy: sequential\n", "policy is new"),
        (BASE.replace("echo 2", "[echo, x]"), "job 'b'.command was 'echo 2', is a list of 2"),
        (BASE.replace("name: b, command: echo 2", "name: b, command: echo 2, env: {A: 1}"), "job 'b'.env is new"),
    ],
)  # fmt: skip
def test_the_difference_is_named(after: str, told: str) -> None:
    """By job and key, with both values; comments do not count."""
    assert describe_changes(BASE, after) == told


def test_the_order_of_jobs_counts() -> None:
    """Two jobs that change places are a change of their own."""
    lines = BASE.splitlines(keepends=True)
    assert describe_changes(BASE, lines[0] + lines[2] + lines[1]) == "the order of the jobs"


def test_values_of_environment_variables_are_not_told() -> None:
    """Only that they have changed."""
    text = "jobs: [{name: a, command: echo, env: {TOKEN: hunter2}}]"
    told = describe_changes(text, text.replace("hunter2", "hunter3"))
    assert told == "job 'a'.env.TOKEN has changed"
