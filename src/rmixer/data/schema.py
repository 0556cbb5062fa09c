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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rmixer.data import FORMATS
from rmixer.errors import UsageError, nearest, unknown_name

Problem = tuple[str, str]

DENSE_TRANSFORMS = ("standard", "log1p", "none")
SPLITS = ("hash", "tail")
COMMON_KEYS = ("format", "transform", "valid")


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
    """The columns of a table of text, by their roles. See the module's example."""

    label: str
    positive: tuple[str, ...] | None = None
    dense: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    sequences: tuple[SequenceColumn, ...] = ()
    columns: tuple[str, ...] | None = None
    delimiter: str | None = None
    missing: tuple[str, ...] = ()

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
    name = data.get("format")
    if name is None:
        return [("format", f"is missing; one of {', '.join(sorted(FORMATS))}")]
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
        positive=None if positive is None else tuple(map(str, _as_list(positive))),
        dense=tuple(schema.get("dense") or ()),
        sparse=tuple(schema.get("sparse") or ()),
        sequences=tuple(
            SequenceColumn(name=name, **options)
            for name, options in _sequence_items(schema.get("sequence"))
        ),
        columns=None if columns is None else tuple(columns),
        delimiter=schema.get("delimiter"),
        missing=tuple(map(str, _as_list(schema.get("missing") or ()))),
    )


def check_schema(schema: Any) -> list[Problem]:
    """The problems of a ``schema`` mapping, keys relative to ``data``."""
    if not isinstance(schema, Mapping):
        return [("schema", "is missing or no mapping; write at least label, and dense or sparse")]
    known = ("label", "positive", "dense", "sparse", "sequence", "columns", "delimiter", "missing")
    problems = unknown_keys(schema, known, "schema.")
    if not isinstance(schema.get("label"), str):
        problems.append(("schema.label", "is missing; name the column that holds the label"))
    for key in ("dense", "sparse", "columns"):
        if schema.get(key) is not None and not _is_names(schema[key]):
            problems.append((f"schema.{key}", f"{schema[key]!r} is no list of column names"))
    delimiter = schema.get("delimiter")
    if delimiter is not None and not (isinstance(delimiter, str) and len(delimiter) == 1):
        problems.append(("schema.delimiter", f"{delimiter!r} is not one character"))
    problems += _check_sequences(schema)
    return problems or _check_roles(schema)


def check_transform(transform: Any) -> list[Problem]:
    """The problems of a ``transform`` mapping."""
    if transform is None:
        return []
    if not isinstance(transform, Mapping):
        return [("transform", f"{transform!r} is no mapping; write for example {{bins: 32}}")]
    problems = unknown_keys(transform, ("dense", "bins", "min_count", "max_ids"), "transform.")
    dense = transform.get("dense", "standard")
    if dense not in DENSE_TRANSFORMS:
        problems.append(
            ("transform.dense", unknown_name("transform", str(dense), DENSE_TRANSFORMS))
        )
    for key, least in (("bins", 0), ("min_count", 1), ("max_ids", 0)):
        problems += check_int(transform, key, least, "transform.")
    return problems


def check_valid(valid: Any) -> list[Problem]:
    """The problems of a ``valid`` mapping."""
    if valid is None:
        return []
    if not isinstance(valid, Mapping):
        return [("valid", f"{valid!r} is no mapping; write for example {{fraction: 0.1}}")]
    problems = unknown_keys(valid, ("fraction", "by", "seed"), "valid.")
    fraction = valid.get("fraction", 0.1)
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        problems.append(("valid.fraction", f"{fraction!r} is not a share of at least 0, below 1"))
    by = valid.get("by", "hash")
    if by not in SPLITS:
        problems.append(("valid.by", unknown_name("split", str(by), SPLITS)))
    return problems + check_int(valid, "seed", 0, "valid.")


def check_path(data: Mapping[str, Any]) -> list[Problem]:
    """The problem of a ``path`` that is missing."""
    if isinstance(data.get("path"), str) and data["path"]:
        return []
    return [("path", "is missing; name the data file")]


def check_int(mapping: Mapping[str, Any], key: str, least: int, prefix: str = "") -> list[Problem]:
    """The problem of a value that is given and is no whole number of at least ``least``."""
    value = mapping.get(key, least)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        return [(prefix + key, f"{value!r} is not a whole number of at least {least}")]
    return []


def unknown_keys(mapping: Mapping[str, Any], known: Iterable[str], prefix: str) -> list[Problem]:
    """One problem for each key that is not known, with the nearest that is."""
    names = sorted(known)
    problems = []
    for key in mapping:
        if key not in names:
            close = nearest(str(key), names)
            hint = f"; did you mean {close!r}?" if close else ""
            problems.append((f"{prefix}{key}", f"unknown key{hint} (known: {', '.join(names)})"))
    return problems


def _load(name: str) -> Any:
    from rmixer.data.format import load_format  # noqa: PLC0415 - it imports this module

    return load_format(name)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _sequence_items(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, options) of each sequence; a mapping, a list of names, or a list of mappings."""
    if not value:
        return []
    if isinstance(value, Mapping):
        return [(name, dict(options or {})) for name, options in value.items()]
    items: list[tuple[str, dict[str, Any]]] = []
    for entry in value:
        if isinstance(entry, str):
            items.append((entry, {}))
        else:
            items.append((entry["name"], {k: v for k, v in entry.items() if k != "name"}))
    return items


def _check_sequences(schema: Mapping[str, Any]) -> list[Problem]:
    try:
        items = _sequence_items(schema.get("sequence"))
    except (TypeError, KeyError, ValueError, AttributeError):
        example = "{hist: {separator: ' ', shares: item}}"
        return [("schema.sequence", f"write a mapping of columns, for example {example}")]
    problems: list[Problem] = []
    for name, options in items:
        prefix = f"schema.sequence.{name}."
        problems += unknown_keys(options, ("separator", "shares", "max_length"), prefix)
        separator = options.get("separator", " ")
        if not isinstance(separator, str) or not separator:
            problems.append(
                (f"{prefix}separator", f"{separator!r} is no text of at least one letter")
            )
        shares, sparse = options.get("shares"), list(schema.get("sparse") or ())
        if shares is not None and shares not in sparse:
            problems.append((f"{prefix}shares", unknown_name("sparse column", str(shares), sparse)))
        problems += check_int(options, "max_length", 1, prefix)
    return problems


def _check_roles(schema: Mapping[str, Any]) -> list[Problem]:
    """Each column has one role, and exists where the columns are declared."""
    parsed = parse_schema(schema)
    problems: list[Problem] = []
    if not (parsed.dense or parsed.sparse or parsed.sequences):
        problems.append(("schema", "has no feature; name dense, sparse or sequence columns"))
    role_of: dict[str, str] = {}
    roles: tuple[tuple[str, Iterable[str]], ...] = (
        ("label", (parsed.label,)),
        ("dense", parsed.dense),
        ("sparse", parsed.sparse),
        ("sequence", (s.name for s in parsed.sequences)),
    )
    for role, names in roles:
        for name in names:
            if name in role_of:
                problems.append((f"schema.{role}", f"column {name!r} is already {role_of[name]}"))
            role_of[name] = role
            if parsed.columns is not None and name not in parsed.columns:
                message = unknown_name("column", name, parsed.columns)
                problems.append((f"schema.{role}", message))
    if parsed.columns is not None and len(set(parsed.columns)) != len(parsed.columns):
        problems.append(("schema.columns", "a name stands twice"))
    return problems


Check = Callable[[Mapping[str, Any]], list[Problem]]
