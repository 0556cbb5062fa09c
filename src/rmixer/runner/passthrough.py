"""``rmixer run -- CMD``: one command as a job of its own, its output passed through."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmixer.events import Event, Exited, Placed
from rmixer.model import JobSpec
from rmixer.report.write import json_text
from rmixer.runner.run import Run, Settings, stop_on_signals
from rmixer.state import RunState

SIGNAL_BASE = 128
FAILED = 1
_TICK_SECONDS = 0.05
_BLOCK = 1 << 16


def run_command(job: JobSpec, settings: Settings, *, as_json: bool = False) -> int:
    """Run one command in the foreground; returns its exit code, 128 + n for signal n.

    With ``as_json`` the command's output goes to stderr and the report's document to stdout.
    """
    this = Run([job], settings)
    logs: list[Path] = []
    codes: list[int] = []

    def on_event(event: Event, _state: RunState) -> None:
        if isinstance(event, Placed):
            logs.append(this.paths.job(event.job).attempt(event.attempt).log)
        elif isinstance(event, Exited):
            codes.append(_code(event))

    this.on_event = on_event
    output = sys.stderr.fileno() if as_json else sys.stdout.fileno()
    with _follow(logs, output), stop_on_signals(this):
        document = this.execute()
    if as_json:
        sys.stdout.write(json_text(document))
    if this.exit_code > FAILED or not codes:
        return this.exit_code
    return codes[-1]


def _code(event: Exited) -> int:
    outcome = event.outcome
    if outcome.signal is not None:
        return SIGNAL_BASE + outcome.signal
    return outcome.exit_code if outcome.exit_code is not None else FAILED


@contextmanager
def _follow(logs: list[Path], descriptor: int) -> Iterator[None]:
    """Copy what is written to the logs, one after the other, until the block ends."""
    done = threading.Event()
    thread = threading.Thread(target=_copy, args=(logs, descriptor, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _copy(logs: list[Path], descriptor: int, done: threading.Event) -> None:
    at, position = 0, 0
    while True:
        last_round = done.is_set()
        while at < len(logs):
            position += _copy_rest(logs[at], position, descriptor)
            if at + 1 >= len(logs):
                break
            at, position = at + 1, 0
        if last_round:
            return
        done.wait(_TICK_SECONDS)


def _copy_rest(log: Path, position: int, descriptor: int) -> int:
    """Copy a file from a position to its end; how many bytes that were."""
    copied = 0
    try:
        with log.open("rb") as file:
            file.seek(position)
            while block := file.read(_BLOCK):
                _write_all(descriptor, block)
                copied += len(block)
    except FileNotFoundError:
        return copied
    except BrokenPipeError:  # the reader has gone; the command goes on
        return copied
    return copied


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
