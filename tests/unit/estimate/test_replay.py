"""The model of the allocator against recordings from real GPUs, and files that are not right."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rmixer.estimate import replay

RECORDINGS = Path(__file__).parents[4] / "shared" / "data" / "cuda_allocator"
NAMES = {
    "lm_ctx128_forward": (2058, 289),
    "lm_ctx128_forward_logs": (3113, 178),
    "lm_ctx128_fullstep": (6771, 783),
    "lm_ctx512_fullstep": (6769, 589),
    "resnet_like": (3505, 152),
}
M = 1 << 20
BASE = 1 << 40


def report_of(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    assert replay.main([str(path)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_predicted_exactly(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each address, each request to the driver and the peak are those of the real allocator."""
    path = RECORDINGS / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"the recordings are not here: {RECORDINGS}")
    report = report_of(path, capsys)
    assert (report["allocations"], report["segment_decisions"]) == NAMES[name]
    assert report["predicted_peak_reserved_bytes"] == report["peak_reserved_bytes"]
    wrong = ("address_mismatches", "segment_mismatches", "segment_free_mismatches", "unplaced")
    assert not any(report[key] for key in (*wrong, "unknown_frees", "segments_unexplained"))


def recording(*events: list[Any], peak: int = 0, **start: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"segments_at_start": [], "blocks_at_start": []}
    return {**empty, **start, "events": list(events), "peak_reserved_bytes": peak}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def write_and_run(data: Any) -> dict[str, int]:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(data))
        found = report_of(path, capsys)
        return {key: value for key, value in found.items() if value}

    return write_and_run


def new_segment(at: int, size: int) -> list[list[Any]]:
    return [["segment_alloc", at, size], ["alloc", at, size]]


def test_a_wrong_address_counts_once_and_is_followed(run) -> None:
    """The recording puts a block at the higher of two equal segments; its free is then known."""
    there = [[BASE, 12 * M], [BASE + 50 * M, 12 * M]]
    events = [["alloc", BASE + 50 * M, 12 * M], ["alloc", BASE, 12 * M]]
    events += [["free_completed", BASE + 50 * M, 12 * M]]
    found = run(recording(*events, segments_at_start=there))
    assert found["address_mismatches"] == 1
    assert "unknown_frees" not in found


@pytest.mark.parametrize(
    ("events", "predicted"),
    [
        ([["segment_alloc", BASE, 14 * M], ["alloc", BASE, 12 * M]], 12 * M),
        ([["alloc", BASE, 12 * M]], 12 * M),
        (
            [
                *new_segment(BASE, 12 * M),
                ["free_completed", BASE, 12 * M],
                *new_segment(BASE + 50 * M, 12 * M),
            ],
            12 * M,
        ),
    ],
    ids=["another size", "asked where the recording does not", "not asked where it does"],
)
def test_a_wrong_decision_counts(run, events: list[list[Any]], predicted: int) -> None:
    """Each way to differ about the driver is a mismatch, and the peak is the model's own."""
    found = run(recording(*events))
    assert found["segment_mismatches"] == 1
    assert found["predicted_peak_reserved_bytes"] == predicted


def test_given_back_segments_are_predicted_as_a_set(run) -> None:
    """All wholly free segments go: one that is kept, and one in use that goes, are mismatches."""
    ends = [["free_completed", BASE, 12 * M], ["free_completed", BASE + 50 * M, 12 * M]]
    begin = [*new_segment(BASE, 12 * M), *new_segment(BASE + 50 * M, 12 * M)]
    goes = [["segment_free", BASE, 12 * M], ["segment_free", BASE + 50 * M, 12 * M]]
    assert "segment_free_mismatches" not in run(recording(*begin, *ends, *goes))
    assert run(recording(*begin, *ends, goes[0]))["segment_free_mismatches"] == 1
    followed = run(recording(*begin, ends[0], *goes, ends[1], *new_segment(BASE, 24 * M)))
    assert followed["segment_free_mismatches"] == 1
    assert followed["unknown_frees"] == 1
    assert followed["predicted_peak_reserved_bytes"] == 24 * M


