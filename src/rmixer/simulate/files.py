"""Text files of traces and tables, compressed or not."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import TextIO

from rmixer.errors import UsageError


def open_text(path: Path) -> TextIO:
    """The text of a file, unpacked if its name ends in ``.gz``.

    Raises:
        UsageError: it cannot be read, or is not text.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return io.StringIO(content.decode())
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is damaged: {error}") from error
