"""Text files as blocks of whole lines with their numbers, in bounded memory.

Plain, gzip or zstd, which is seen by the content.
"""

from __future__ import annotations

import gzip
import importlib
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from rmixer.errors import DataError

BLOCK_BYTES = 8 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16)))
_BOM = b"\xef\xbb\xbf"
#: Bytes behind each block, with any content, so that a compiled scan may read some at a time.
PADDING = 16


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed if it is gzip or zstd.

    Raises:
        DataError: the file is missing or cannot be read, its compressed stream is cut or damaged,
            or what decompresses it is not installed.
    """
    kind = ""
    try:
        with path.open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic[:2] == _GZIP_MAGIC:
                kind = "gzip"
                with gzip.GzipFile(fileobj=raw) as file:
                    yield file  # type: ignore[misc]
            elif magic in _ZSTD_MAGICS:
                kind = "zstd"
                with _zstd(path).ZstdFile(raw) as file:
                    yield cast("IO[bytes]", file)
            else:
                yield raw
    except EOFError as error:
        raise DataError(
            f"the {kind} stream ends too early; the file is cut off, fetch it again", path=path
        ) from error
    except FileNotFoundError as error:
        raise DataError("no such file", path=path) from error
    except IsADirectoryError as error:
        raise DataError("is a directory; name a file", path=path) from error
    except PermissionError as error:
        raise DataError("no permission to read it", path=path) from error
    except Exception as error:
        if not _is_damage(error):
            raise
        raise DataError(
            f"the {kind} stream is damaged: {error}; fetch it again", path=path
        ) from error


def _zstd(path: Path) -> Any:
    """What decompresses zstd: Python's own from 3.14 on, before that the package that it was."""
    own = sys.version_info >= (3, 14)
    try:
        return importlib.import_module("compression.zstd" if own else "backports.zstd")
    except ImportError as error:
        message = "is compressed with zstd, which needs the package backports.zstd: install it"
        raise DataError(f"{message} with `pip install 'rmixer[train]'`", path=path) from error


def _is_damage(error: Exception) -> bool:
    return isinstance(error, gzip.BadGzipFile | zlib.error) or type(error).__name__ == "ZstdError"


def first_line(path: Path) -> str:
    """The first line, without its end.

    Raises:
        DataError: the file cannot be read, is empty, or is not UTF-8.
    """
    with open_bytes(path) as file:
        line = file.readline(1 << 20)
    if not line.strip():
        raise DataError("the file is empty; at least one row is needed", path=path, line=1)
    try:
        return line.removeprefix(_BOM).decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 text: {error.reason}", path=path, line=1) from error


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block begins.

    Attributes:
        offset: bytes of (decompressed) text before it.
        line: the number of its first line, from 1.
    """

    offset: int
    line: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines. Its bytes are overwritten when the next block is asked for.

    Attributes:
        data: the bytes; `PADDING` more follow ``stop``.
        start, stop: where the lines begin, and behind their last newline.
        line: the number of the first one.
        after: where the next block begins.
    """

    data: bytearray
    start: int
    stop: int
    line: int
    after: Place

    def text(self) -> bytes:
        """The lines, each with a newline at its end and nothing else."""
        block = bytes(memoryview(self.data)[self.start : self.stop])
        return block.replace(b"\r\n", b"\n") if b"\r" in block else block


def blocks(path: Path, *, skip_lines: int = 0) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, each ending in a newline, with the number of its first line from 1.

    Line ends are normalized to a newline; blank lines at the end of the file are dropped.
    A newline inside a quoted field does not end a block.
    """
    for block in placed_blocks(path, skip_lines=skip_lines):
        yield block.text(), block.line


def placed_blocks(
    path: Path, *, skip_lines: int = 0, start: Place | None = None
) -> Iterator[Block]:
    """The same blocks without a copy of each, from the beginning or from the place of a block."""
    with open_bytes(path) as file:
        if start is None:
            header = sum(len(file.readline()) for _ in range(skip_lines))
            place = Place(header, 1 + skip_lines)
        else:
            place = start
            file.seek(start.offset)
        buffer, filled, got = bytearray(), 0, 1
        while got:
            buffer, filled, got = _fill(file, buffer, filled)
            stop = _end(buffer, filled, last=not got)
            if not stop:
                continue
            bom = len(_BOM) if place.line == 1 and buffer.startswith(_BOM) else 0
            after = Place(place.offset + stop, place.line + _newlines(buffer, stop))
            yield Block(buffer, bom, stop, place.line, after)
            place = after
            left = max(0, filled - stop)
            buffer[:left] = buffer[stop : stop + left]
            filled = left


def _fill(file: IO[bytes], buffer: bytearray, filled: int) -> tuple[bytearray, int, int]:
    """Read on behind what there is: the buffer, its bytes, and how many of them are new."""
    size = filled + BLOCK_BYTES + PADDING + 1
    if len(buffer) < size:
        buffer = buffer[:filled] + bytes(size - filled)
    got: int = file.readinto(memoryview(buffer)[filled : filled + BLOCK_BYTES])  # type: ignore[attr-defined]
    return buffer, filled + got, got


def _end(data: bytearray, filled: int, *, last: bool) -> int:
    """Behind the last whole line of a block; 0 if there is none."""
    if last:
        end = _without_blank_lines(data, filled)
        if end:
            data[end] = ord("\n")
            end += 1
        return end
    end = data.rfind(b"\n", 0, filled) + 1
    # A search is many times as fast as a count.
    odd = data.find(b'"', 0, end) >= 0 and data.count(b'"', 0, end) % 2
    while odd and end:  # a quote is open at the end: cut before the line of the last one
        cut = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
        odd ^= data.count(b'"', cut, end) % 2
        end = cut
    # Blank lines may turn out to be the end of the file: they are left for the next block.
    body = _without_blank_lines(data, end)
    return data.find(b"\n", body, end) + 1 if body else 0


def _without_blank_lines(data: bytearray, end: int) -> int:
    while end and data[end - 1] in b"\r\n":
        end -= 1
    return end


def _newlines(data: bytearray, stop: int) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop) == ord("\n")))