def test_segments_freed_before_a_retry_make_room(run) -> None:
    """Given back, asked again, allocated: no mismatch, and the peak counts what was given back."""
    retry = [["segment_free", BASE, 12 * M], *new_segment(BASE + 50 * M, 20 * M)]
    found = run(recording(*new_segment(BASE, 12 * M), ["free_completed", BASE, 12 * M], *retry))
    assert "segment_free_mismatches" not in found
    assert "segment_mismatches" not in found
    assert found["predicted_peak_reserved_bytes"] == 20 * M


def test_unknown_blocks_and_a_cut_off_end_are_counted(run) -> None:
    """Frees of unknown blocks and a last segment without its block change no other number."""
    found = run(
        recording(
            ["free_completed", 4096, 512],
            ["free_requested", 4096, 512],
            ["segment_free", 1 << 30, 2 * M],
            ["segment_alloc", BASE, 2 * M],
            blocks_at_start=[[1 << 20, 512]],
        )
    )
    assert found == {
        "unknown_frees": 1,
        "segment_frees": 1,
        "segment_free_mismatches": 1,
        "unplaced": 1,
        "segments_unexplained": 1,
        "predicted_peak_reserved_bytes": 2 * M,
    }


def test_a_segment_that_was_lost_is_replaced(run) -> None:
    """A segment over the address of an older one takes its place, and the peak is one of them."""
    events = [*new_segment(BASE, 12 * M), *new_segment(BASE, 14 * M)]
    found = run(recording(*events))
    assert found["predicted_peak_reserved_bytes"] == 14 * M
    assert "address_mismatches" not in found


def test_streams_have_their_own_blocks(run) -> None:
    """With the stream as last value, a free block of another stream is not used."""
    events = [
        ["segment_alloc", BASE, 12 * M, 0],
        ["alloc", BASE, 12 * M, 0],
        ["free_completed", BASE, 12 * M, 0],
        ["segment_alloc", BASE + 50 * M, 12 * M, 7],
        ["alloc", BASE + 50 * M, 12 * M, 7],
    ]
    assert "segment_mismatches" not in run(recording(*events))
    assert run(recording(*[event[:3] for event in events]))["segment_mismatches"] == 1


BAD = {
    "no object": ([], "an object"),
    "no events": (
        {"segments_at_start": [], "blocks_at_start": []},
        "'peak_reserved_bytes' is missing",
    ),
    "action": (recording(["grow", 1, 2]), r"events\[0\] must be"),
    "row": (recording(["alloc", 1]), r"events\[0\] must be"),
    "number": (recording(["alloc", 1, "2"]), r"events\[0\].*whole numbers"),
    "paged": (recording(["segment_map", 1, 2]), "expandable"),
    "list": (recording(segments_at_start=3), "segments_at_start must be a list"),
    "range": (recording(blocks_at_start=[[1]]), r"blocks_at_start\[0\]"),
    "overlap": (recording(segments_at_start=[[0, 9], [8, 9]]), "overlap"),
    "peak": (recording(peak=None), "peak_reserved_bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_a_recording_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, nothing on stdout, one line that says the file, the place and what is right."""
    data, message = BAD[name]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(data))
    assert replay.main([str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    with pytest.raises(replay.UsageError, match=message):
        replay.read_recording(path)


def test_files_that_cannot_be_read_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cut-off or damaged gzip file, other bytes, no file, no argument: exit code 2, no traceback."""
    whole = gzip.compress(json.dumps(recording()).encode())
    contents = {
        "cut": whole[:-12],
        "damaged": whole[:12] + b"\xff" * 9 + whole[21:],
        "bytes": b"\xff\x00",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in (*contents, "absent", "."):
        assert replay.main([str(tmp_path / name)]) == 2, name
        assert "cannot be read" in capsys.readouterr().err
    assert replay.main([]) == 2
    assert "usage" in capsys.readouterr().err
