"""What a command prints is passed on, all of it and in order; how it ended becomes a number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmixer.events import Exited
from rmixer.model import Outcome, StateName
from rmixer.runner.passthrough import _code, _follow


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(state=StateName.SUCCEEDED, exit_code=0), 0),
        (Outcome(state=StateName.FAILED, exit_code=3), 3),
        (Outcome(state=StateName.FAILED, signal=9), 137),
        (Outcome(state=StateName.FAILED, reason="not started"), 1),
    ],
)
def test_exit_code(outcome: Outcome, code: int) -> None:
    """Its own, 128 + n for signal n, 1 where it never ran."""
    assert _code(Exited(at=0.0, wall=0.0, job="a", token="t", outcome=outcome)) == code


def test_logs_of_all_attempts_in_order(tmp_path: Path) -> None:
    """Every byte of every attempt's log, also what is written at the very end."""
    logs = [tmp_path / "1", tmp_path / "2"]
    reader, writer = os.pipe()
    shown: list[Path] = []
    with _follow(shown, writer):
        logs[0].write_bytes(b"first\xff\n")
        shown.append(logs[0])
        assert os.read(reader, 100) == b"first\xff\n"
        with logs[0].open("ab") as file:
            file.write(b"more\n")
        shown.append(logs[1])  # not there yet
        logs[1].write_bytes(b"x" * 40000)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"more\n" + b"x" * 40000


def test_reader_that_has_gone(tmp_path: Path) -> None:
    """A closed pipe ends the copying, not the run."""
    log = tmp_path / "log"
    log.write_bytes(b"text")
    reader, writer = os.pipe()
    os.close(reader)
    with _follow([log], writer):
        pass
    os.close(writer)
