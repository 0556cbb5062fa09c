"""Parse once, map many: each data set is built once, under a lock, and then only mapped.

The key is a hash of the content of the source files (not of their paths or times), the format's
options, the transform, the held-out part, and `VERSION`. The content hash of a file is remembered
under its device, inode, size and times, so only the first job reads the file for it; a file that is
changed in any way gets another key, and another data set.

    KEY/            a finished data set: columns, vocabulary, manifest.json
    KEY.lock        held by the builder (flock: it is free again however its holder ends)
    KEY.used        shared by the processes that use it; its time is that of the last use
    KEY.building/   what a builder has so far; the next one goes on from there
    fingerprints/   content hashes of source files

A finished data set is written, synced and then renamed, so it is there wholly or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data import detect
from rmixer.data.info import DataInfo
from rmixer.errors import DataError, StorageError
from rmixer.resources import format_bytes

if TYPE_CHECKING:
    from rmixer.data.format import Format
    from rmixer.data.schema import DataSpec

#: Part of every key: raise it when the same source would be written differently.
VERSION = 7

_BLOCK = 1 << 22
#: A file changed less than this before it was hashed may change again without a new time.
_SETTLED_SECONDS = 2.0
_POLL_SECONDS = 0.05


class Stopped(Exception):  # noqa: N818 - not an error
    """The caller asked to stop while a data set was being built or waited for."""


Report = Callable[[str, int], None]


def _ignore(what: str, rows: int) -> None:
    del what, rows


def prepare(
    spec: DataSpec,
    cache_dir: Path,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    report: Report = _ignore,
) -> Path:
    """The folder of the finished data set; built first if it is not there.

    Args:
        spec: which data, and what to do with it.
        cache_dir: where finished data sets are kept.
        should_stop: asked between chunks, and while another process builds.
        report: called with ``"building"`` and the rows read so far, or ``"waiting"`` and 0.

    Raises:
        DataError: something in the source is not right.
        StorageError: the cache cannot be written, for example because the disk is full.
        Stopped: ``should_stop`` said so; what has been read is kept for the next builder.
    """
    spec = detect.resolve(spec)
    source = detect.opened(spec)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        final = cache_dir / cache_key(spec, source, cache_dir)
        while not _is_held(final):  # removed between its end and its use: once more
            with _lock(lock_path(final), should_stop, report):
                if not is_whole(final):
                    _build(spec, source, final, should_stop, report)
    except DataError as error:
        raise detect.explained(error, spec) from error.__cause__
    except OSError as error:
        raise storage_error(error, cache_dir) from error
    return final


def lock_path(folder: Path) -> Path:
    """What the builder of a data set locks."""
    return folder.with_name(f"{folder.name}.lock")


def used_path(folder: Path) -> Path:
    """What those that use a data set share."""
    return folder.with_name(f"{folder.name}.used")


def building_path(folder: Path) -> Path:
    """What a builder has so far."""
    return folder.with_name(f"{folder.name}.building")


#: Data sets that this process uses, until it ends, and what keeps them from being removed.
_held: dict[Path, int] = {}


def _is_held(folder: Path) -> bool:
    """Whether a data set is whole, and cannot be removed from now on (where that can be helped)."""
    if not is_whole(folder):
        return False
    if folder in _held:
        return True
    path = used_path(folder)
    try:
        descriptor = _shared(path)
    except OSError:  # a cache that others keep, and that we may only read
        return True
    if not is_whole(folder):
        os.close(descriptor)
        return False
    _held[folder] = descriptor
    return True


def _shared(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def find(spec: DataSpec, cache_dir: Path) -> Path | None:
    """The folder of the data set if it is finished; None if it would have to be built.

    Raises:
        DataError: the source cannot be read.
        StorageError: the cache cannot be written.
    """
    spec = detect.resolve(spec)
    try:
        folder = cache_dir / cache_key(spec, detect.opened(spec), cache_dir)
    except OSError as error:
        raise storage_error(error, cache_dir) from error
    return folder if is_whole(folder) else None


def cache_key(spec: DataSpec, source: Format, cache_dir: Path) -> str:
    """The name of the data set in the cache: format and 32 hexadecimal digits."""
    identity = {
        "version": VERSION,
        "content": [fingerprint(path, cache_dir) for path in source.sources],
        **spec.identity(),
    }
    text = json.dumps(identity, sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    name = "".join(c if c.isalnum() else "-" for c in spec.format)
    return f"{name}-{digest}"


def fingerprint(path: Path, cache_dir: Path) -> str:
    """The hash of a file's content; remembered while its inode, size and times stay the same.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            memo = cache_dir / "fingerprints" / "-".join(f"{part:x}" for part in identity)
            if memo.exists() and len(known := memo.read_text()) == 32:  # noqa: PLR2004
                return known
            digest = hashlib.sha256()  # the fastest where the CPU has it
            while block := file.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError as error:
        raise DataError("no such file", path=path) from error
    except IsADirectoryError as error:
        raise DataError("is a directory; name a file", path=path) from error
    except PermissionError as error:
        raise DataError("no permission to read it", path=path) from error
    if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED_SECONDS:
        memo.parent.mkdir(parents=True, exist_ok=True)
        _write_atomic(memo, digest.hexdigest()[:32])
    return digest.hexdigest()[:32]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished data set.

    Raises:
        StorageError: it is damaged.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        body = json.dumps(manifest["body"], sort_keys=True).encode()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{folder}: the manifest cannot be read: {error}") from error
    if zlib.crc32(body) != manifest.get("crc32"):
        raise StorageError(
            f"{folder}: the manifest is damaged; remove the folder to build it again"
        )
    return dict(manifest["body"])


