"""What a builder has read so far, in files that the next one can trust if it is killed.

A part holds some consecutive rows: arrays with names, and a few words about them. It is written
whole and then renamed; its checksum tells of damage, whatever the machine went through since.

    8 bytes     RMIXPART
    8 bytes     length of the header, checksum (CRC-32) of the rest
    header      JSON: what was said about the part, and name, type, shape of each array
    arrays      each from a multiple of 64 bytes on
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"RMIXPART"
_HEAD = struct.Struct("<8sII")
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Part:
    """A part, mapped read-only."""

    about: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def write_part(path: Path, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a part; it appears when it is whole. ``about`` must be fit for JSON.

    Raises:
        OSError: it cannot be written.
    """
    listed = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    header = json.dumps({"about": about, "arrays": listed}).encode()
    header += b" " * _gap(_HEAD.size + len(header))
    pieces: list[Any] = [header]
    for array in arrays.values():
        pieces += [
            np.ascontiguousarray(array).reshape(-1).view(np.uint8),
            bytes(_gap(array.nbytes)),
        ]
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    new = path.with_name(f"{path.name}.new")
    with new.open("wb", buffering=0) as file:
        for piece in (_HEAD.pack(_MAGIC, len(header), checksum), *pieces):
            left = memoryview(piece)
            while left:
                left = left[file.write(left) :]
    new.replace(path)


def read_part(path: Path, *, check: bool = False) -> Part:
    """Map a part.

    Raises:
        ValueError: it is none, or (if ``check``) not what was written.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    magic, length, checksum = _HEAD.unpack_from(mapped)
    rest = memoryview(mapped)[_HEAD.size :]
    if magic != _MAGIC or (check and zlib.crc32(rest) != checksum):
        raise ValueError(f"{path} is damaged")
    header = json.loads(bytes(rest[:length]))
    arrays, at = {}, _HEAD.size + length
    for name, dtype, shape in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(mapped, dtype, count, at) if count else np.empty(0, dtype)
        arrays[name] = array.reshape(shape)
        at += array.nbytes + _gap(array.nbytes)
    return Part(header["about"], arrays)


class Parts:
    """The parts of a data set that is being built, in their order.

    Args:
        folder: is made.
        source: what the parts were read from, fit for JSON; parts of anything else are removed.
    """

    def __init__(self, folder: Path, source: Any) -> None:
        self.folder = folder
        self._source = folder / "source.json"
        folder.mkdir(exist_ok=True)
        told = json.dumps(source)
        if not self._source.exists() or self._source.read_text() != told:
            self.clear()
            new = self._source.with_suffix(".new")
            new.write_text(told)
            new.replace(self._source)
        self.number = 0

    def __iter__(self) -> Iterator[Part]:
        for number in range(self.number):
            yield read_part(self._path(number))

    def found(self) -> Iterator[Part]:
        """What a killed builder has left, up to the first part that is not as written."""
        while self._path(self.number).exists():
            try:
                part = read_part(self._path(self.number), check=True)
            except (ValueError, OSError, struct.error):
                break
            self.number += 1
            yield part
        for path in self.folder.glob("part-*"):
            if path.suffix == ".new" or int(path.name.removeprefix("part-")) >= self.number:
                path.unlink()

    def add(self, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the next part."""
        write_part(self._path(self.number), about, arrays)
        self.number += 1

    def clear(self) -> None:
        """Remove all parts."""
        self.number = 0
        for path in self.folder.glob("part-*"):
            path.unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06}"


def _gap(size: int) -> int:
    return -size % _ALIGNMENT
