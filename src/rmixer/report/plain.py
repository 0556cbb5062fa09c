"""The plain log: one line per change of a job's state, where there is no terminal to draw on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import IO

from rich.console import Console

from rmixer.model import Node
from rmixer.report.table import LiveTable, head_parts
from rmixer.report.text import format_number, rfc3339
from rmixer.report.view import Display, JobRow, RunView
from rmixer.resources import format_bytes

STATUS_SECONDS = 30.0


class PlainLog:
    """Writes lines without colour: changes as they come, and a status at most every 30 s.

    Args:
        node: the machine, for its capacity.
        stream: where to write; standard error if None.
        clock: unix time, for the time stamps.
    """

    def __init__(
        self, node: Node, stream: IO[str] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.node = node
        self._stream = stream or sys.stderr
        self._clock = clock
        self._seen: dict[str, tuple[str, int]] = {}
        self._status_at = 0.0
        self._notice = ""

    def update(self, view: RunView) -> None:
        """Write what has changed since the last call."""
        lines = list(self._changes(view))
        if view.notice != self._notice:
            self._notice = view.notice
            lines.insert(0, view.notice)
        if view.elapsed_seconds - self._status_at >= STATUS_SECONDS:
            self._status_at = view.elapsed_seconds
            lines.append(" · ".join(head_parts(view, self.node)))
        if lines:
            stamp = rfc3339(self._clock())
            self._stream.write("".join(f"{stamp} {line}\n" for line in lines))
            self._stream.flush()

    def close(self) -> None:
        """Nothing is left to write."""

    def _changes(self, view: RunView) -> Iterator[str]:
        for row in view.rows:
            now = (row.state, row.tries)
            before = self._seen.get(row.id)
            if before != now:
                self._seen[row.id] = now
                yield f"{row.name}: {' '.join([row.state, *_facts(row)])}"


def _facts(row: JobRow) -> Iterator[str]:
    """What a line says beside the state."""
    if row.reason:
        yield row.reason
    if row.active:
        yield f"on {row.device or 'CPU'}"
        if row.cores:
            yield f"cores {','.join(map(str, row.cores))}"
        yield f"threads {row.threads or 'default'}"
        if row.reserved_bytes:
            yield f"memory {format_bytes(row.reserved_bytes)}"
        if row.samples_per_second is not None:
            yield f"{format_number(row.samples_per_second)} samples/s"
    if row.tries > 1 or (row.ended and row.max_tries > 1):
        yield f"tries {row.tries}/{row.max_tries}"


def display_for(node: Node, console: Console | None = None) -> Display:
    """The live table on a terminal, else the plain log; both on standard error unless told."""
    console = console or Console(stderr=True)
    return LiveTable(node, console) if console.is_terminal else PlainLog(node, console.file)