def verify(folder: Path) -> list[str]:
    """The files of a data set whose content is not what was written; empty if all is well."""
    files: dict[str, Any] = read_manifest(folder)["files"]
    return [
        name
        for name, wanted in files.items()
        if not (folder / name).exists() or checksum(folder / name) != wanted["crc32"]
    ]


def checksum(path: Path) -> int:
    """CRC-32 of a file's content."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def storage_error(error: OSError, path: Path) -> StorageError:
    """What a failed write means, with the numbers."""
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = format_bytes(shutil.disk_usage(path if path.exists() else path.parent).free)
        except OSError:
            free = "unknown"
        return StorageError(f"disk full: {path} has {free} free; make room or choose another place")
    return StorageError(f"{where}: {error.strerror or error}")


def is_whole(folder: Path) -> bool:
    """Whether a finished data set is there, with every file at its written size."""
    if not (folder / "manifest.json").exists():
        return False
    try:
        files = read_manifest(folder)["files"]
        return all((folder / name).stat().st_size == f["bytes"] for name, f in files.items())
    except (StorageError, OSError):
        return False


@contextmanager
def _lock(path: Path, should_stop: Callable[[], bool], report: Report) -> Iterator[None]:
    """Hold the builder's lock; wait for it while another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if should_stop():
                    raise Stopped from None
                report("waiting", 0)
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _build(
    spec: DataSpec,
    source: Format,
    final: Path,
    should_stop: Callable[[], bool],
    report: Report,
) -> None:
    from rmixer.data.build import build  # noqa: PLC0415 - only the builder needs it

    def on_rows(rows: int) -> None:
        if should_stop():
            raise Stopped
        report("building", rows)

    def check() -> None:
        if should_stop():
            raise Stopped

    part = building_path(final)
    _remove(final)  # damaged, else it would have been used
    part.mkdir(exist_ok=True)
    try:
        info, sums = build(spec, source, part, on_rows, check)
        _write_manifest(part, spec, source, info, sums)
        part.rename(final)
        _sync(final.parent)
    except Stopped:
        raise
    except BaseException:
        _remove(part)
        raise


def _write_manifest(
    folder: Path,
    spec: DataSpec,
    source: Format,
    info: DataInfo,
    sums: Mapping[str, Mapping[str, int]],
) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        _sync(path)
        known = sums.get(path.name)
        files[path.name] = known or {"bytes": path.stat().st_size, "crc32": checksum(path)}
    body = {
        "schema_version": 1,
        "version": VERSION,
        "identity": json.loads(json.dumps(spec.identity(), default=str)),
        "sources": [str(path.absolute()) for path in source.sources],  # where it was; not used
        "info": info.to_dict(),
        "files": files,
    }
    raw = json.dumps(body, sort_keys=True)
    _write_atomic(
        folder / "manifest.json", json.dumps({"body": body, "crc32": zlib.crc32(raw.encode())})
    )
    _sync(folder)


def _write_atomic(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
