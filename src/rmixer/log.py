"""The run log: ``events.jsonl`` is a run's only truth, ``samples.jsonl`` its telemetry.

Events are appended and synced before they are acted upon. A crash can cut the last line; that line
was never acted upon, and is dropped. A damaged line before the last is an error that names it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from rmixer.errors import StorageError
from rmixer.events import Event

if TYPE_CHECKING:
    from pydantic import TypeAdapter


#: Open for the owner alone: the log holds the environment that jobs were given.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


@cache
def _adapter() -> TypeAdapter[Event]:
    from pydantic import Discriminator, TypeAdapter  # noqa: PLC0415  # slow to import

    return TypeAdapter(Annotated[Event, Discriminator("type")])


def encode(event: Event) -> bytes:
    """One event as a line of JSON, with its end of line."""
    return _adapter().dump_json(event) + b"\n"


def decode(line: bytes) -> Event:
    """The event of a line.

    Raises:
        ValueError: the line is not an event.
    """
    return _adapter().validate_json(line)


class EventLog:
    """Appends events to a file and syncs. One writer at a time (the holder of the run's lock).

    Args:
        path: the file; created if there is none. A cut-off last line is removed.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.fdopen(os.open(path, _FLAGS, 0o600), "ab", 0)
            self._length = _whole_length(path)
            self._file.truncate(self._length)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    def append(self, events: Iterable[Event]) -> None:
        """Write the events and sync them to disk, all or none.

        Raises:
            StorageError: the disk is full or the file cannot be written; the log is as before.
        """
        data = b"".join(encode(event) for event in events)
        if not data:
            return
        try:
            _write_all(self._file.fileno(), data)
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._restore()
            raise StorageError(f"{self.path}: {error.strerror}; the run cannot go on") from error
        self._length += len(data)

    def close(self) -> None:
        self._file.close()

    def _restore(self) -> None:
        try:
            os.ftruncate(self._file.fileno(), self._length)
        except OSError:  # a cut-off line is dropped by the next reader
            return


class SampleLog:
    """Appends telemetry, unsynced. What cannot be written is dropped: it is not the truth."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[bytes] | None = path.open("ab", buffering=0)
        except OSError:
            self._file = None

    def append(self, sample: dict[str, Any]) -> None:
        """Write one sample as a line of JSON."""
        if self._file is not None:
            with suppress(OSError):
                self._file.write(json.dumps(sample).encode() + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log, oldest first, without a cut-off last line.

    Raises:
        StorageError: the file cannot be read, or a line that is not the last is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    lines.pop()  # what stands behind the last end of line is empty or cut off
    for number, line in enumerate(lines, start=1):
        try:
            yield decode(line)
        except ValueError as error:
            if number == len(lines):
                return
            message = f"{path}:{number}: damaged event: {_first_problem(error)}"
            raise StorageError(message) from error


def _whole_length(path: Path) -> int:
    """The length of a log without a last line that is cut off or cannot be read."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    try:
        if end:
            decode(data[start:end])
    except ValueError:
        return start
    return end


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _first_problem(error: ValueError) -> str:
    return str(error).splitlines()[0]
