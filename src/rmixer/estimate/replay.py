"""Check the model of the allocator against a recording made on a real GPU.

    python -m rmixer.estimate.replay TRACE.json.gz

A recording is JSON (gzip or plain): ``segments_at_start`` and ``blocks_at_start``, lists of
[address, bytes]; ``events``, a list of [action, address, bytes] in order; ``peak_reserved_bytes``.
Segments, blocks and events may have the number of their stream as a last value; without it, all is
on one stream.

What is predicted, and what is taken from the recording:

* **alloc**: the model says where the block goes, or that the driver must be asked, and for how
  many bytes. Only then does it see the recorded address. A difference counts in
  ``address_mismatches``, and the model follows the recording, so that one error does not hide the
  next ones.
* **segment_alloc**: the decision to ask and the size are predicted; the address is the driver's
  choice and is taken from the recording, where the event stands before the ``alloc`` that needed
  it. Asking where the recording does not, the reverse, and another size each count in
  ``segment_mismatches``. One at the end, without its ``alloc``, cannot be predicted and counts in
  ``segments_unexplained``.
* **segment_free**: that cached segments are given back is followed: it depends on the device's
  free memory, which a recording does not have, or on ``empty_cache``. Which ones is predicted:
  all that are wholly free. ``segment_frees`` counts the events, ``segment_free_mismatches`` those
  which the rule does not explain and the wholly free segments that were kept. One that is not
  wholly free in the model leaves it with its blocks.
* **free_completed** of a block that is not known counts in ``unknown_frees`` and changes nothing.

``predicted_peak_reserved_bytes`` grows by the sizes that the model asked
for, not the recorded ones.

Free space at the start is what no block covers. In the large pool a block takes a tail of up to
1 MiB with it, as in the allocator; where free space follows that tail, the file does not tell them
apart, and it counts as free.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rmixer.errors import EXIT_OK, EXIT_USAGE, UsageError
from rmixer.estimate.allocator import CachingAllocator
from rmixer.estimate.blocks import segment_bytes

PAGED = ("segment_map", "segment_unmap")  # recorded with expandable segments
SILENT = ("free", "free_requested", "oom", "snapshot", "user_defined", "workspace_snapshot")
ACTIONS = ("alloc", "free_completed", "segment_alloc", "segment_free", *SILENT)
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Event:
    """One thing that the real allocator did. ``size`` in bytes, as requested for a block."""

    action: str
    address: int
    size: int
    stream: int = 0


@dataclass(frozen=True)
class Recording:
    """A recording, checked. Segments and blocks are (address, bytes, stream)."""

    segments: tuple[tuple[int, int, int], ...]
    blocks: tuple[tuple[int, int, int], ...]
    events: tuple[Event, ...]
    peak_reserved_bytes: int


@dataclass
class Report:
    """What the replay found; the module says what each number counts."""

    allocations: int = 0
    address_mismatches: int = 0
    segment_decisions: int = 0
    segment_mismatches: int = 0
    predicted_peak_reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    segment_frees: int = 0
    segment_free_mismatches: int = 0
    segments_unexplained: int = 0
    unknown_frees: int = 0
    unplaced: int = 0  # live blocks with no free space at their address


def read_recording(path: Path) -> Recording:
    """Read and check a recording.

    Raises:
        UsageError: the file cannot be read, is cut off, or is not a recording.
    """
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
        data = json.loads(raw)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read as JSON (plain or gzip): {error}") from error
    try:
        return _checked(data)
    except (TypeError, ValueError, KeyError) as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path}: not a recording of the allocator: {why}") from error


def _checked(data: Any) -> Recording:
    if not isinstance(data, dict):
        raise TypeError("the whole must be an object")
    segments = tuple(_range("segments_at_start", i, r) for i, r in _rows(data, "segments_at_start"))
    blocks = tuple(_range("blocks_at_start", i, r) for i, r in _rows(data, "blocks_at_start"))
    ends = [(address, address + size) for address, size, _ in sorted(segments)]
    if any(end > ends[i + 1][0] for i, (_, end) in enumerate(ends[:-1])):
        raise ValueError("segments_at_start overlap")
    peak = data["peak_reserved_bytes"]
    if not _whole(peak):
        raise TypeError("peak_reserved_bytes must be a number of bytes")
    events = tuple(_event(i, row) for i, row in _rows(data, "events"))
    return Recording(segments, blocks, events, peak)


def _rows(data: dict[str, Any], key: str) -> list[tuple[int, Any]]:
    if not isinstance(data[key], list):
        raise TypeError(f"{key} must be a list")
    return list(enumerate(data[key]))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _range(key: str, i: int, row: Any) -> tuple[int, int, int]:
    if not isinstance(row, list) or len(row) not in (2, 3) or not all(map(_whole, row)):
        raise ValueError(f"{key}[{i}] must be [address, bytes] or [address, bytes, stream]")
    return row[0], row[1], row[2] if row[2:] else 0


def _event(i: int, row: Any) -> Event:
    shaped = isinstance(row, list) and len(row) in (3, 4) and isinstance(row[0], str)
    if shaped and row[0] in PAGED:
        raise ValueError(f"events[{i}] is {row[0]!r}: recorded with expandable segments")
    if not shaped or row[0] not in ACTIONS:
        raise ValueError(f"events[{i}] must be [action, address, bytes], action of {ACTIONS}")
    if not all(map(_whole, row[1:])):
        raise ValueError(f"events[{i}]: address and bytes must be whole numbers")
    return Event(*row)


@dataclass
class _Replay:
    """The model beside the recording, one event after the other."""

    model: CachingAllocator
    report: Report
    reserved: int = 0  # as predicted
    asked: list[Event] = field(default_factory=list)  # segment_alloc without their alloc yet
    leaving: set[int] | None = None  # what this run of segment_free should give back

    def step(self, event: Event) -> None:
        if event.action in SILENT:
            return
        if event.action != "segment_free":
            self.end_of_release()
        getattr(self, event.action)(event)

    def segment_alloc(self, event: Event) -> None:
        self.asked.append(event)

    def alloc(self, event: Event) -> None:
        self.report.allocations += 1
        predicted = self.model.fit(event.size, event.stream)
        wanted = 0
        if predicted is None and event.size:
            wanted = segment_bytes(self.model.settings.block_bytes(event.size))
        given = [segment.size for segment in self.asked]
        if wanted or given:
            self.report.segment_decisions += max(1, len(given))
            right = wanted in given
            self.report.segment_mismatches += max(1, len(given)) - right
        if predicted is None and self.asked:
            predicted = self.asked[-1].address
        self.take_over()
        self.reserve(wanted)
        self.report.address_mismatches += predicted != event.address
        self.settle(event)

    def settle(self, event: Event) -> None:
        """Make the block in the model: by its own rules where they agree, else where it is."""
        if self.model.fit(event.size, event.stream) == event.address:
            self.model.alloc(event.size, event.stream)
        elif not self.model.place(event.address, event.size):
            self.report.unplaced += 1

    def take_over(self) -> None:
        for segment in self.asked:
            for base in self.model.segments_within(segment.address, segment.size):
                before = self.model.reserved_bytes
                self.model.drop_segment(base)  # its segment_free is not in the recording
                self.reserved -= before - self.model.reserved_bytes
            self.model.add_segment(segment.address, segment.size, segment.stream)
        self.asked = []

    def free_completed(self, event: Event) -> None:
        try:
            self.model.free(event.address)
        except KeyError:
            self.report.unknown_frees += 1

    def segment_free(self, event: Event) -> None:
        self.unexplained()
        self.report.segment_frees += 1
        if self.leaving is None:
            self.leaving = self.model.free_segments()
        self.report.segment_free_mismatches += event.address not in self.leaving
        self.leaving.discard(event.address)
        if event.address in self.model.segments_within(event.address, 1):
            self.model.drop_segment(event.address)
            self.reserved -= event.size

    def end_of_release(self) -> None:
        if self.leaving is not None:
            self.report.segment_free_mismatches += len(self.leaving)
            self.leaving = None

    def unexplained(self) -> None:
        self.report.segments_unexplained += len(self.asked)
        size = sum(segment.size for segment in self.asked)
        self.take_over()
        self.reserve(size)

    def reserve(self, size: int) -> None:
        self.reserved += size
        peak = max(self.report.predicted_peak_reserved_bytes, self.reserved)
        self.report.predicted_peak_reserved_bytes = peak


def replay(recording: Recording) -> Report:
    """Follow a recording with the model at default settings, and count where they differ."""
    model = CachingAllocator()
    report = Report(peak_reserved_bytes=recording.peak_reserved_bytes)
    for address, size, stream in recording.segments:
        model.add_segment(address, size, stream)
    for address, size, _ in sorted(recording.blocks):
        report.unplaced += not model.place(address, size)
    run = _Replay(model, report)
    run.reserve(model.reserved_bytes)
    for event in recording.events:
        run.step(event)
    run.unexplained()
    run.end_of_release()
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of one recording as JSON. Exit code 2: it cannot be read."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: python -m rmixer.estimate.replay TRACE.json.gz", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    try:
        report = replay(read_recording(Path(arguments[0])))
    except UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201  # what this program is for
        return EXIT_USAGE
    print(json.dumps(asdict(report), indent=2))  # noqa: T201
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
