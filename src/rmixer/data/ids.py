"""Codes of ids below 2**32 by a compiled hash table: the `Coder` of what a compiled scan reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.format import NO_ID

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.compiled import Kernels
    from rmixer.data.vocabulary import Coder

_FIRST_BITS = 10


class IdCoder:
    """In the place of a `rmixer.data.vocabulary.Coder` that has seen integers below 2**32, or none.

    8 bytes for a place in the table, of which at most half are taken, and 4 for each id.
    """

    integers = True

    def __init__(self, kernels: Kernels, before: Coder) -> None:
        self._kernels = kernels
        self._bits = _FIRST_BITS
        self._slots = np.zeros(1 << self._bits, np.uint64)
        self._ids: list[NDArray[np.uint32]] = []
        self._size = 0
        self._told = 0
        if len(before) > 1:
            self._add(np.asarray(before.values(), np.uint32))
        before.news()
        self._told = len(self._ids)

    def __len__(self) -> int:
        return self._size + 1

    def encode(self, values: pl.Series) -> NDArray[np.int32]:
        """The code of each value; new ones are added."""
        return self.encode_ids(values.cast(int).fill_null(NO_ID).to_numpy())

    def encode_ids(self, id_B: NDArray[np.int64]) -> NDArray[np.int32]:
        """The code of each id; new ones are added."""
        code_B = np.empty(len(id_B), np.int32)
        fresh = np.empty(len(id_B), np.uint32)
        at = 0
        while True:
            at, size, new = self._kernels.encode(
                id_B, at, self._slots, 64 - self._bits, self._size, self._room, code_B, fresh
            )
            self._size = size
            if new:
                self._ids.append(fresh[:new].copy())
            if at == len(id_B):
                return code_B
            self._grow(self._size + 1)

    def values(self) -> NDArray[np.int64]:
        """The ids in the order of their codes, from code 1."""
        return np.concatenate([np.empty(0, np.uint32), *self._ids]).astype(np.int64)

    def news(self) -> dict[str, NDArray[Any]]:
        """See `Coder.news`."""
        first, self._told = self._told, len(self._ids)
        return {"integers": np.concatenate([np.empty(0, np.uint32), *self._ids[first:]])}

    def learn(self, news: Mapping[str, NDArray[Any]]) -> None:
        """See `Coder.learn`."""
        self._add(news["integers"].astype(np.uint32))
        self._told = len(self._ids)

    @property
    def _room(self) -> int:
        return len(self._slots) // 2

    def _add(self, ids: NDArray[np.uint32]) -> None:
        first = self._size + 1
        self._ids.append(ids)
        self._size += len(ids)
        if self._size > self._room:
            self._grow(self._size)
        else:
            self._kernels.insert(ids, first, self._slots, 64 - self._bits)

    def _grow(self, size: int) -> None:
        """A table for at least so many ids, with all that there are."""
        while size > 1 << (self._bits - 1):
            self._bits += 1
        self._slots = np.zeros(1 << self._bits, np.uint64)
        first = 1
        for ids in self._ids:
            self._kernels.insert(ids, first, self._slots, 64 - self._bits)
            first += len(ids)
