"""The error tree. Each error says where, what, and what would be right, and knows its exit code.

    RmixerError                 1
    ├── UsageError              2   the call or a file is not right; nothing was started
    │   ├── SpecError           2   a jobs file: file, line, key, value, what would be right
    │   ├── UnknownNameError    2   a name that no table has; the nearest and all known
    │   └── RunConflictError    2   the run directory is in use, or its file has changed
    ├── NeverFitsError          4   a job needs more than the whole machine has
    ├── DataError               1   a data file: path, line, column, what would be right
    ├── StorageError            1   a file of ours cannot be written or read (disk full, damaged)
    └── OverbookedError         1   a policy asked for more than there is (a fault in the policy)

Foreign errors (``OSError``, YAML, pydantic) are mapped into this tree at the one place where they
enter; nothing above the command line needs to know them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

EXIT_OK = 0
EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_SERVICE = 3
EXIT_NEVER_FITS = 4
EXIT_INTERRUPTED = 130


class RmixerError(Exception):
    """Base of everything that RMixer raises on purpose."""

    exit_code = EXIT_JOB_FAILED


class UsageError(RmixerError):
    """The call, an argument or a file is not right. Nothing has been started."""

    exit_code = EXIT_USAGE


class SpecError(UsageError):
    """A jobs file is not right, at a file, a line and a key.

    Args:
        message: what is wrong and what would be right.
        file: the jobs file.
        line: line number, from 1, where known.
        key: the dotted key, for example ``jobs[2].optimizer.lr``.
    """

    def __init__(
        self, message: str, *, file: Path | str, line: int | None = None, key: str | None = None
    ) -> None:
        where = str(file) if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {message}" if key else f"{where}: {message}")
        self.file, self.line, self.key = str(file), line, key


class UnknownNameError(UsageError):
    """A name that the table of its kind does not have."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(unknown_name(kind, name, known))
        self.kind, self.name = kind, name


class RunConflictError(UsageError):
    """The run directory is in use by another process, or belongs to another jobs file."""


class NeverFitsError(RmixerError):
    """A job needs more than the whole machine has; the message carries the numbers."""

    exit_code = EXIT_NEVER_FITS


class DataError(RmixerError):
    """A data file is not right, at a path, a line and a column."""

    def __init__(
        self, message: str, *, path: Path | str, line: int | None = None, column: str | None = None
    ) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(
            f"{where}: column {column}: {message}" if column else f"{where}: {message}"
        )
        self.path, self.line, self.column = str(path), line, column


class StorageError(RmixerError):
    """A file of ours cannot be written or read: disk full, no permission, damaged."""


class OverbookedError(RmixerError):
    """A policy tried to place a job where it does not fit. The fault is the policy's."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like ``name``, or None if none is like it."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that is not known: the nearest one first, then all of them."""
    names = sorted(known)
    close = nearest(name, names)
    hint = f"; did you mean {close!r}?" if close else ""
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})"
