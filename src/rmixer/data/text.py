"""Text files as blocks of whole lines: plain or gzip by content, bounded memory, line numbers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rmixer.errors import DataError

BLOCK_BYTES = 8 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed if it is gzip.

    Raises:
        DataError: the file is missing or cannot be read, or its gzip stream is cut or damaged.
    """
    try:
        with path.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic == _GZIP_MAGIC:
                with gzip.GzipFile(fileobj=raw) as file:
                    yield file  # type: ignore[misc]
            else:
                yield raw
    except EOFError as error:
        raise DataError(
            "the gzip stream ends too early; the file is cut off, fetch it again", path=path
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"the gzip stream is damaged: {error}; fetch it again", path=path
        ) from error
    except FileNotFoundError as error:
        raise DataError("no such file", path=path) from error
    except IsADirectoryError as error:
        raise DataError("is a directory; name a file", path=path) from error
    except PermissionError as error:
        raise DataError("no permission to read it", path=path) from error


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


def blocks(path: Path, *, skip_lines: int = 0) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, each ending in a newline, with the number of its first line from 1.

    Line ends are normalized to a newline; blank lines at the end of the file are dropped.
    A newline inside a quoted field does not end a block.
    """
    with open_bytes(path) as file:
        line = 1
        for _ in range(skip_lines):
            file.readline()
            line += 1
        rest = b""
        while True:
            data = file.read(BLOCK_BYTES)
            block, rest = _cut(rest + data, last=not data)
            if block:
                if line == 1:
                    block = block.removeprefix(_BOM)
                yield block, line
                line += block.count(b"\n")
            if not data:
                return


def _cut(data: bytes, *, last: bool) -> tuple[bytes, bytes]:
    """Whole lines, and what is left for the next block."""
    if last:
        data = data.rstrip(b"\r\n")
        return (_normalize(data + b"\n") if data else b""), b""
    end = data.rfind(b"\n") + 1
    odd = data.count(b'"', 0, end) % 2
    while odd and end:  # a quote is open at the end: cut before the line of the last one
        cut = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
        odd ^= data.count(b'"', cut, end) % 2
        end = cut
    # Blank lines may turn out to be the end of the file: they are left for the next block.
    body = len(data[:end].rstrip(b"\r\n"))
    end = data.find(b"\n", body, end) + 1 if body else 0
    return _normalize(data[:end]), data[end:]


def _normalize(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n") if b"\r" in block else block
