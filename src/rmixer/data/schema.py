"""What a jobs file may say under ``data``: the columns, their transform, the held-out part.

    data:
      format: csv
      path: behaviour.txt
      schema:
        columns: [hist_items, hist_cates, item, cate, label]   # absent: the file has a header
        delimiter: ";"                                         # absent: found in the first line
        missing: ["?"]                                         # read as missing, beside the empty
        label: label
        positive: "1"                # value or values that mean 1; absent: the label is 0 or 1
        dense: []                    # numbers
        sparse: [item, cate]         # ids or words, one a row
        sequence:                    # lists of ids
          hist_items: {separator: " ", shares: item, max_length: 50}
          hist_cates: {separator: " ", shares: cate}
      transform: {dense: standard, bins: 32, min_count: 2, max_ids: 100000}
      valid: {fraction: 0.1, by: hash, seed: 0}

`validate` checks such a mapping without reading anything; this module imports no torch, polars or
numpy itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rmixer.data import FORMATS
from rmixer.data.checks import (
    Problem,
    as_list,
    check_path,
    check_transform,
    check_valid,
    sequence_items,
    unknown_keys,
)
from rmixer.errors import UsageError, unknown_name

COMMON_KEYS = ("format", "transform", "valid")
#: The format of data that say themselves what they are (`rmixer.data.detect`).
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceColumn:
    """A column that holds a list of ids in each row.

    Attributes:
        name: the column.
        separator: what stands between two ids.
        shares: the sparse column whose vocabulary, and so whose embedding, it uses; None: its own.
        max_length: the last so many ids of a row are kept.
    """

    name: str
    separator: str = " "
    shares: str | None = None
    max_length: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The columns of a table of text, by their roles. See the module's example.

    Attributes:
        table_rows: of columns whose ids are ready (`rmixer.data.ready`), the rows of their tables;
            the other columns get a vocabulary of what the training rows have.
    """

    label: str
    positive: tuple[str, ...] | None = None
    dense: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    sequences: tuple[SequenceColumn, ...] = ()
    columns: tuple[str, ...] | None = None
    delimiter: str | None = None
    missing: tuple[str, ...] = ()
    table_rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def used(self) -> tuple[str, ...]:
        """Every column that has a role, the label first."""
        return (self.label, *self.dense, *self.sparse, *(s.name for s in self.sequences))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """How raw columns become what a model sees.

    Attributes:
        dense: ``standard`` (mean 0 and deviation 1 on the training rows), ``log1p`` (of the value
            or 0, whichever is larger) or ``none``. A missing number becomes 0 after the transform.
        bins: if above 0, every dense column also becomes a sparse one of that many quantile bins.
        min_count: ids seen in fewer training rows than this share the id of the unknown.
        max_ids: if above 0, only so many ids of a column are kept, the most frequent first.
    """

    dense: str = "standard"
    bins: int = 0
    min_count: int = 1
    max_ids: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Valid:
    """The held-out part: a fixed share of the rows, chosen by the row's number and a seed.

    Attributes:
        fraction: share of the rows, in [0, 1).
        by: ``hash`` of the row's number, or the ``tail`` of the file.
        seed: of the hash.
    """

    fraction: float = 0.1
    by: str = "hash"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """A checked ``data`` mapping."""

    format: str
    transform: Transform
    valid: Valid
    options: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """What the parsed result depends on, beside the content of the files: no path."""
        options = {key: value for key, value in self.options.items() if key != "path"}
        return {
            "format": self.format,
            "transform": asdict(self.transform),
            "valid": asdict(self.valid),
            "options": options,
        }


def validate(data: Mapping[str, Any]) -> list[Problem]:
    """Check a ``data`` mapping without reading any file.

    Returns:
        One ``(key, message)`` per problem, the key dotted and relative to ``data``
        (``schema.sequence.hist.separator``); empty if all is well.
    """
    name = data.get("format", AUTO)
    if name in (None, AUTO):
        return _validate_auto(data)
    if not isinstance(name, str) or (name not in FORMATS and ":" not in name):
        return [("format", unknown_name("data format", str(name), FORMATS))]
    try:
        format_class = _load(name)
    except UsageError as error:
        return [("format", str(error))]
    problems = unknown_keys(data, (*COMMON_KEYS, *format_class.options), "")
    problems += check_transform(data.get("transform"))
    problems += check_valid(data.get("valid"))
    problems += format_class.check(data)
    return problems


def parse(data: Mapping[str, Any]) -> DataSpec:
    """The checked form of a ``data`` mapping.

    Raises:
        UsageError: naming the key, the value, and what would be right.
    """
    problems = validate(data)
    if problems:
        raise UsageError("; ".join(f"data.{key}: {message}" for key, message in problems))
    if data.get("format") in (None, AUTO):
        options = {"data": dict(data)}  # to be parsed again, with the format that is found
        return DataSpec(format=AUTO, transform=Transform(), valid=Valid(), options=options)
    format_class = _load(data["format"])
    transform = {"dense": format_class.default_dense, **(data.get("transform") or {})}
    options = {key: data[key] for key in format_class.options if data.get(key) is not None}
    return DataSpec(
        format=data["format"],
        transform=Transform(**transform),
        valid=Valid(**(data.get("valid") or {})),
        options=options,
    )


def parse_schema(schema: Mapping[str, Any]) -> Schema:
    """The checked form of a ``schema`` mapping; call `check_schema` first."""
    positive = schema.get("positive")
    columns = schema.get("columns")
    return Schema(
        label=schema["label"],
        positive=None if positive is None else tuple(map(str, as_list(positive))),
        dense=tuple(schema.get("dense") or ()),
        sparse=tuple(schema.get("sparse") or ()),
        sequences=tuple(
            SequenceColumn(name=name, **options)
            for name, options in sequence_items(schema.get("sequence"))
        ),
        columns=None if columns is None else tuple(columns),
        delimiter=schema.get("delimiter"),
        missing=tuple(map(str, as_list(schema.get("missing") or ()))),
    )


def takes_folder(data: Mapping[str, Any]) -> bool:
    """Whether ``path`` may name a folder."""
    name = data.get("format")
    if name in (None, AUTO):
        return True
    try:
        return bool(getattr(_load(str(name)), "takes_folder", False))
    except UsageError:
        return False


def _validate_auto(data: Mapping[str, Any]) -> list[Problem]:
    """Check what can be checked before the format is known."""
    if "path" not in data:
        return [("format", f"is missing; one of {', '.join(sorted(FORMATS))}")]
    options = {key for name in FORMATS for key in _load(name).options}
    problems = unknown_keys(data, (*COMMON_KEYS, *options), "")
    problems += check_transform(data.get("transform")) + check_valid(data.get("valid"))
    return problems + check_path(data)


def _load(name: str) -> Any:
    from rmixer.data.format import load_format  # noqa: PLC0415 - it imports this module

    return load_format(name)
