"""The geometry of the use-over-time charts, and the time axis that all drawings share.

All numbers are pixels of an SVG of fixed width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rmixer.report.telemetry import Curve
from rmixer.resources import format_bytes, format_seconds

WIDTH, LEFT, RIGHT, AXIS = 1160.0, 76.0, 24.0, 24.0
_TIME_STEPS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600,
    900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
)  # fmt: skip
_MOST_TICKS = 9
_MOST_POINTS = 500
_OFF_THE_SCALE = 3.0  # a capacity this many times the data would flatten the curve


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: where, and its text."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Usage:
    """One use-over-time chart, ready to be drawn; empty paths where nothing was measured."""

    height: float
    bottom: float
    booked: str
    measured_line: str
    measured_area: str
    capacity_y: float | None
    capacity_label: str
    ticks: list[Tick]
    levels: list[Tick]
    marks: list[float]


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds of the run to pixels."""

    end: float

    def x(self, at: float) -> float:
        """The pixel of that second."""
        share = min(1.0, max(0.0, at / self.end)) if self.end > 0 else 0.0
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)

    def ticks(self) -> list[Tick]:
        """Marks at round times, at most nine."""
        step = next((s for s in _TIME_STEPS if self.end / s <= _MOST_TICKS), self.end / 8 or 1.0)
        count = math.floor(self.end / step + 1e-9) if self.end > 0 else 0
        return [Tick(self.x(i * step), _time_label(i * step, step)) for i in range(count + 1)]


def usage(
    booked: Curve,
    measured: Curve,
    capacity: float,
    scale: Scale,
    marks: Iterable[float],
    *,
    in_bytes: bool,
) -> Usage:
    """A chart of what was booked (steps), measured (a filled curve) and there (a line)."""
    height, top = 150.0, 14.0
    highest = max([value for _, value in (*booked, *measured)], default=0.0)
    shown = capacity <= _OFF_THE_SCALE * highest or highest == 0
    ceiling = max(highest, capacity if shown else highest, 1e-9) * 1.04

    def y(value: float) -> float:
        return round(top + (height - top) * (1 - value / ceiling), 2)

    steps = _points(_as_steps(booked, scale.end), scale, y)
    line = _points(thin(measured, scale.end), scale, y)
    area = ""
    if len(measured) > 1:
        first, last = scale.x(measured[0][0]), scale.x(measured[-1][0])
        area = f"{line} L{last:g} {height:g} L{first:g} {height:g} Z"
    text = format_bytes(capacity) if in_bytes else f"{capacity:g} cores"
    return Usage(
        height=height + AXIS,
        bottom=height,
        booked=steps,
        measured_line=line,
        measured_area=area,
        capacity_y=y(capacity) if shown else None,
        capacity_label=text if shown else f"capacity {text}, above this scale",
        ticks=scale.ticks(),
        levels=_levels(ceiling, y, in_bytes=in_bytes),
        marks=[scale.x(mark) for mark in marks],
    )


def thin(curve: Curve, end: float) -> Curve:
    """At most 500 points; of those that fall together the highest stays, so no peak is lost."""
    if len(curve) <= _MOST_POINTS or end <= 0:
        return curve
    highest: dict[int, tuple[float, float]] = {}
    for at, value in curve:
        bucket = int(at / end * (_MOST_POINTS - 1))
        if bucket not in highest or value > highest[bucket][1]:
            highest[bucket] = (at, value)
    return [highest[bucket] for bucket in sorted(highest)]


def _as_steps(curve: Curve, end: float) -> Curve:
    points: Curve = []
    before = 0.0
    for at, value in curve:
        if at < end:  # what ends with the run is drawn up to its end
            points += [(at, before), (at, value)]
            before = value
    return [*points, (end, before)] if points else []


_ToPixel = Callable[[float], float]


def _points(curve: Curve, scale: Scale, y: _ToPixel) -> str:
    return " ".join(
        f"{'L' if index else 'M'}{scale.x(at):g} {y(value):g}"
        for index, (at, value) in enumerate(curve)
    )


def _levels(ceiling: float, y: _ToPixel, *, in_bytes: bool) -> list[Tick]:
    if in_bytes:
        step = 2.0 ** math.ceil(math.log2(max(ceiling / 4, 1.0)))
    else:
        step = _round_up(ceiling / 4)
    label = format_bytes if in_bytes else "{:g}".format
    count = math.floor(ceiling / step + 1e-9)
    return [Tick(y(i * step), label(i * step) if i else "0") for i in range(count + 1)]


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _time_label(seconds: float, step: float) -> str:
    if seconds == 0:
        return "0"
    if step < 1:
        return f"{seconds:g} s"
    return f"{seconds:.0f} s" if seconds < 60 and step < 60 else format_seconds(seconds)  # noqa: PLR2004
