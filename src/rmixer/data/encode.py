"""Raw chunks to a model's columns: what is fitted once and kept with a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmixer.data.info import DataInfo, FieldInfo, SequenceInfo, TableInfo
from rmixer.data.transforms import DenseTransform
from rmixer.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rmixer.data.format import Chunk
    from rmixer.data.schema import Schema

_FILE = "vocabulary.npz"


@dataclass(frozen=True, slots=True)
class Tables:
    """Which vocabulary each column uses.

    Attributes:
        names: of the vocabularies: one per sparse column, then one per sequence of its own.
        sequences: the vocabulary of each sequence column.
    """

    names: tuple[str, ...]
    sequences: tuple[int, ...]

    @classmethod
    def of(cls, schema: Schema) -> Tables:
        """The vocabularies of a schema."""
        names = list(schema.sparse)
        sequences = []
        for sequence in schema.sequences:
            if sequence.shares is None:
                sequences.append(len(names))
                names.append(sequence.name)
            else:
                sequences.append(schema.sparse.index(sequence.shares))
        return cls(tuple(names), tuple(sequences))


@dataclass(frozen=True, slots=True)
class Encoder:
    """Fitted vocabularies and dense transform: raw chunks in, columns out."""

    schema: Schema
    vocabularies: tuple[Vocabulary, ...]
    dense: DenseTransform

    def info(self, rows: int = 0, train_rows: int = 0) -> DataInfo:
        """The shape of the encoded data; the fields of bins come after the sparse columns."""
        schema, tables = self.schema, Tables.of(self.schema)
        sizes = [
            TableInfo(*pair) for pair in zip(tables.names, map(len, self.vocabularies), strict=True)
        ]
        fields = [FieldInfo(name, i) for i, name in enumerate(schema.sparse)]
        for i in range(len(self.dense.edges)):
            name = f"{schema.dense[i]}.bin"
            fields.append(FieldInfo(name, len(sizes)))
            sizes.append(TableInfo(name, self.dense.rows(i)))
        sequences = [
            SequenceInfo(s.name, table, s.max_length, s.shares)
            for s, table in zip(schema.sequences, tables.sequences, strict=True)
        ]
        return DataInfo(
            dense=schema.dense,
            fields=tuple(fields),
            sequences=tuple(sequences),
            tables=tuple(sizes),
            rows=rows,
            train_rows=train_rows,
            valid_rows=rows - train_rows,
        )

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """The columns of some raw rows; a value never seen in training gets the unknown id."""
        tables = Tables.of(self.schema)
        columns = [
            self.vocabularies[i].encode(values)[:, None] for i, values in enumerate(chunk.sparse)
        ]
        columns.append(self.dense.bins(chunk.dense_BN))
        sequences = []
        for table, (values, lengths) in zip(tables.sequences, chunk.sequences, strict=True):
            sequences.append((self.vocabularies[table].encode(values), lengths))
        return EncodedChunk(
            dense_BN=self.dense.apply(chunk.dense_BN),
            sparse_BF=np.concatenate(columns, axis=1),
            sequences=tuple(sequences),
        )

    def save(self, folder: Path) -> None:
        """Write ``vocabulary.npz`` into a folder."""
        arrays: dict[str, Any] = {"schema": _to_array(self._describe())}
        for i, vocabulary in enumerate(self.vocabularies):
            for name, array in vocabulary.arrays().items():
                arrays[f"table.{i}.{name}"] = array
        for name, array in self.dense.arrays().items():
            arrays[f"dense.{name}"] = array
        with (folder / _FILE).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, folder: Path, schema: Schema) -> Encoder:
        """Read what `save` wrote, for the same schema."""
        with np.load(folder / _FILE, allow_pickle=False) as arrays:
            described = json.loads(arrays["schema"].tobytes())
            groups: list[dict[str, NDArray[Any]]] = [{} for _ in described["tables"]]
            dense: dict[str, NDArray[Any]] = {}
            for name in arrays.files:
                kind, _, rest = name.partition(".")
                if kind == "table":
                    index, _, part = rest.partition(".")
                    groups[int(index)][part] = arrays[name]
                elif kind == "dense":
                    dense[rest] = arrays[name]
        return cls(
            schema,
            tuple(Vocabulary.from_arrays(group) for group in groups),
            DenseTransform.from_arrays(described["dense"], dense),
        )

    def _describe(self) -> dict[str, Any]:
        return {"tables": list(Tables.of(self.schema).names), "dense": self.dense.kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """Columns of some rows: float32, local ids, and per sequence all ids with the lengths."""

    dense_BN: NDArray[np.float32]
    sparse_BF: NDArray[np.int32]
    sequences: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]]


def _to_array(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
