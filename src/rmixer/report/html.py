"""The report as one HTML file that needs nothing else: no network, no font, no library."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rmixer.model import CPU, StateName
from rmixer.report import charts, telemetry, timeline
from rmixer.report.document import all_bookings, end_of
from rmixer.report.headline import count_states, figures, headline, is_active
from rmixer.report.history import History
from rmixer.report.lanes import layout
from rmixer.report.ranking import metric_names
from rmixer.report.text import clean, finite, format_metric, format_number, one_line
from rmixer.resources import format_bytes, format_seconds

_COLORS = 8  # as many as the style sheet has; the last one is shared by the rest
_UNIT = re.compile(r"(?<=\d) (?=%|s\b|[KMGT]iB|cores?\b)")
_LOOKS = {
    "failed": "failed attempt",
    "stopped": "stopped attempt",
    "suspended": "suspended: it stood still",
    "running": "still running",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table of jobs: its text, and the number that it is sorted by."""

    text: str
    value: float | None = None
    numeric: bool = True


def render_html(
    document: dict[str, Any],
    history: History,
    samples: Sequence[Mapping[str, Any]],
    *,
    root: Path | None = None,
) -> str:
    """The page of a run.

    Args:
        document: of this history and these samples.
        history: the fold of the run's events, for the drawings.
        samples: the telemetry in the order of time.
        root: the run's folder, in which the page will lie; links to logs are relative to it.
    """
    environment = Environment(
        loader=PackageLoader("rmixer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["one_line"] = one_line
    environment.filters["bound"] = _bound
    environment.filters["clean"] = clean
    environment.filters["seconds"] = format_seconds
    environment.filters["bytes"] = format_bytes
    columns, rows = _table(document)
    page: str = environment.get_template("report.html").render(
        document=document,
        headline=headline(document),
        figures=figures(document),
        counts=_counts(document),
        columns=columns,
        rows=rows,
        failed=[job | {"log_link": _link(job["log"], root)} for job in _failed(document)],
        geometry={"width": charts.WIDTH, "left": charts.LEFT, "right": charts.RIGHT},
        **_drawings(document, history, samples),
    )
    return page


def _bound(text: str) -> str:
    """The text with each number and its unit kept on one line."""
    return _UNIT.sub("\u00a0", text)


def _drawings(
    document: dict[str, Any], history: History, samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    end = max(document["makespan_seconds"], end_of(history, samples))
    scale = charts.Scale(end)
    bookings = all_bookings(history, end)
    marks = [moment.at for moment in history.resumed]
    colors, legend = _families(history)
    drawn = timeline.draw(layout(history, end), colors, scale, marks)
    looks = {bar.look for bar in drawn.bars}
    cores = charts.usage(
        telemetry.booked_curve(bookings, "cpu"),
        telemetry.node_curve(samples, "cpu"),
        float(len(history.node.cores)),
        scale,
        marks,
        in_bytes=False,
    )
    memory = charts.usage(
        telemetry.booked_curve(bookings, "memory"),
        telemetry.node_curve(samples, "rss_bytes"),
        float(history.node.memory),
        scale,
        marks,
        in_bytes=True,
    )
    return {
        "timeline": drawn,
        "legend": legend,
        "looks": {look: text for look, text in _LOOKS.items() if look in looks},
        "usages": [("Cores", "cores", cores), ("Host memory", "memory", memory)],
    }


def _families(history: History) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """The colour per family, and the legend: (colour, what it stands for)."""
    names: dict[str, list[str]] = {}
    for job in history.jobs.values():
        name = one_line(job.spec.name)
        names.setdefault(timeline.family_of(job.spec.family, name), []).append(name)
    families = [family for family, members in names.items() for _ in members]
    colors = timeline.color_numbers(families, _COLORS)
    legend: dict[int, str] = {}
    for family, color in colors.items():
        shared = list(colors.values()).count(color) > 1
        legend[color] = "others" if shared else _family_label(names[family])
    return colors, sorted(legend.items())


def _family_label(names: list[str]) -> str:
    """What the members' names have in common, and how many they are."""
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    stem = "".join(letters[0] for letters in same).rstrip("-_.=:/ 0123456789")
    return f"{stem or names[0] + ' …'} ({len(names)})"


def _counts(document: dict[str, Any]) -> list[tuple[str, int]]:
    counts = count_states(document)
    return [(state, counts[state]) for state in StateName if counts[state]]


def _failed(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs that have something to tell: ended without success, or failed and waiting."""
    return [
        job
        for job in document["jobs"]
        if job["state"] != StateName.SUCCEEDED
        and not is_active(job)
        and (job["error"] or job["ended_at"])
    ]


def _link(log: str | None, root: Path | None) -> str | None:
    if log is None:
        return None
    return Path(log).relative_to(root).as_posix() if root is not None else log


def _table(document: dict[str, Any]) -> tuple[list[tuple[str, bool]], list[list[Cell]]]:
    """The columns (title, whether numbers) and the cells of the table of jobs."""
    metrics = metric_names(document)
    rows = [_cells(job, metrics) for job in document["jobs"]]
    titles = [
        "job", "state", "reason", *metrics, "seconds", "samples/s", "slowdown", "tries",
        "memory peak", "reserved", "GPU memory peak", "GPU memory reserved", "device", "cores",
        "threads", "time of training",
    ]  # fmt: skip
    texts = {"job", "state", "reason", "device", "cores", "time of training"}
    used = [  # columns in which no job has anything are left out, but for the first two
        index
        for index, title in enumerate(titles)
        if title in {"job", "state"} or any(row[index].text for row in rows)
    ]
    columns = [(one_line(titles[index]), titles[index] not in texts) for index in used]
    return columns, [[row[index] for index in used] for row in rows]


def _cells(job: dict[str, Any], metrics: list[str]) -> list[Cell]:
    memory, on_gpu = job["memory"], job["device_memory"] or {}
    cores = ", ".join(map(str, job["cores"]))
    return [
        Cell(one_line(job["name"]), numeric=False),
        Cell(job["state"], numeric=False),
        Cell(one_line(job["reason"]), numeric=False),
        *(_number(job["metrics"].get(name), format_metric) for name in metrics),
        _number(job["seconds"], "{:.1f}".format),
        _number(job["samples_per_second"], format_number),
        _number(job["slowdown"], "{:.2f}".format),
        Cell(f"{job['tries']}/{job['max_tries']}" if job["attempts"] else "", job["tries"]),
        _number(memory["measured_peak_bytes"], format_bytes),
        _number(memory["reserved_bytes"], format_bytes),
        _number(on_gpu.get("measured_peak_bytes"), format_bytes),
        _number(on_gpu.get("reserved_bytes"), format_bytes),
        Cell(_device(job["device"]), numeric=False),
        Cell(cores, numeric=False),
        _number(job["threads"], str),
        Cell(_spent(job["phase_seconds"]), numeric=False),
    ]


def _spent(seconds: Mapping[str, float] | None) -> str:
    """Where the time of the training went, by phase."""
    total = sum((seconds or {}).values())
    if not seconds or not total:
        return ""
    return ", ".join(f"{name} {100 * spent / total:.0f} %" for name, spent in seconds.items())


def _number(value: Any, show: Callable[[Any], str]) -> Cell:
    return Cell(show(value) if value is not None else "", finite(value))


def _device(device: str | None) -> str:
    return "CPU" if device == CPU else one_line(device or "")
