"""The figure of a comparison: a bar per policy with the limits, and who ran where under each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rmixer.errors import StorageError, UsageError
from rmixer.model import StateName
from rmixer.report.charts import LEFT, RIGHT, WIDTH, Scale
from rmixer.report.text import clip, one_line
from rmixer.report.timeline import color_numbers
from rmixer.resources import format_seconds

FORMS = (".svg", ".html")
_LEFT = 150.0
_ROW, _BAR = 28.0, 20.0
_COLORS = 8
_SLOT = 9.0
_NUMBER = re.compile(r"[-_. ]?\d+$")
#: Beyond so many attempts their rectangles say nothing.
_MOST_SPANS = 3000


@dataclass(frozen=True, slots=True)
class SpanOf:
    """One attempt: which job, where, when, and how it ended."""

    name: str
    device: str
    start: float
    end: float
    state: StateName


def check_form(path: Path) -> None:
    """Refuse a figure that cannot be written.

    Raises:
        UsageError: its name ends in neither ``.svg`` nor ``.html``, or its folder does not exist.
    """
    if path.suffix not in FORMS:
        raise UsageError(f"{path}: a figure is written as {' or '.join(FORMS)}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")


def write_figure(
    path: Path, document: Mapping[str, Any], spans: Mapping[str, Sequence[SpanOf]]
) -> None:
    """Write the figure of a comparison.

    Args:
        path: ending in ``.svg`` or ``.html``.
        document: what was compared.
        spans: per policy its attempts, in the order of their starts.

    Raises:
        UsageError: the path is not right.
        StorageError: it cannot be written.
    """
    check_form(path)
    text = render_figure(document, spans)
    if path.suffix == ".html":
        head = f"<!doctype html><meta charset='utf-8'><title>{_title(document)}</title>"
        text = f"{head}<body style='margin:24px'>{text}</body>"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error


def render_figure(document: Mapping[str, Any], spans: Mapping[str, Sequence[SpanOf]]) -> str:
    """The figure as SVG that needs nothing else."""
    environment = Environment(
        loader=PackageLoader("rmixer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policies = document["policies"]
    scale = Scale(max([one["makespan_seconds"] for one in policies], default=0.0) * 1.02)
    bottom = 36.0 + _ROW * len(policies)
    colors = _colors(spans)
    timelines, below = _timelines(document, spans, colors, scale, bottom + 76.0)
    legend = _legend(colors) if timelines else []
    text: str = environment.get_template("comparison.svg").render(
        title=_title(document),
        width=WIDTH,
        height=below + 18.0 * (-(-len(legend) // 4)) + 8.0,
        left=_LEFT,
        right=RIGHT,
        bottom=bottom,
        ticks=[_tick(tick.position, tick.label) for tick in scale.ticks()],
        bars=[_bar(one, index, scale) for index, one in enumerate(policies)],
        limits=_limits(document, scale),
        timelines=timelines,
        legend=legend,
        legend_y=below,
    )
    return text


def _tick(position: float, label: str) -> dict[str, Any]:
    """A tick of the report's scale on the figure's narrower one."""
    share = (position - LEFT) / (WIDTH - LEFT - RIGHT)
    return {"position": round(_LEFT + share * (WIDTH - _LEFT - RIGHT), 2), "label": label}


def _x(scale: Scale, at: float) -> float:
    return float(_tick(scale.x(at), "")["position"])


def _title(document: Mapping[str, Any]) -> str:
    machine = one_line(document["machine"]["name"])
    return f"{document['jobs']} jobs on {machine}, world {document['world']}: makespan"


def _bar(one: Mapping[str, Any], index: int, scale: Scale) -> dict[str, Any]:
    end = _x(scale, one["makespan_seconds"])
    speed = one["speedup_over_sequential"]
    text = format_seconds(one["makespan_seconds"])
    text += "" if speed is None else f", {speed:.2f}x sequential"
    inside = end > WIDTH - RIGHT - 170.0  # no room behind the bar
    return {
        "policy": clip(one_line(one["policy"]), 22),
        "y": 36.0 + _ROW * index,
        "width": round(end - _LEFT, 2),
        "text": text,
        "inside": inside,
        "label_x": end - 6.0 if inside else end + 6.0,
        "ours": one["policy"].startswith("complementary"),
        "partial": one["failed"] > 0,
    }


def _limits(document: Mapping[str, Any], scale: Scale) -> list[dict[str, Any]]:
    found = []
    for name, words in (("bound", "nothing beats"), ("attainable", "attainable:")):
        seconds = document[f"{name}_seconds"]
        if seconds is not None:
            text = f"{words} {format_seconds(seconds)}"
            found.append({"name": name, "x": _x(scale, seconds), "text": text})
    return found


def _workload(name: str) -> str:
    return _NUMBER.sub("", one_line(name)) or one_line(name)


def _colors(spans: Mapping[str, Sequence[SpanOf]]) -> dict[str, int]:
    names = next(iter(spans.values()), ())
    return color_numbers([_workload(span.name) for span in names], _COLORS)


def _legend(colors: Mapping[str, int]) -> list[tuple[int, str]]:
    found: dict[int, str] = {}
    for name, color in colors.items():
        found[color] = "others" if color in found else clip(name, 34)
    return sorted(found.items())


def _timelines(
    document: Mapping[str, Any],
    spans: Mapping[str, Sequence[SpanOf]],
    colors: Mapping[str, int],
    scale: Scale,
    top: float,
) -> tuple[list[dict[str, Any]], float]:
    """Per policy a lane per device; the end of all of it."""
    devices = [device["id"] for device in document["machine"]["devices"]]
    parts = []
    for policy, attempts in spans.items():
        if len(attempts) > _MOST_SPANS:
            continue
        lanes, jobs, y = [], [], top
        for device in devices:
            here = [span for span in attempts if span.device == device]
            slots = _slots(here)
            height = max(13.0, _SLOT * (max(slots, default=0) + 1))
            lanes.append({"y": y, "height": height, "label": clip(one_line(device), 20)})
            jobs += [_job(s, slot, y, colors, scale) for s, slot in zip(here, slots, strict=True)]
            y += height + 3.0
        parts.append({"policy": one_line(policy), "y": top, "lanes": lanes, "jobs": jobs})
        top = y + 26.0
    return parts, top - 10.0


def _slots(spans: Sequence[SpanOf]) -> list[int]:
    """For each attempt the first row that is free when it starts."""
    free_at: list[float] = []
    slots = []
    for span in spans:
        slot = next((i for i, at in enumerate(free_at) if at <= span.start), len(free_at))
        free_at[slot : slot + 1] = [span.end]
        slots.append(slot)
    return slots


def _job(
    span: SpanOf, slot: int, top: float, colors: Mapping[str, int], scale: Scale
) -> dict[str, Any]:
    x = _x(scale, span.start)
    failed = span.state != StateName.SUCCEEDED
    took = format_seconds(span.end - span.start)
    return {
        "x": x,
        "y": top + slot * _SLOT,
        "width": max(0.5, round(_x(scale, span.end) - x, 2)),
        "height": _SLOT - 1.0,
        "look": "failed" if failed else f"c{colors.get(_workload(span.name), _COLORS - 1)}",
        "title": f"{one_line(span.name)}: {format_seconds(span.start)}, {took}, {span.state}",
    }
