"""Where the bars of the timeline lie: lanes of cores, slots and GPUs, and shares of a lane.

A bar pinned to cores spans the lanes of these cores. Bars that share a core at the same time share
the height of its lane. Bars without cores take the first slot that is free when they begin.
No two boxes overlap (tested with random intervals).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rmixer.model import CPU, Node
from rmixer.report.history import AttemptRecord, History, JobRecord

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which an attempt had the same device and cores, or stood still on them."""

    job: JobRecord
    attempt: AttemptRecord
    start: float
    end: float
    device: str
    cores: tuple[int, ...]
    cpu: float
    stands: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the timeline."""

    label: str
    kind: str  # core, slot or gpu


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the timeline; `top` and `bottom` are in lanes from the first one's top."""

    span: Span
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The lanes and all boxes in them."""

    lanes: list[Lane]
    boxes: list[Box]


def layout(history: History, end: float) -> Layout:
    """The timeline of a run up to the second `end`."""
    spans = spans_of(history, end)
    lanes, boxes = _gpu_lanes(history.node, spans)
    groups = [
        _core_lanes(history.node, [s for s in spans if s.cores]),
        _slot_lanes([s for s in spans if s.device == CPU and not s.cores]),
    ]
    for more_lanes, more_boxes in groups:
        boxes += [Box(b.span, b.top + len(lanes), b.bottom + len(lanes)) for b in more_boxes]
        lanes += more_lanes
    return Layout(lanes, boxes)


def spans_of(history: History, end: float) -> list[Span]:
    """The spans of all attempts; bookings in a row with the same device and cores are one."""
    spans: list[Span] = []
    for job in history.jobs.values():
        for attempt in job.attempts:
            spans += _spans_of_attempt(job, attempt, end)
    return spans


def _spans_of_attempt(job: JobRecord, attempt: AttemptRecord, end: float) -> Iterator[Span]:
    span: Span | None = None
    for booking in attempt.bookings(end):
        place = booking.placement
        begin = booking.start
        now = place.device, place.cores, booking.stands
        if span is not None and (span.device, span.cores, span.stands) == now:
            begin = span.start
        elif span is not None and span.end > span.start:
            yield span
        span = Span(job, attempt, begin, booking.end, *now[:2], place.cpu, now[2])
    if span is not None:
        yield span


def slots(intervals: Sequence[Interval]) -> list[int]:
    """Per interval the first slot that is free when it begins, earlier beginnings first."""
    chosen = [0] * len(intervals)
    free_from: list[float] = []
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[index]
        slot = next((s for s, free in enumerate(free_from) if free <= start), len(free_from))
        if slot == len(free_from):
            free_from.append(end)
        free_from[slot] = end
        chosen[index] = slot
    return chosen


def shares(intervals: Sequence[Interval]) -> list[tuple[int, int]]:
    """Per interval (position, of how many) within a lane.

    Intervals that overlap, directly or through others, divide the height evenly; one that is alone
    has all of it.
    """
    placed: list[tuple[int, int]] = [(0, 1)] * len(intervals)
    group: list[int] = []
    until = float("-inf")
    for index in sorted(range(len(intervals)), key=lambda i: intervals[i]):
        start, end = intervals[index]
        if start >= until:
            _divide(group, intervals, placed)
            group = []
        group.append(index)
        until = max(until, end)
    _divide(group, intervals, placed)
    return placed


def _divide(group: list[int], intervals: Sequence[Interval], placed: list[tuple[int, int]]) -> None:
    positions = slots([intervals[index] for index in group])
    depth = max(positions, default=0) + 1
    for index, position in zip(group, positions, strict=True):
        placed[index] = (position, depth)


def _core_lanes(node: Node, spans: list[Span]) -> tuple[list[Lane], list[Box]]:
    if not spans:
        return [], []
    cores = sorted({*node.cores, *(core for span in spans for core in span.cores)})
    lanes = [Lane(f"core {core}", "core") for core in cores]
    heights: dict[int, dict[int, Interval]] = defaultdict(dict)  # span -> lane -> (top, bottom)
    for lane, core in enumerate(cores):
        there = [index for index, span in enumerate(spans) if core in span.cores]
        intervals = [(spans[index].start, spans[index].end) for index in there]
        for index, (position, depth) in zip(there, shares(intervals), strict=True):
            heights[index][lane] = (lane + position / depth, lane + (position + 1) / depth)
    return lanes, [box for index in heights for box in _join(spans[index], heights[index])]


def _join(span: Span, heights: dict[int, Interval]) -> Iterator[Box]:
    """One box per run of neighbouring lanes that the span fills from edge to edge."""
    top, bottom = heights[min(heights)]
    for lane in sorted(heights)[1:]:
        next_top, next_bottom = heights[lane]
        if next_top == bottom:
            bottom = next_bottom
        else:
            yield Box(span, top, bottom)
            top, bottom = next_top, next_bottom
    yield Box(span, top, bottom)


def _slot_lanes(spans: list[Span], label: str = "slot") -> tuple[list[Lane], list[Box]]:
    chosen = slots([(span.start, span.end) for span in spans])
    lanes = [Lane(f"{label} {number + 1}", "slot") for number in range(max(chosen, default=-1) + 1)]
    boxes = [Box(span, slot, slot + 1) for span, slot in zip(spans, chosen, strict=True)]
    return lanes, boxes


def _gpu_lanes(node: Node, spans: list[Span]) -> tuple[list[Lane], list[Box]]:
    lanes: list[Lane] = []
    boxes: list[Box] = []
    for device in node.devices:
        if device.id == CPU:
            continue
        name = f"GPU {device.index if device.index is not None else device.id}"
        mine = [span for span in spans if span.device == device.id]
        more, there = _slot_lanes(mine, f"{name} ·")
        more = more if len(more) > 1 else [Lane(name, "gpu")]
        boxes += [Box(b.span, b.top + len(lanes), b.bottom + len(lanes)) for b in there]
        lanes += [Lane(lane.label, "gpu") for lane in more]
    return lanes, boxes
