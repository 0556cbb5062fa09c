"""The run log: what is written comes back, a crash costs the last line at most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import small_disk_at
from rmixer import events as ev
from rmixer.errors import StorageError
from rmixer.log import EventLog, SampleLog, decode, encode, read_events
from rmixer.model import Device, Estimate, JobSpec, Node, Outcome, Placement, Profile, Reason
from rmixer.model import StateName as S
from rmixer.report.telemetry import read_samples

WHEN = {"at": 1.5, "wall": 1e9}
EXAMPLES: list[ev.Event] = [
    ev.Began(
        wall=1.0, run="r1", name="n", policy="fixed:k=2",
        node=Node(cores=(0, 1), memory=7, devices=(Device(), Device(id="GPU-1", kind="T", index=0))),
    ),
    ev.Submitted(
        **WHEN,
        spec=JobSpec(id="a", name="a b", kind="command", payload={"argv": ["x", "é"]}, after=("z",)),
        estimate=Estimate(memory=5),
        profile=Profile(demand={"cores": 0.5}, step_seconds=None),
    ),
    ev.Placed(**WHEN, job="a", attempt=2, token="t", placement=Placement(cores=(1,), threads=None)),
    ev.Waiting(**WHEN, job="a", reason=Reason("HostMemory", 3, 2.5)),
    ev.Exited(**WHEN, job="a", token="t", outcome=Outcome(state=S.FAILED, signal=9), result={"x": [1]}),
    ev.Interrupted(**WHEN, force=True),
    ev.Finished(**WHEN),
]  # fmt: skip


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda e: e.type)
def test_an_event_survives_the_file(event: ev.Event) -> None:
    """Decoding what was encoded gives an equal event of the same class."""
    assert decode(encode(event)) == event


def test_every_event_has_its_own_type_word() -> None:
    """The word in the log tells the class apart, for all observed and decided events."""
    classes = [*ev.Observed.__args__, *ev.Decided.__args__]
    words = [cls.__dataclass_fields__["type"].default for cls in classes]
    assert len(set(words)) == len(classes)


def test_a_cut_off_line_is_dropped_and_written_over(tmp_path: Path) -> None:
    """A crash in the middle of a write leaves a log that reads and goes on."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(EXAMPLES[:2])
    log.close()
    with path.open("ab") as file:
        file.write(encode(EXAMPLES[2])[:30])
    assert list(read_events(path)) == EXAMPLES[:2]
    log = EventLog(path)
    log.append(EXAMPLES[3:])
    log.close()
    assert list(read_events(path)) == [*EXAMPLES[:2], *EXAMPLES[3:]]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    """Damage that is not a crash's is an error with the file and line, never passed over."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(encode(EXAMPLES[0]) + b'{"type":"placed"}\n' + encode(EXAMPLES[1]))
    with pytest.raises(StorageError, match=r"events.jsonl:2: damaged"):
        list(read_events(path))


def test_a_full_disk_leaves_the_log_as_it_was(small_disk: Path) -> None:
    """On a full disk append raises, and what was there before still reads."""
    path = small_disk / "events.jsonl"
    log = EventLog(path)
    log.append(EXAMPLES)
    (small_disk / "filler").write_bytes(b"x" * (50 * 1024))
    with pytest.raises(StorageError, match="No space left"):
        log.append(EXAMPLES * 100)
    log.close()
    assert list(read_events(path)) == EXAMPLES


def test_samples_never_raise(small_disk: Path) -> None:
    """Telemetry is dropped on a full disk, and cut-off lines are passed over."""
    log = SampleLog(small_disk / "samples.jsonl")
    for at in range(5000):
        log.append({"at": at, "pad": "x" * 50})
    log.close()
    samples = list(read_samples(small_disk / "samples.jsonl"))
    assert samples[0]["at"] == 0
    assert 0 < len(samples) < 5000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    with small_disk_at(tmp_path, "64k") as mount:
        yield mount
