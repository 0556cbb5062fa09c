"""Delimited text as chunks, from any place on; whole numbers and ids by a compiled scan.

What the scan does not read (a fault, quotes, numbers in an unusual form) is read block by block by
`rmixer.data.table`, so the rows are the same with and without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rmixer.data.compiled import Kernels, kernels
from rmixer.data.format import Chunk, WholeChunk
from rmixer.data.text import PADDING, Block, Place, placed_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmixer.data.table import Table

#: Smaller files are read before the compiled loops are loaded (and, the first time, compiled).
COMPILED_BYTES = 16 << 20


def placed_chunks(
    table: Table, path: Path, start: Place | None = None
) -> Iterator[tuple[Chunk | WholeChunk, Place]]:
    """The rows of a file, and where the next chunk begins.

    Raises:
        DataError: as `Table.chunks` does.
    """
    scan: _Scan | None = None
    if path.is_file() and path.stat().st_size >= COMPILED_BYTES:
        scan = _Scan.of(table)
    empty = start is None
    for block in placed_blocks(path, skip_lines=table.skip_lines, start=start):
        empty = False
        chunk = scan.chunk(block) if scan is not None else None
        yield chunk or table.parsed(block.text(), path, block.line), block.after
    if empty:
        raise table.is_empty(path)


@dataclass(frozen=True, slots=True)
class _Scan:
    """How to scan the lines of one table."""

    table: Table
    kernels: Kernels
    roles: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, table: Table) -> _Scan | None:
        """None if the table has anything that a scan does not read, or there is no compiler."""
        schema = table.schema
        if not (table.labelled and table.hexadecimal and table.whole):
            return None
        if schema.sequences or schema.positive or schema.missing:
            return None
        if set(table.columns) != set(schema.used) or (found := kernels()) is None:
            return None
        from rmixer.data.kernels import HEX, LABEL, WHOLE  # noqa: PLC0415 - it needs numba

        known = {schema.label: (LABEL, 0)}
        known |= {name: (WHOLE, i) for i, name in enumerate(schema.dense)}
        known |= {name: (HEX, i) for i, name in enumerate(schema.sparse)}
        roles, places = zip(*(known[name] for name in table.columns), strict=True)
        return cls(table, found, np.array(roles, np.int64), np.array(places, np.int64))

    def chunk(self, block: Block) -> WholeChunk | None:
        """The rows of a block; None if the scan cannot read them."""
        rows = block.after.line - block.line
        data, start, stop = block.data, block.start, block.stop
        if data.find(b"\r", start, stop) >= 0:
            text = block.text()
            data, start, stop = bytearray(text + bytes(PADDING)), 0, len(text)
        schema = self.table.schema
        label_B = np.empty(rows, np.uint8)
        dense_NB = np.empty((len(schema.dense), rows), np.int32)
        id_FB = np.empty((len(schema.sparse), rows), np.int64)
        seen = self.kernels.scan(
            np.frombuffer(data, np.uint8)[start:],
            stop - start,
            ord(self.table.delimiter),
            self.roles,
            self.places,
            label_B,
            dense_NB,
            id_FB,
        )
        if seen != rows:
            return None
        return WholeChunk(label_B=label_B, dense_NB=dense_NB, id_FB=id_FB)
