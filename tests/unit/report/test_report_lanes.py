"""The layout of the timeline: nothing overlaps, nothing is lost."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from scripted_run import GPU, WALL, ScriptedRun, eight_jobs

from rmixer import events as ev
from rmixer.model import Device, Placement, Reason
from rmixer.report.charts import Scale, thin, usage
from rmixer.report.document import build_document
from rmixer.report.history import fold
from rmixer.report.lanes import layout, shares, slots, spans_of
from rmixer.report.timeline import color_numbers, draw

SECONDS = st.integers(0, 40).map(float)
INTERVALS = st.lists(
    st.tuples(SECONDS, st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=14,
)


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


@given(INTERVALS)
def test_slots_hold_one_at_a_time(intervals: list[tuple[float, float]]) -> None:
    """Two intervals in one slot never overlap, and no more slots are used than overlap at once."""
    chosen = slots(intervals)
    for i, j in combinations(range(len(intervals)), 2):
        assert chosen[i] != chosen[j] or not overlap(intervals[i], intervals[j])
    starts = [start for start, _ in intervals]
    most = max((sum(s <= t < max(e, s + 1e-9) for s, e in intervals) for t in starts), default=0)
    assert max(chosen, default=-1) + 1 <= most


@given(INTERVALS)
def test_shares_of_a_lane_do_not_overlap(intervals: list[tuple[float, float]]) -> None:
    """Intervals that overlap in time get disjoint parts of the lane, inside the lane."""
    placed = shares(intervals)
    bands = [(position / depth, (position + 1) / depth) for position, depth in placed]
    assert all(0 <= top < bottom <= 1 for top, bottom in bands)
    for i, j in combinations(range(len(intervals)), 2):
        apart = bands[i][1] <= bands[j][0] + 1e-9 or bands[j][1] <= bands[i][0] + 1e-9
        assert apart or not overlap(intervals[i], intervals[j])


@given(
    st.lists(
        st.tuples(SECONDS, st.integers(1, 15), st.sets(st.integers(0, 3)), st.booleans()),
        max_size=10,
    )
)
def test_no_two_boxes_overlap(runs: list[tuple[float, int, set[int], bool]]) -> None:
    """Pinned, shared, unpinned and GPU placements: boxes are disjoint and keep their lanes' height."""
    run = ScriptedRun(cores=4, devices=(Device(), GPU))
    moments = []
    for number, (start, seconds, cores, on_gpu) in enumerate(runs):
        job = f"job{number}"
        run.submit(job)
        moments.append((start, 1, job, tuple(sorted(cores)), on_gpu))
        moments.append((start + seconds, 0, job, (), on_gpu))
    for at, begin, job, cores, on_gpu in sorted(moments):
        if begin:
            run.place(at, job, cores, device=GPU.id if on_gpu else "cpu")
        else:
            run.succeed(at, job)
    drawn = layout(fold(run.events), 60.0)
    assert {box.span.job.spec.id for box in drawn.boxes} == {f"job{n}" for n in range(len(runs))}
    for a, b in combinations(drawn.boxes, 2):
        in_time = overlap((a.span.start, a.span.end), (b.span.start, b.span.end))
        apart = a.bottom <= b.top + 1e-9 or b.bottom <= a.top + 1e-9
        assert apart or not in_time
    assert all(0 <= box.top < box.bottom <= len(drawn.lanes) for box in drawn.boxes)


def test_multi_core_job_spans_its_lanes() -> None:
    """A job on neighbouring cores is one box over their lanes; on distant ones it is two."""
    run = ScriptedRun(cores=4)
    run.submit("near", "far")
    run.place(0.0, "near", (1, 2))
    run.succeed(5.0, "near")
    run.place(5.0, "far", (0, 3))
    run.succeed(9.0, "far")
    boxes = layout(fold(run.events), 9.0).boxes
    found = {(box.span.job.spec.id, box.top, box.bottom) for box in boxes}
    assert found == {("near", 1, 3), ("far", 0, 1), ("far", 3, 4)}


