"""What can be wrong with the ``data`` part of a jobs file, key by key. Standard library only.

Every check returns its problems, ``(key, message)`` with the key dotted and relative to ``data``;
an empty list if all is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rmixer.errors import nearest, unknown_name

Problem = tuple[str, str]

DENSE_TRANSFORMS = ("standard", "log1p", "none")
SPLITS = ("hash", "tail")


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


def sequence_items(value: Any) -> list[tuple[str, dict[str, Any]]]:
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


def as_list(value: Any) -> list[Any]:
    """A list of what may be one value or several."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _check_sequences(schema: Mapping[str, Any]) -> list[Problem]:
    try:
        items = sequence_items(schema.get("sequence"))
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
    columns = schema.get("columns")
    sequences = [name for name, _ in sequence_items(schema.get("sequence"))]
    roles: dict[str, list[str]] = {
        "label": [schema["label"]],
        "dense": list(schema.get("dense") or ()),
        "sparse": list(schema.get("sparse") or ()),
        "sequence": sequences,
    }
    problems: list[Problem] = []
    if sum(map(len, roles.values())) == 1:
        problems.append(("schema", "has no feature; name dense, sparse or sequence columns"))
    role_of: dict[str, str] = {}
    for role, names in roles.items():
        for name in names:
            if name in role_of:
                problems.append((f"schema.{role}", f"column {name!r} is already {role_of[name]}"))
            role_of[name] = role
            if columns is not None and name not in columns:
                problems.append((f"schema.{role}", unknown_name("column", name, columns)))
    if columns is not None and len(set(columns)) != len(columns):
        problems.append(("schema.columns", "a name stands twice"))
    return problems
