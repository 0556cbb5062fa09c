"""The shape of a data set, as a model needs it to build itself: names and sizes, no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: Local id of a missing value, and of the padding of a list.
MISSING_ID = 0
#: Local id of a value that the vocabulary does not have.
UNKNOWN_ID = 1
RESERVED_IDS = 2


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One vocabulary, and so one embedding table: its name and its rows, reserved ids included."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """A sparse column: one id per row, of the table with that index."""

    name: str
    table: int


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """A list of up to ``max_length`` ids per row; ``shares`` is the field with the same table."""

    name: str
    table: int
    max_length: int
    shares: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """Names and sizes of the columns, and how many rows there are."""

    dense: tuple[str, ...]
    fields: tuple[FieldInfo, ...]
    sequences: tuple[SequenceInfo, ...]
    tables: tuple[TableInfo, ...]
    rows: int = 0
    train_rows: int = 0
    valid_rows: int = 0

    @property
    def mapped_bytes(self) -> int:
        """Bytes of its columns in the cache, at most: lists may be shorter than they can be."""
        lists = sum(8 + 4 * sequence.max_length for sequence in self.sequences)
        row = 4 * (1 + len(self.dense) + len(self.fields)) + lists + 4  # and its number
        return row * self.rows

    def to_dict(self) -> dict[str, Any]:
        """A mapping for JSON; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> DataInfo:
        """The inverse of `to_dict`."""
        return cls(
            dense=tuple(value["dense"]),
            fields=tuple(FieldInfo(**field) for field in value["fields"]),
            sequences=tuple(SequenceInfo(**sequence) for sequence in value["sequences"]),
            tables=tuple(TableInfo(**table) for table in value["tables"]),
            rows=value["rows"],
            train_rows=value["train_rows"],
            valid_rows=value["valid_rows"],
        )

    @classmethod
    def from_sizes(cls, table_rows: Sequence[int], dense: int = 13) -> DataInfo:
        """The shape of data that is not there: one sparse field per table size."""
        return cls(
            dense=tuple(f"I{i + 1}" for i in range(dense)),
            fields=tuple(FieldInfo(f"C{i + 1}", i) for i in range(len(table_rows))),
            sequences=(),
            tables=tuple(TableInfo(f"C{i + 1}", rows) for i, rows in enumerate(table_rows)),
        )
