"""``report.json`` and ``report.html`` of a run's folder, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from rmixer.errors import StorageError
from rmixer.log import read_events
from rmixer.paths import RunPaths
from rmixer.report import telemetry
from rmixer.report.document import Predictions, document_of
from rmixer.report.history import fold
from rmixer.report.html import render_html
from rmixer.report.predict import predict


def write_report(paths: RunPaths, *, predictions: Predictions | None = None) -> dict[str, Any]:
    """Read the run's events and samples, write both reports, and return the document.

    Without `predictions` they are made from the events.

    Raises:
        StorageError: there is no run there, or the reports cannot be written.
    """
    events = list(read_events(paths.events))
    history = fold(events)
    predictions = predictions or predict(events)
    samples = telemetry.usable(telemetry.read_samples(paths.samples))
    document = document_of(history, samples, predictions=predictions, root=paths.root)
    page = render_html(document, history, samples, root=paths.root)
    _write(paths.report_json, json_text(document))
    _write(paths.report_html, page)
    return document


def json_text(document: dict[str, Any]) -> str:
    """The document as JSON text, as it is written and printed."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    """Write beside the path, then rename: a reader sees the old file or the new one."""
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error
