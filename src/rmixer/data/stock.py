"""What the cache holds, and removing it: ``rmixer cache ls`` and ``rmixer cache rm``.

A data set that a process uses or builds is never removed: both hold a lock on it (see
`rmixer.data.cache`), and a remover takes both locks first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rmixer.data.cache import (
    building_path,
    is_whole,
    lock_path,
    read_manifest,
    storage_error,
    used_path,
)
from rmixer.errors import StorageError, UsageError
from rmixer.monitor.files import disk_bytes, is_locked

_NOT_KEYS = frozenset({"fingerprints"})
_ENDINGS = (".lock", ".used", ".building", ".removing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One data set of the cache.

    Attributes:
        key: its name in the cache.
        state: ``ready``; ``building`` by a process; ``unfinished``: its builder was killed, the
            next one goes on; ``damaged``: it will be built again.
        in_use: whether a process uses or builds it now.
        bytes: on the disk.
        rows: 0 where it is not ready.
        format: of the source.
        sources: the files it was made from, where they were then.
        used_at: seconds since the epoch of its last use.
    """

    key: str
    state: str
    in_use: bool
    bytes: int
    rows: int
    format: str
    sources: tuple[str, ...]
    used_at: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def entries(cache_dir: Path) -> list[Entry]:
    """All data sets of a cache, the one used last first; none where there is no cache.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        found = [_entry(cache_dir / key) for key in _keys(cache_dir)]
    except OSError as error:
        raise storage_error(error, cache_dir) from error
    return sorted((one for one in found if one), key=lambda one: (-one.used_at, one.key))


def chosen(
    found: Sequence[Entry], names: Sequence[str], *, everything: bool, unused_seconds: float | None
) -> list[Entry]:
    """The data sets that are meant, each once.

    Args:
        found: all there are.
        names: keys, beginnings of keys that only one has, or paths of source files.
        everything: all of them.
        unused_seconds: with ``everything`` or no names, only those not used for so long.

    Raises:
        UsageError: a name fits none, or several.
    """
    if not names:
        limit = time.time() - (unused_seconds or 0.0)
        wanted = everything or unused_seconds is not None
        return [one for one in found if wanted and one.used_at <= limit]
    meant = {one.key: one for name in names for one in _named(found, name)}
    return list(meant.values())


def remove(cache_dir: Path, entry: Entry) -> bool:
    """Remove a data set; False if a process uses or builds it, and then it stays.

    Raises:
        StorageError: it cannot be removed.
    """
    folder = cache_dir / entry.key
    try:
        with _both_locks(folder) as free:
            if not free:
                return False
            doomed = folder.with_name(f"{entry.key}.removing")
            shutil.rmtree(doomed, ignore_errors=True)
            if folder.exists():
                folder.rename(doomed)  # wholly there or not at all, whatever happens meanwhile
                shutil.rmtree(doomed)
            if building_path(folder).exists():
                shutil.rmtree(building_path(folder))
    except OSError as error:
        raise storage_error(error, cache_dir) from error
    return True


def _keys(cache_dir: Path) -> set[str]:
    if not cache_dir.is_dir():
        return set()
    keys = set()
    for path in cache_dir.iterdir():
        if path.is_dir() and path.name not in _NOT_KEYS:
            ending = next((e for e in _ENDINGS if path.name.endswith(e)), "")
            keys.add(path.name.removesuffix(ending))
    return keys


def _entry(folder: Path) -> Entry | None:
    """What is known of a data set; None if it has just gone."""
    parts = [folder, building_path(folder), folder.with_name(f"{folder.name}.removing")]
    sizes = [disk_bytes(part) for part in parts]
    if not any(part.exists() for part in parts):
        return None
    builds, in_use = is_locked(lock_path(folder)), is_locked(used_path(folder))
    body: dict[str, Any] = {}
    state = "building" if builds else "unfinished"
    if folder.exists():
        state = "ready" if is_whole(folder) else "damaged"
        try:
            body = read_manifest(folder)
        except StorageError:
            state = "damaged"
    info = body.get("info", {})
    return Entry(
        key=folder.name,
        state=state,
        in_use=in_use or builds,
        bytes=sum(sizes),
        rows=int(info.get("rows", 0)),
        format=folder.name.rpartition("-")[0],
        sources=tuple(body.get("sources", ())),
        used_at=_used_at(folder),
    )


def _used_at(folder: Path) -> float:
    places = (used_path(folder), folder / "manifest.json", building_path(folder), folder)
    return max((path.stat().st_mtime for path in places if path.exists()), default=0.0)


def _named(found: Sequence[Entry], name: str) -> list[Entry]:
    exact = [one for one in found if one.key == name]
    if exact:
        return exact
    path = str(Path(name).absolute())
    made_from = [one for one in found if path in one.sources]
    if made_from:
        return made_from
    fitting = [one for one in found if name and one.key.startswith(name)]
    if len(fitting) == 1:
        return fitting
    if fitting:
        keys = ", ".join(sorted(one.key for one in fitting)[:5])
        raise UsageError(f"{name!r} fits {len(fitting)} data sets ({keys}, ...); give more of it")
    raise UsageError(
        f"{name!r} is no data set of the cache; `rmixer cache ls` shows their keys and sources"
    )


@contextmanager
def _both_locks(folder: Path) -> Iterator[bool]:
    """Hold the builder's and the users' lock; False if somebody else has one of them."""
    with ExitStack() as stack:
        for path in (lock_path(folder), used_path(folder)):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
        yield True
