"""The process in which trainings are traced: whatever it does, the caller gets an answer per job."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmixer.estimate.child import trace_models


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    """An interpreter that does what is written here instead of tracing."""

    def make(script: str) -> str:
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return str(file)

    return make


def ask(python: str, tmp_path: Path, **more: Any) -> dict[str, dict[str, Any]]:
    payloads = {
        name: {"model": "dlrm", "optimizer": {"lr": lr}, "batch_size": size, "python": python,
               "workdir": str(tmp_path)}
        for name, lr, size in (("a", 0.1, 64), ("b", 0.2, 64), ("c", 0.1, 128))
    }  # fmt: skip
    options = {"device": "cpu", "cache_dir": tmp_path, "environment": dict(os.environ)} | more
    return trace_models(payloads, **options)


def test_what_was_answered_before_a_crash_counts(python: Any, tmp_path: Path) -> None:
    """The second job has the last words of the child instead."""
    script = """cat > /dev/null; echo '{"id": "a", "host": {"reserved": 5}}'; echo 'half a li'
echo boom >&2; exit 9"""
    answers = ask(python(script), tmp_path)
    assert answers["a"]["host"] == {"reserved": 5}
    assert answers["c"] == {"error": "boom"}


def test_alike_jobs_are_traced_once(python: Any, tmp_path: Path) -> None:
    """The learning rate changes no memory; the batch size does."""
    answers = ask(python("cat > asked.json"), tmp_path)
    assert (tmp_path / "asked.json").read_text().count('"batch_size"') == 2
    assert answers["a"] == answers["b"]
    assert set(answers) == {"a", "b", "c"}


def test_a_child_that_hangs_is_ended_with_all_its_own(python: Any, tmp_path: Path) -> None:
    """The time limit is kept, and the message says what to do."""
    answers = ask(python("sleep 4712 & sleep 4712"), tmp_path, limit_seconds=0.5)
    assert "no estimate within 0 s" in answers["a"]["error"]
    assert subprocess.run(["pgrep", "-f", "sleep 4712"], check=False).returncode == 1


def test_a_caller_that_stops_is_heard(python: Any, tmp_path: Path) -> None:
    """Ctrl-C does not wait for the time limit."""
    began = time.monotonic()
    ask(python("sleep 4713"), tmp_path, limit_seconds=600.0, should_stop=lambda: True)
    assert time.monotonic() - began < 60
    assert subprocess.run(["pgrep", "-f", "sleep 4713"], check=False).returncode == 1


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    """No process, no exception."""
    answers = ask(str(tmp_path / "nowhere"), tmp_path)
    assert "no process" in answers["a"]["error"]


def test_the_jobs_own_environment_counts(python: Any, tmp_path: Path) -> None:
    """A model may be importable by the job's own PYTHONPATH alone, and glibc may be set there."""
    script = """cat > asked-$MARK.json; echo '{"id": "a", "mark": "'$MARK'"}'"""
    payload = {"model": "dlrm", "optimizer": {}, "python": python(script), "workdir": str(tmp_path)}
    payloads = {"a": {**payload, "env": {"MARK": "one"}}, "b": {**payload, "env": {"MARK": "two"}}}
    answers = trace_models(payloads, device="cpu", cache_dir=tmp_path, environment=dict(os.environ))
    assert answers["a"]["mark"] == "one"
    assert '"MARK": "two"' in (tmp_path / "asked-two.json").read_text()
