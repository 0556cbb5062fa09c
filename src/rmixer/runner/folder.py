"""A run's directory: held by one runner at a time, resumed if unfinished, kept if finished."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmixer import events as ev
from rmixer.errors import RunConflictError, UsageError
from rmixer.log import read_events
from rmixer.model import StateName
from rmixer.paths import RunPaths
from rmixer.spec import describe_changes
from rmixer.state import RunState


@dataclass(slots=True)
class RunFolder:
    """The directory of a run, locked by this process until `close`.

    Attributes:
        paths: its files.
        past: the events of an unfinished run to go on with; empty for a new run.
        state: their replay.
        descriptor: of the lock.
    """

    paths: RunPaths
    past: Sequence[ev.Event]
    state: RunState
    descriptor: int

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
) -> RunFolder:
    """Lock a run's directory and find out whether there is something to go on with.

    A finished run is kept as ``NAME.1`` (or the next free number) and a new one begins.

    Args:
        root: the directory; made if there is none.
        digest: of the jobs file.
        text: the jobs file, to name the difference if it has changed.
        policy: the policy that was asked for; None takes that of the run.
        retry_failed: go on with a finished run if some of its jobs did not succeed.

    Raises:
        UsageError: the directory cannot be made or written.
        RunConflictError: another process holds it, or the unfinished run there is another one.
    """
    while True:
        folder = _lock(root)
        try:
            if not folder.past:
                return folder
            if not is_finished(folder.state) or (retry_failed and _has_failures(folder.state)):
                _check_same(folder, digest, text, policy)
                return folder
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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise RunConflictError(
            f"{root}: process {holder or '(unknown)'} runs it; wait for it, stop it, "
            "or give this run another --name"
        ) from error
    if not _is_still_there(descriptor, paths.lock):  # it was moved while we waited
        os.close(descriptor)
        return _lock(root)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        past = list(read_events(paths.events)) if paths.events.exists() else []
    except OSError as error:
        os.close(descriptor)
        raise UsageError(f"{root}: cannot be written: {error.strerror}") from error
    except BaseException:
        os.close(descriptor)
        raise
    state = RunState()
    for event in past:
        state.apply(event)
    return RunFolder(paths, past, state, descriptor)


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
