"""The end of a log, read from its end: a log of 100 MB costs what its last kilobytes cost."""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL_BYTES = 64 * 1024

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def read_tail(path: Path, limit: int = TAIL_BYTES) -> list[str]:
    """The last lines of a log as a terminal would show them; empty if there is no log.

    Bytes that are not UTF-8 are replaced, progress bars are collapsed to their last form, colours
    and control characters are left out. A line whose beginning lies before ``limit`` is left out.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            raw = file.read(limit)
    except OSError:
        return []
    if size > limit and b"\n" in raw[:-1]:
        raw = raw.partition(b"\n")[2]
    return collapse(raw.decode("utf-8", "replace"))


def last_line(raw: bytes) -> str:
    """The last line of what a process has said, as a terminal would show it; empty for nothing."""
    return next(reversed(collapse(raw.decode("utf-8", "replace"))), "")


def collapse(text: str) -> list[str]:
    """Lines as a terminal would show them: a carriage return begins a line anew."""
    lines = [_last_form(line) for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _last_form(line: str) -> str:
    forms = [form for form in _ANSI.sub("", line).split("\r") if form.strip()]
    return _CONTROL.sub("", forms[-1]).rstrip() if forms else ""
