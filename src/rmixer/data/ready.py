"""Columns whose ids are ready: numbered from 0 below a declared size, kept as they are.

0 is the missing value and the padding, as everywhere here (`rmixer.data.info.MISSING_ID`). Nothing
is counted and nothing is renumbered, so the sizes of the tables are known before a row is read, and
a model trained here has the rows of its tables where the program that made the ids expects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.encode import Tables
from rmixer.data.info import MISSING_ID, DataInfo, FieldInfo, SequenceInfo, TableInfo
from rmixer.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from rmixer.data.schema import DataSpec, Schema, Transform

#: The key under which `ReadyVocabulary.arrays` keeps its size.
KEY = "ready"


def ready_rows(schema: Schema, transform: Transform) -> Mapping[str, int]:
    """Tables whose ids are kept, and their rows; none where rare ids are to be left out."""
    counted = transform.min_count > 1 or transform.max_ids > 0
    return {} if counted else schema.table_rows


def known_info(schema: Schema, spec: DataSpec, rows: int) -> DataInfo | None:
    """The shape of data whose ids are all ready; None if it takes a look at the rows to know it.

    How many rows are held out is exact for ``tail``, and what is expected for ``hash``.
    """
    tables = Tables.of(schema)
    sizes = ready_rows(schema, spec.transform)
    if spec.transform.bins or any(name not in sizes for name in tables.names):
        return None
    valid = int(rows * spec.valid.fraction)
    return DataInfo(
        dense=schema.dense,
        fields=tuple(FieldInfo(name, i) for i, name in enumerate(schema.sparse)),
        sequences=tuple(
            SequenceInfo(s.name, table, s.max_length, s.shares)
            for s, table in zip(schema.sequences, tables.sequences, strict=True)
        ),
        tables=tuple(TableInfo(name, sizes[name]) for name in tables.names),
        rows=rows,
        train_rows=rows - valid,
        valid_rows=valid,
    )


class ReadyCoder:
    """In the place of `rmixer.data.vocabulary.Coder`: the code of an id is the id."""

    def __len__(self) -> int:
        return 0  # nothing is counted

    def encode(self, values: pl.Series) -> NDArray[np.int32]:
        """The ids; a null is the missing one."""
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        return values.fill_null(MISSING_ID).cast(pl.Int32).to_numpy()


class ReadyVocabulary(Vocabulary):
    """Every id from 0 to below ``rows`` is its own local id.

    Args:
        rows: of the embedding table.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def encode(self, values: pl.Series) -> NDArray[np.int32]:
        """The ids. Formats refuse one outside the table, with its place in the file."""
        import polars as pl  # noqa: PLC0415

        ids = values.cast(pl.Int64).fill_null(MISSING_ID).to_numpy()
        return np.where((ids >= 0) & (ids < self.rows), ids, MISSING_ID).astype(np.int32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See `Vocabulary.arrays`."""
        return {KEY: np.array([self.rows], np.int64)}
