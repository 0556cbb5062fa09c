"""A run's directory: held by one runner at a time, resumed if unfinished, kept if finished."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmixer import events as ev
from rmixer.errors import RunConflictError, UsageError
from rmixer.log import read_events
from rmixer.model import StateName
from rmixer.monitor import read_process
from rmixer.paths import RunPaths
from rmixer.spec import describe_changes
from rmixer.state import RunState

#: Second line of the lock of a run whose runner came to its end: the report is written.
_REPORTED = b"reported"
_LOCK_BYTES = 64
#: A killed runner's child that has not become a shim yet holds the lock for some milliseconds.
_ORPHAN_SECONDS = 2.0
_TICK_SECONDS = 0.01


@dataclass(slots=True)
class RunFolder:
    """The directory of a run, locked by this process until `close`.

    Attributes:
        paths: its files.
        past: the events of an unfinished run to go on with; empty for a new run.
        state: their replay.
        descriptor: of the lock.
        reported: whether a runner has brought this run to its end, report included.
        only_report: the run is finished, but its runner was killed before it could say so.
    """

    paths: RunPaths
    past: Sequence[ev.Event]
    state: RunState
    descriptor: int
    reported: bool = False
    only_report: bool = False

    def mark(self, *, reported: bool) -> None:
        """Note in the lock whose it is and whether the run's report is written."""
        self.reported = reported
        text = str(os.getpid()).encode() + (b"\n" + _REPORTED if reported else b"")
        os.pwrite(self.descriptor, text, 0)
        os.ftruncate(self.descriptor, len(text))

    def discard(self) -> None:
        """Remove the directory if no run has begun in it: a refused one leaves nothing behind."""
        if self.past or self.paths.events.exists():
            return
        self.paths.lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something of somebody else's is in it
            self.paths.root.rmdir()

    def close(self) -> None:
        """Let another runner have the directory."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def open_folder(
    root: Path,
    *,
    digest: str,
    text: str = "",
    policy: str | None = None,
    retry_failed: bool = False,
    before_keep: Callable[[RunFolder], None] = lambda _: None,
) -> RunFolder:
    """Lock a run's directory and find out whether there is something to go on with.

    A finished run is kept as ``NAME.1`` (or the next free number) and a new one begins, unless its
    runner was killed before it could report: then that is what is left to do.

    Args:
        root: the directory; made if there is none.
        digest: of the jobs file.
        text: the jobs file, to name the difference if it has changed.
        policy: the policy that was asked for; None takes that of the run.
        retry_failed: go on with a finished run if some of its jobs did not succeed.
        before_keep: is called before a finished run is put away; what it raises keeps it in place.

    Raises:
        UsageError: the directory cannot be made or written.
        RunConflictError: another process holds it, or the unfinished run there is another one.
    """
    while True:
        folder = _lock(root)
        try:
            if not folder.past:
                folder.mark(reported=False)
                return folder
            if not is_finished(folder.state) or (retry_failed and _has_failures(folder.state)):
                _check_same(folder, digest, text, policy)
                folder.mark(reported=False)
                return folder
            if not folder.reported and _digest_of(folder.state) == digest:
                folder.only_report = True
                return folder
            before_keep(folder)
            keep(folder)
        except BaseException:
            folder.close()
            raise


def open_for_replacement(root: Path) -> RunFolder:
    """Lock a run's directory whatever is in it, for ``--fresh``. See `keep`."""
    return _lock(root)


def keep(folder: RunFolder) -> Path:
    """Move the directory to ``NAME.1`` or the next free number and let it go; its new path."""
    root = folder.paths.root
    number = 1
    while (kept := root.with_name(f"{root.name}.{number}")).exists():
        number += 1
    root.rename(kept)
    folder.close()
    return kept


def is_finished(state: RunState) -> bool:
    """Whether no job of the run waits for anything any more."""
    return state.finished is not None and not state.pending and not state.active


def _digest_of(state: RunState) -> str | None:
    return state.began.jobs_digest if state.began else None


def _has_failures(state: RunState) -> bool:
    return any(job.state.name != StateName.SUCCEEDED for job in state.jobs.values())


def _lock(root: Path) -> RunFolder:
    paths = RunPaths(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            f"{root}: cannot be written: {error.strerror}; choose another with --runs-dir"
        ) from error
    try:
        taken = _take(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(f"{root}: cannot be locked: {error.strerror}") from error
    if not taken:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise RunConflictError(
            f"{root}: process {holder or '(unknown)'} runs it; wait for it, stop it, "
            "or give this run another --name"
        )
    if not _is_still_there(descriptor, paths.lock):  # it was moved while we waited
        os.close(descriptor)
        return _lock(root)
    try:
        reported = os.pread(descriptor, _LOCK_BYTES, 0).endswith(_REPORTED)
        past = list(read_events(paths.events)) if paths.events.exists() else []
        state = RunState()
        for event in past:
            state.apply(event)
        folder = RunFolder(paths, past, state, descriptor)
        folder.mark(reported=reported)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(f"{root}: cannot be written: {error.strerror}") from error
    except BaseException:
        os.close(descriptor)
        raise
    return folder


def _take(descriptor: int) -> bool:
    """Lock, or get False where somebody who lives holds it."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            if time.monotonic() > deadline or not holder.isdigit() or _runs(int(holder)):
                return False
            time.sleep(_TICK_SECONDS)
        else:
            return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, _LOCK_BYTES, 0).decode(errors="replace").partition("\n")[0]


def _runs(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state != "Z"


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _check_same(folder: RunFolder, digest: str, text: str, policy: str | None) -> None:
    began = folder.state.began
    assert began is not None
    root = folder.paths.root
    if began.jobs_digest != digest:
        raise RunConflictError(
            f"{root}: the unfinished run there was begun from other jobs "
            f"({_difference(folder.paths, text)}); undo the change to resume it, begin anew with "
            "--fresh, or give this run another --name"
        )
    if policy is not None and policy != began.policy:
        raise RunConflictError(
            f"{root}: the unfinished run there was begun with policy {began.policy}, not {policy}; "
            "leave --policy out to resume it, or begin anew with --fresh"
        )


def _difference(paths: RunPaths, text: str) -> str:
    try:
        before = paths.jobs_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "they cannot be compared"
    return describe_changes(before, text) or "paths or settings outside the file differ"