def test_one_bar_per_attempt_unless_its_cores_change() -> None:
    """A rebooking of memory or share keeps the bar whole; other cores begin a new one."""
    spans = spans_of(fold(eight_jobs().events), 66.0)
    din = [(s.attempt.number, s.start, s.end, s.cores) for s in spans if s.job.spec.id == "din"]
    assert din == [(1, 0.6, 14.0, (3,)), (2, 17.0, 48.0, (3,)), (2, 48.0, 66.0, (0, 3))]


def test_bars_look_like_their_outcome_and_stay_inside() -> None:
    """Failed attempts are hatched, ended ones are not, and no bar leaves the drawing."""
    history = fold(eight_jobs().events)
    names = {job.spec.family for job in history.jobs.values()}
    drawn = draw(layout(history, 66.1), dict.fromkeys(names, 0), Scale(66.1), [])
    looks = {}
    for bar in drawn.bars:
        looks.setdefault(bar.title.split("\n")[0], set()).add(bar.look)
        assert bar.x >= 76
        assert bar.x + bar.width <= 1160
        assert 0 <= bar.y <= bar.y + bar.height <= drawn.bottom
    assert looks["plain_dcn"] == {"failed"}
    assert looks["din"] == {"failed", "done"}
    assert looks["deepfm"] == {"done"}


def test_colors_are_shared_only_when_they_run_out() -> None:
    """Up to eight families have their own colour; beyond, the smallest share the last one."""
    few = color_numbers([f"f{n}" for n in range(8)], 8)
    assert sorted(few.values()) == list(range(8))
    many = color_numbers(["big"] * 9 + [f"f{n}" for n in range(20)], 8)
    assert many["big"] == 0
    assert max(many.values()) == 7
    assert list(many.values()).count(7) == 14


@given(st.floats(1e-3, 1e7))
def test_axis_has_few_round_ticks(end: float) -> None:
    """Any length of a run gets 1 to 10 ticks, in order, with distinct labels."""
    ticks = Scale(end).ticks()
    assert 1 <= len(ticks) <= 10
    assert len({tick.label for tick in ticks}) == len(ticks)
    assert [t.position for t in ticks] == sorted(t.position for t in ticks)


def test_thinning_keeps_the_peak() -> None:
    """A long curve is drawn with at most 500 points, and its highest value is among them."""
    curve = [(float(n), 1.0) for n in range(5000)]
    curve[1234] = (1234.0, 99.0)
    short = thin(curve, 5000.0)
    assert len(short) <= 500
    assert max(value for _, value in short) == 99.0


def test_capacity_far_above_is_told_not_drawn() -> None:
    """A capacity that would flatten the curve is left off the scale and named instead."""
    booked = [(0.0, 1.0), (5.0, 0.0)]
    far = usage(booked, [], 100.0, Scale(10.0), [], in_bytes=False)
    near = usage(booked, [], 2.0, Scale(10.0), [], in_bytes=False)
    assert far.capacity_y is None
    assert "above this scale" in far.capacity_label
    assert near.capacity_y is not None


def test_a_job_that_stood_still_is_drawn_as_such_and_books_no_core_meanwhile() -> None:
    """Ran 2 s, stood 6 s, ran 2 s on another core: three bars, and 4 s of a core booked."""
    run = ScriptedRun(cores=2)
    run.submit("a")
    run.place(0.0, "a", (0,))
    token = run.token("a")
    why = Reason("Interference", 0.9, 0.98, "sum of rates")
    run.add(ev.Suspended, 2.0, job="a", token=token, reason=why)
    standing = build_document(run.events, now=WALL + 5.0)["jobs"][0]
    assert (standing["state"], standing["reason"]) == ("SUSPENDED", str(why))
    assert standing["suspended_seconds"] == 3.0
    place = Placement(cores=(1,), cpu=1.0, threads=1)
    run.add(ev.Continued, 8.0, job="a", token=token, placement=place)
    run.succeed(10.0, "a")
    run.finish(10.0)
    drawing = draw(layout(fold(run.events), 10.0), {"a": 0}, Scale(10.0), ())
    assert [bar.look for bar in drawing.bars] == ["done", "suspended", "done"]
    document = build_document(run.events)
    assert document["jobs"][0]["suspended_seconds"] == 6.0
    assert document["devices"][0]["utilisation"]["booked"] == 4.0 / 20.0
