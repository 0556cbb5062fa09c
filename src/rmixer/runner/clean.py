"""Old runs: what they take, and removing them, but never one that is still worked on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rmixer.errors import RunConflictError, StorageError, UsageError
from rmixer.execute.mps import left_by
from rmixer.model import Active
from rmixer.monitor.files import disk_bytes, is_locked
from rmixer.paths import RunPaths
from rmixer.runner.folder import RunFolder, is_finished, open_for_replacement

#: A run that is being removed; left behind by a kill, and removed by the next one.
_REMOVING = ".removing"

Doing = Literal["finished", "unfinished", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRun:
    """One run's directory.

    Attributes:
        name: of the directory.
        doing: ``finished``; ``unfinished``, which the same command would go on with; or
            ``running``: its runner, or a job that outlived it, still works.
        jobs: how many it has.
        bytes: on the disk.
        changed_at: seconds since the epoch of the newest event.
    """

    name: str
    doing: Doing
    jobs: int
    bytes: int
    changed_at: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def old_runs(runs_dir: Path) -> list[OldRun]:
    """All runs there, the one that changed last first; none where there is no directory."""
    if not runs_dir.is_dir():
        return []
    roots = [path.parent for path in runs_dir.glob("*/events.jsonl")]
    return sorted(map(_examined, roots), key=lambda run: (-run.changed_at, run.name))


def chosen(
    found: Sequence[OldRun],
    names: Sequence[str],
    *,
    older_seconds: float | None = None,
    unfinished: bool = False,
) -> list[OldRun]:
    """The runs that are meant; without names all finished ones (with ``unfinished``, these too).

    Raises:
        UsageError: a name is no run, or is one that would have to be named as unfinished.
    """
    limit = time.time() - (older_seconds or 0.0)
    if not names:
        kinds = {"finished", "unfinished"} if unfinished else {"finished"}
        return [run for run in found if run.doing in kinds and run.changed_at <= limit]
    known = {run.name: run for run in found}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)[:10]) or "none"
            raise UsageError(f"{name!r} is no run here; there are: {there}")
        if known[name].doing == "unfinished" and not unfinished:
            raise UsageError(
                f"{name} is unfinished: run its jobs file again to go on with it, or add "
                "--unfinished to give it up"
            )
    return [known[name] for name in dict.fromkeys(names)]


def remove(runs_dir: Path, run: OldRun) -> bool:
    """Remove a run; False if somebody works on it, and then it stays.

    MPS daemons that a killed runner has left are ended.

    Raises:
        StorageError: it cannot be removed.
    """
    root = runs_dir / run.name
    try:
        with _held(root) as folder:
            if folder is None or _has_workers(folder):
                return False
            left_by(folder.paths, folder.state.node).quit()
            doomed = root.with_name(f".{root.name}{_REMOVING}")
            shutil.rmtree(doomed, ignore_errors=True)
            root.rename(doomed)
            shutil.rmtree(doomed)
    except OSError as error:
        where = error.filename or root
        raise StorageError(f"{where}: cannot be removed: {error.strerror or error}") from error
    return True


def _examined(root: Path) -> OldRun:
    with _held(root) as folder:
        doing: Doing = "running"
        jobs = 0
        if folder is not None:
            jobs = len(folder.state.jobs)
            if not _has_workers(folder):
                doing = "finished" if is_finished(folder.state) else "unfinished"
    return OldRun(
        name=root.name,
        doing=doing,
        jobs=jobs,
        bytes=disk_bytes(root),
        changed_at=RunPaths(root).events.stat().st_mtime,
    )


@contextmanager
def _held(root: Path) -> Iterator[RunFolder | None]:
    """The run, ours for a moment; None while a runner has it."""
    try:
        folder = open_for_replacement(root)
    except RunConflictError:
        yield None
        return
    try:
        yield folder
    finally:
        folder.close()


def _has_workers(folder: RunFolder) -> bool:
    """Whether a job that outlived its runner is still there: its shim holds the attempt's lock."""
    return any(
        is_locked(folder.paths.job(job.id).attempt(job.state.attempt.number).lock)
        for job in folder.state.active
        if isinstance(job.state, Active)
    )
