"""``rmixer clean`` as text and as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmixer.report.text import columns, rfc3339
from rmixer.resources import format_bytes

SCHEMA_VERSION = 1


def document_of(
    runs_dir: Path,
    removed: Sequence[Mapping[str, Any]],
    kept: Sequence[Mapping[str, Any]],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """What ``clean --json`` prints; ``kept`` has the runs that were meant, but are worked on."""
    return {
        "schema_version": SCHEMA_VERSION,
        "runs_dir": str(runs_dir),
        "dry_run": dry_run,
        "bytes": sum(run["bytes"] for run in removed),
        "removed": [_row(run) for run in removed],
        "kept": [_row(run) for run in kept],
    }


def render(document: Mapping[str, Any]) -> str:
    """What ``clean`` says."""
    verb = "would be removed" if document["dry_run"] else "removed"
    rows = [
        (run["name"], run["doing"], f"{run['jobs']} jobs", format_bytes(run["bytes"]), what)
        for runs, what in ((document["removed"], verb), (document["kept"], "kept: it is running"))
        for run in runs
    ]
    count = len(document["removed"])
    total = f"{count} run{'s' * (count != 1)} {verb}, {format_bytes(document['bytes'])}"
    return "\n".join([*(columns(rows, "<<>><") if rows else ()), total])


def _row(run: Mapping[str, Any]) -> dict[str, Any]:
    return {**run, "changed_at": rfc3339(run["changed_at"])}
