"""Arrays on disk, ``.npy`` mapped and ``.npz`` streamed: shapes from headers, faults with paths."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class Header:
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_header(path: Path) -> Header:
    """Of an ``.npy`` file.

    Raises:
        DataError: it is none, or one whose rows cannot be read one after the other.
    """
    try:
        with path.open("rb") as file:
            return _header(file, path)
    except FileNotFoundError as error:
        raise DataError("no such file", path=path) from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error


def mapped(path: Path) -> NDArray[Any]:
    """An ``.npy`` file, mapped read-only: what is not looked at is not read.

    Raises:
        DataError: it is none, or shorter than its header says.
    """
    read_header(path)
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError) as error:
        message = "the file is shorter than its header says; it is cut off, fetch it again"
        raise DataError(message, path=path) from error


class Archive:
    """The arrays of an ``.npz`` file, of which some rows at a time are read.

    Raises:
        DataError: it is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError as error:
            raise DataError("no such file", path=path) from error
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path=path) from error
        except zipfile.BadZipFile as error:
            raise DataError(f"is no .npz file, or is cut off: {error}", path=path) from error
        self.names = [n.removesuffix(".npy") for n in self._zip.namelist() if n.endswith(".npy")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def header(self, name: str) -> Header:
        """Of one array.

        Raises:
            DataError: there is none of that name, or its rows cannot be read one after the other.
        """
        if name not in self.names:
            raise DataError(unknown_name("array", name, self.names), path=self.path)
        with self._zip.open(f"{name}.npy") as file:
            return _header(file, self.path, name)

    def blocks(self, names: Sequence[str], rows: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Some rows of each array at a time; all must have as many.

        Raises:
            DataError: they have not, or one is cut off or damaged.
        """
        headers = {name: self.header(name) for name in names}
        total = same_rows({name: h.shape for name, h in headers.items()}, self.path)
        with ExitStack() as stack:
            files = {n: stack.enter_context(self._zip.open(f"{n}.npy")) for n in names}
            for name, file in files.items():
                _header(file, self.path, name)  # the rows begin behind it
            for start in range(0, total, rows):
                count = min(rows, total - start)
                yield {n: self._read(file, headers[n], count, n) for n, file in files.items()}

    def _read(self, file: IO[bytes], header: Header, rows: int, name: str) -> NDArray[Any]:
        shape = (rows, *header.shape[1:])
        size = int(np.prod(shape)) * header.dtype.itemsize
        try:
            data = file.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise DataError(f"is damaged: {error}", path=self.path, column=name) from error
        if len(data) != size:
            message = "the array is shorter than its header says"
            raise DataError(message, path=self.path, column=name)
        return np.frombuffer(data, header.dtype).reshape(shape)


def same_rows(shapes: dict[str, tuple[int, ...]], path: Path) -> int:
    """The number of rows, which all arrays must have.

    Raises:
        DataError: naming two that differ.
    """
    first, rows = next((name, shape[0]) for name, shape in shapes.items())
    for name, shape in shapes.items():
        if shape[0] != rows:
            message = f"has {shape[0]} rows, but {first} has {rows}; they must be equally many"
            raise DataError(message, path=path, column=name)
    return rows


def _header(file: IO[bytes], path: Path, name: str | None = None) -> Header:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version >= (2, 0):
            read = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError) as error:
        message = f"is no .npy array, or is cut off: {str(error).partition(chr(10))[0]}"
        raise DataError(message, path=path, column=name) from error
    if dtype.hasobject:
        message = f"has type {dtype} (Python objects), which is not read; save numbers or text"
        raise DataError(message, path=path, column=name)
    if not shape or (fortran and len(shape) > 1):
        message = "is a single value" if not shape else "is stored column by column"
        raise DataError(f"{message}; rows are needed", path=path, column=name)
    return Header(shape, dtype)
