"""The geometry of the timeline: lanes, bars and their labels, in pixels of an SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmixer.model import FINAL_STATES, StateName
from rmixer.report.charts import AXIS, Scale, Tick
from rmixer.report.lanes import Box, Layout
from rmixer.report.text import clip, one_line
from rmixer.resources import format_seconds

_LETTER = 6.1  # average width of a letter at 11 px
_LABEL_HEIGHT = 13.0  # a lower bar carries no label
_LEAST_LETTERS = 8  # a shorter rest of a name says nothing
_LOST = frozenset(
    {StateName.FAILED, StateName.OUT_OF_MEMORY, StateName.TIMEOUT, StateName.NODE_FAIL}
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the timeline.

    ``look`` is ``done``, ``failed``, ``stopped``, ``running``, or ``suspended``: it stood still.
    """

    x: float
    y: float
    width: float
    height: float
    color: int
    look: str
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """The background and the name of one lane."""

    y: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline, ready to be drawn."""

    height: float
    bottom: float
    rows: list[Row]
    bars: list[Bar]
    ticks: list[Tick]
    marks: list[float]


def lane_height(count: int) -> float:
    """The pixels of a lane: generous for few, thin for hundreds."""
    return max(4.0, min(34.0, 640.0 / max(1, count)))


def draw(layout: Layout, colors: dict[str, int], scale: Scale, marks: Iterable[float]) -> Timeline:
    """The timeline of a layout; `colors` is the colour's number per family."""
    height = lane_height(len(layout.lanes))
    every = max(1, math.ceil(12 / height))  # name only every n-th of very thin lanes
    rows = [
        Row(index * height, height, one_line(lane.label) if index % every == 0 else "")
        for index, lane in enumerate(layout.lanes)
    ]
    bottom = height * len(layout.lanes)
    bars = [_bar(box, height, colors, scale) for box in layout.boxes]
    bars.sort(key=lambda bar: bar.x)
    return Timeline(
        bottom + AXIS, bottom, rows, bars, scale.ticks(), [scale.x(mark) for mark in marks]
    )


def _bar(box: Box, lane: float, colors: dict[str, int], scale: Scale) -> Bar:
    span = box.span
    x, gap = scale.x(span.start), min(1.0, 0.1 * lane)
    width = max(1.5, scale.x(span.end) - x)
    height = max(1.0, (box.bottom - box.top) * lane - 2 * gap)
    name = one_line(span.job.spec.name)
    room = int((width - 8) / _LETTER)
    legible = height >= _LABEL_HEIGHT and room >= min(len(name), _LEAST_LETTERS)
    label = clip(name, room) if legible else ""
    return Bar(
        x=x,
        y=round(box.top * lane + gap, 2),
        width=round(width, 2),
        height=round(height, 2),
        color=colors[family_of(span.job.spec.family, name)],
        look=_look(box),
        label=label,
        title=_title(box, name),
    )


def family_of(family: str, name: str) -> str:
    """What decides a job's colour: its family, or its name where it has none."""
    return family or name


def _look(box: Box) -> str:
    if box.span.stands:
        return "suspended"
    outcome = box.span.attempt.outcome
    if outcome is None:
        return "running"
    if outcome.state in _LOST:
        return "failed"
    return "stopped" if outcome.state in FINAL_STATES - {StateName.SUCCEEDED} else "done"


def _title(box: Box, name: str) -> str:
    span, attempt = box.span, box.span.attempt
    outcome = attempt.outcome
    end = "still running" if outcome is None else str(outcome.state)
    reason = f" ({one_line(outcome.reason)})" if outcome is not None and outcome.reason else ""
    cores = f"cores {', '.join(map(str, span.cores))}" if span.cores else "not pinned"
    threads, took = attempt.placement.threads, format_seconds(span.end - span.start)
    return "\n".join(
        [
            name,
            f"attempt {attempt.number} of {span.job.spec.retries + 1}: {end}{reason}",
            *(["suspended: it stood still"] if span.stands else []),
            f"{format_seconds(span.start)} to {format_seconds(span.end)}, {took}",
            f"{cores}, {threads or 'default'} threads, {span.cpu:g} cores booked",
        ]
    )


def color_numbers(families: Sequence[str], colors: int) -> dict[str, int]:
    """A colour's number per family: the largest families get their own, the rest share the last."""
    counts: dict[str, int] = {}
    for family in families:
        counts[family] = counts.get(family, 0) + 1
    if len(counts) <= colors:
        return {family: number for number, family in enumerate(counts)}
    first = sorted(counts, key=lambda family: -counts[family])[: colors - 1]
    own = [family for family in counts if family in first]
    return {family: own.index(family) if family in own else colors - 1 for family in counts}
