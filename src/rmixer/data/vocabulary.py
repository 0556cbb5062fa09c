"""Vocabularies: raw ids or words to local ids, built on the training rows.

Local id 0 is a missing value, 1 is a value that the vocabulary does not have; from 2 on the values
follow by how often the training rows have them, the most frequent first. Ties go by value (text:
the shorter first), so the ids depend neither on the order of the rows nor on how they were cut.
A value that only held-out rows have is unknown: a model cannot have learned it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.info import MISSING_ID, RESERVED_IDS, UNKNOWN_ID

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.ids import IdCoder


class Coder:
    """First pass: gives every value a provisional code.

    Code 0 is a missing value. Integers are kept in sorted arrays (12 bytes each), text in a dict.

    Attributes:
        integers: whether the values are integers; None before the first ones.
    """

    def __init__(self) -> None:
        self._told = 1
        self._codes: dict[str, int] = {}
        self._keys = np.empty(0, np.int64)
        self._key_codes = np.empty(0, np.int32)
        self._size = 1
        self.integers: bool | None = None

    def __len__(self) -> int:
        return self._size

    def encode(self, values: pl.Series) -> NDArray[np.int32]:
        """The provisional code of each value; new ones are added."""
        import polars as pl  # noqa: PLC0415

        if self.integers is None:
            self.integers = values.dtype.is_integer()
        if self.integers:
            # A 0 in the place of the missing may add a code that no row has, which does no harm.
            known, inverse = np.unique(values.fill_null(0).to_numpy(), return_inverse=True)
            codes = self._add_integers(known.astype(np.int64))[inverse]
            codes[values.is_null().to_numpy()] = 0
            return codes
        known_text = values.drop_nulls().unique(maintain_order=True)
        if not len(known_text):
            return np.zeros(len(values), np.int32)
        new = pl.Series(self._add_text(known_text))
        found = values.replace_strict(known_text, new, default=0, return_dtype=pl.Int32)
        return found.fill_null(0).to_numpy()

    def values(self) -> NDArray[np.int64] | list[str]:
        """The values in the order of their provisional codes, from code 1."""
        if self.integers:
            values = np.empty(len(self._keys), np.int64)
            values[self._key_codes - 1] = self._keys
            return values
        return list(self._codes)

    def news(self) -> dict[str, NDArray[Any]]:
        """The values that are new since the last call, in the order of their codes, as arrays."""
        first, self._told = self._told, self._size
        if self.integers:
            new = np.nonzero(self._key_codes >= first)[0]
            return {"integers": self._keys[new[np.argsort(self._key_codes[new])]]}
        return _text_arrays(list(islice(self._codes, first - 1, None)))

    def learn(self, news: Mapping[str, NDArray[Any]]) -> None:
        """Give codes to what `news` told, as if the values had been seen."""
        if "integers" in news:
            self.integers = True
            self._add_integers(news["integers"].astype(np.int64))
        else:
            self.integers = False
            for value in _texts(news):
                self._codes.setdefault(value, len(self._codes) + 1)
            self._size = len(self._codes) + 1
        self._told = self._size

    def _add_text(self, known: pl.Series) -> NDArray[np.int32]:
        codes = self._codes
        found = [codes.setdefault(value, len(codes) + 1) for value in known.to_list()]
        self._size = len(codes) + 1
        return np.array(found, np.int32)

    def _add_integers(self, known: NDArray[np.int64]) -> NDArray[np.int32]:
        at = np.searchsorted(self._keys, known)
        codes = np.zeros(len(known), np.int32)
        inside = at < len(self._keys)
        seen = inside.copy()
        seen[inside] = self._keys[at[inside]] == known[inside]
        codes[seen] = self._key_codes[at[seen]]
        new = known[~seen]
        codes[~seen] = np.arange(self._size, self._size + len(new), dtype=np.int32)
        order = np.argsort(new)
        places = at[~seen][order]
        self._keys = np.insert(self._keys, places, new[order])
        self._key_codes = np.insert(self._key_codes, places, codes[~seen][order])
        self._size += len(new)
        return codes


class Vocabulary:
    """Values to local ids, fixed.

    Args:
        values: integers or text, in the order of their local ids from 2.
    """

    def __init__(self, values: NDArray[np.int64] | list[str]) -> None:
        self.values = values

    def __len__(self) -> int:
        """Rows of the embedding table, the two reserved ids included."""
        return len(self.values) + RESERVED_IDS

    @classmethod
    def build(
        cls, coder: Coder | IdCoder, counts: NDArray[np.int64], *, min_count: int, max_ids: int
    ) -> tuple[Vocabulary, NDArray[np.int32]]:
        """The vocabulary, and the local id of every provisional code.

        Args:
            coder: after the first pass.
            counts: how often the training rows have each code (index 0: missing).
            min_count: rarer values are unknown.
            max_ids: if above 0, only so many values are kept.
        """
        values = coder.values()
        kept = np.nonzero(counts[1:] >= max(1, min_count))[0] + 1
        kept = kept[_order(values, counts, kept)]
        if max_ids:
            kept = kept[:max_ids]
        local = np.full(len(coder), UNKNOWN_ID, np.int32)
        local[0] = MISSING_ID
        local[kept] = np.arange(len(kept), dtype=np.int32) + RESERVED_IDS
        if isinstance(values, list):
            return cls([values[code - 1] for code in kept.tolist()]), local
        return cls(values[kept - 1]), local

    def encode(self, values: pl.Series) -> NDArray[np.int32]:
        """The local id of each value."""
        import polars as pl  # noqa: PLC0415

        is_text = isinstance(self.values, list)
        known = pl.Series(self.values, dtype=pl.String if is_text else pl.Int64)
        ids = pl.Series(np.arange(len(known), dtype=np.int32) + RESERVED_IDS)
        if not len(known):
            found = pl.repeat(UNKNOWN_ID, len(values), dtype=pl.Int32, eager=True)
        else:
            cast = values.cast(known.dtype, strict=False)
            found = cast.replace_strict(known, ids, default=UNKNOWN_ID, return_dtype=pl.Int32)
        missing = values.is_null().to_numpy()
        return np.where(missing, np.int32(MISSING_ID), found.to_numpy())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The vocabulary as arrays, for a ``.npz`` file; `from_arrays` reads them."""
        if not isinstance(self.values, list):
            return {"integers": self.values}
        return _text_arrays(self.values)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Vocabulary:
        """The inverse of `arrays`."""
        from rmixer.data import ready  # noqa: PLC0415 - it imports this module

        if ready.KEY in arrays:
            return ready.ReadyVocabulary(int(arrays[ready.KEY][0]))
        if "integers" in arrays:
            return cls(arrays["integers"])
        return cls(_texts(arrays))


def _text_arrays(values: list[str]) -> dict[str, NDArray[Any]]:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([len(value) for value in encoded], dtype=np.int64)
    return {"text": np.frombuffer(b"".join(encoded), np.uint8), "ends": ends}


def _texts(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    text, ends = arrays["text"].tobytes(), arrays["ends"].tolist()
    starts = [0, *ends][:-1]
    return [text[a:b].decode() for a, b in zip(starts, ends, strict=True)]


def _order(
    values: NDArray[np.int64] | list[str], counts: NDArray[np.int64], codes: NDArray[np.int64]
) -> NDArray[np.int64] | list[int]:
    """Positions in ``codes``, the most frequent first, then by value."""
    if not isinstance(values, list):
        return np.lexsort((values[codes - 1], -counts[codes]))
    texts = [values[code - 1] for code in codes.tolist()]
    pairs = zip(texts, counts[codes].tolist(), strict=True)
    keys = [(-count, len(text), text) for text, count in pairs]
    return sorted(range(len(keys)), key=keys.__getitem__)
