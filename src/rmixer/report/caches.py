"""``rmixer cache ls`` and ``rmixer cache rm`` as text and as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmixer.report.text import clean, columns, rfc3339
from rmixer.resources import format_bytes

SCHEMA_VERSION = 1


#: A data set of the cache: see ``rmixer.data.stock``.
Entry = Mapping[str, Any]


def document_of(cache_dir: Path, entries: Sequence[Entry]) -> dict[str, Any]:
    """What ``cache ls --json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cache": str(cache_dir),
        "bytes": sum(entry["bytes"] for entry in entries),
        "data": [_row(entry) for entry in entries],
    }


def removal_of(
    cache_dir: Path, removed: Sequence[Entry], kept: Sequence[Entry], *, dry_run: bool
) -> dict[str, Any]:
    """What ``cache rm --json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cache": str(cache_dir),
        "dry_run": dry_run,
        "bytes": sum(entry["bytes"] for entry in removed),
        "removed": [entry["key"] for entry in removed],
        "in_use": [entry["key"] for entry in kept],
    }


def render_entries(document: Mapping[str, Any]) -> str:
    """The table of ``cache ls``."""
    head = (f"{document['cache']}: {_sets(len(document['data']))}, {_size(document)}",)
    if not document["data"]:
        return head[0]
    rows = [("KEY", "STATE", "ROWS", "SIZE", "LAST USED", "SOURCE")]
    for one in document["data"]:
        state = f"{one['state']}, in use" if one["in_use"] else one["state"]
        rows.append(
            (
                one["key"],
                state,
                f"{one['rows']:,}" if one["rows"] else "",
                format_bytes(one["bytes"]),
                (one["used_at"] or "").replace("T", " ").partition(".")[0].removesuffix("Z"),
                clean(", ".join(one["sources"])) or "-",
            )
        )
    return "\n".join([*columns(rows, "<<>><<"), *head])


def render_removal(document: Mapping[str, Any]) -> str:
    """What ``cache rm`` says."""
    verb = "would be removed" if document["dry_run"] else "removed"
    lines = [f"{key}: {verb}" for key in document["removed"]]
    lines += [f"{key}: in use, kept" for key in document["in_use"]]
    return "\n".join([*lines, f"{_sets(len(document['removed']))} {verb}, {_size(document)}"])


def _row(entry: Entry) -> dict[str, Any]:
    return {**entry, "used_at": rfc3339(entry["used_at"])}


def _sets(count: int) -> str:
    return f"{count} data set{'s' * (count != 1)}"


def _size(document: Mapping[str, Any]) -> str:
    return format_bytes(document["bytes"])
