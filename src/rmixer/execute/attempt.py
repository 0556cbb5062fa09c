"""The files of an attempt: what is laid out before its shim starts, and what it left behind."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmixer.errors import StorageError
from rmixer.launch import cage, shim
from rmixer.paths import AttemptPaths

#: Unix sockets that programs make under TMPDIR (the workers of a torch DataLoader do) have names
#: of at most 107 bytes, and add some 32 of their own.
LONGEST_TMPDIR = 70


def lay_out(
    paths: AttemptPaths, order: Mapping[str, Any], config: Mapping[str, Any] | None = None
) -> None:
    """Make an attempt's directory with all that its shim needs, space for its ends included.

    Raises:
        StorageError: it cannot be written; nothing of it is left.
    """
    try:
        paths.root.mkdir(parents=True)
    except OSError as error:
        raise StorageError(f"{paths.root}: cannot be made: {error.strerror}") from error
    try:
        paths.scratch.mkdir(mode=0o700)
        paths.log.touch()
        for name in (paths.started, paths.exit):
            _reserve(name.with_name(name.name + shim.RESERVE_SUFFIX))
        if config is not None:
            write_private(paths.config, config)
        write_private(paths.order, order)
        if order.get("temporary"):  # after its name is on disk, so that it can be removed
            Path(order["temporary"]).symlink_to(paths.scratch.absolute())
    except OSError as error:
        clear(paths, order.get("temporary"))
        raise StorageError(f"{paths.root}: cannot be written: {error.strerror}") from error


def clear(paths: AttemptPaths, temporary: str | None = None) -> None:
    """Remove an attempt that was never started."""
    remove_link(paths, temporary)
    shutil.rmtree(paths.root, ignore_errors=True)


def remove_link(paths: AttemptPaths, temporary: str | None) -> None:
    """Remove the short name of a scratch directory, if there is one and it is this attempt's."""
    with contextlib.suppress(OSError):
        if temporary and os.readlink(temporary) == str(paths.scratch.absolute()):  # noqa: PTH115
            Path(temporary).unlink()


def remove_scratch(paths: AttemptPaths) -> None:
    """Remove the temporary files of an attempt whose shim could not, and their short name."""
    remove_link(paths, (read_document(paths.order) or {}).get("temporary"))
    shutil.rmtree(paths.scratch, ignore_errors=True)


def cage_of(paths: AttemptPaths) -> cage.Cage | None:
    """The memory cage that an attempt was put into, if its shim has noted one."""
    return cage.find((read_document(paths.started) or {}).get("cage") or {})


def short_name(paths: AttemptPaths, token: str) -> str | None:
    """A short name for the scratch directory where its own is too long for Unix sockets."""
    if len(os.fsencode(paths.scratch.absolute())) <= LONGEST_TMPDIR:
        return None
    digest = hashlib.sha256(f"{token} {paths.root.absolute()}".encode()).hexdigest()
    return str(Path(tempfile.gettempdir(), f"rmixer-{digest[:20]}"))


def write_private(path: Path, document: Mapping[str, Any]) -> None:
    """Write a file that only its owner may read: environments carry secrets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)


def read_document(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if there is none that is whole."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


@contextmanager
def claim(paths: AttemptPaths) -> Iterator[bool]:
    """Hold the attempt's lock, or get False because its shim holds it, and so is alive.

    Raises:
        OSError: there is no such attempt, or its lock cannot be opened.
    """
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def revoke(paths: AttemptPaths) -> None:
    """Forbid the attempt for good. Only under its lock."""
    descriptor = os.open(paths.revoked, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reserve(path: Path) -> None:
    """A file with space in it, so that it can be written and renamed on a full disk."""
    path.write_bytes(b"\n" * shim.RESERVE_BYTES)
