"""Files of columns: their names, how they are mapped, and how they are written with a checksum."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def file_path(folder: Path, name: str) -> Path:
    """The file of a column; what a file name cannot hold is escaped."""
    safe = "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):x}" for c in name)
    return folder / safe


def open_column(folder: Path, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A column mapped read-only; the file's ending names its type."""
    path = file_path(folder, name)
    dtype = np.dtype(name.rpartition(".")[2])
    if not path.stat().st_size:
        return np.empty(tuple(max(0, n) for n in shape), dtype)
    return np.memmap(path, dtype, mode="r").reshape(shape)


class ColumnWriter:
    """Writes one file from its beginning to its end.

    Attributes:
        name: of the file.
        bytes, crc32: of what has been written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        path = file_path(folder, name)
        self.name = path.name
        self.bytes = self.crc32 = 0
        self._file = path.open("wb", buffering=0)

    def write(self, values: NDArray[Any]) -> None:
        """Append the bytes of an array."""
        left = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        self.bytes += len(left)
        self.crc32 = zlib.crc32(left, self.crc32)
        while left:
            left = left[self._file.write(left) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
