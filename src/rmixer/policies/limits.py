"""The memory that attempts are held to, by where their reservations come from.

A reservation is a promise, or a guess. A job is held to a promise: what it takes beyond it was
promised to others. Of a guess nobody knows whether it is right, so the job may grow, and what it is
seen to take is booked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rmixer.model import Attempt, Estimate, JobSpec, Placement
from rmixer.resources import GIB, format_bytes

#: What was measured or traced is held to with so much room above it, and at least so many bytes:
#: data that a job maps, and the page cache that it fills, count in a control group too, and a job
#: that is seen to grow is given more only at the next look at it.
ROOM_FACTOR = 1.5
ROOM_BYTES = GIB


def exactly(memory: int) -> int:
    """A limit at the reservation."""
    return memory


def generously(memory: int) -> int:
    """A limit with room above the reservation."""
    return max(int(memory * ROOM_FACTOR), memory + ROOM_BYTES)


#: The sources of an estimate that are promises, and how each is held to: the number that the user
#: declared and the one that the kernel's kill has taught are meant as they are; a peak that was
#: measured in a whole run, or traced, is near the truth and not above it. ``default`` is no promise
#: (nothing is known), nor is what was ``measured`` of a run that still goes on.
HELD: Mapping[str, Callable[[int], int]] = {
    "hint": exactly,
    "out of memory": exactly,
    "history": generously,
    "trace": generously,
}


def memory_limit(spec: JobSpec, estimate: Estimate, memory: int, most: int) -> int:
    """The limit of an attempt that is placed now, bytes; 0 for none.

    A job whose user declared its memory has one always: where it was measured to need more, that
    number loses, and it is held to what was measured.

    Args:
        spec: the job.
        estimate: what its reservation comes from.
        memory: what is reserved for it.
        most: what the node has for jobs.
    """
    held = HELD.get(estimate.source)
    if held is None:
        if not (estimate.source == "measured" and spec.memory):
            return 0
        held = generously
    return max(memory, min(held(memory), most))


def raised_limit(spec: JobSpec, held: Placement, memory: int, most: int) -> int:
    """The limit of a running attempt whose reservation becomes ``memory``, bytes; 0 for none."""
    if not held.memory_limit or memory <= held.memory or is_declared(spec, held):
        return held.memory_limit
    return max(held.memory_limit, memory, min(generously(memory), most))


def is_declared(spec: JobSpec, placement: Placement) -> bool:
    """Whether the user's own number is what the attempt is held to."""
    return bool(spec.memory) and placement.memory_limit == spec.memory


def attempts_table(attempts: Sequence[Attempt]) -> str:
    """Attempts for people: number, what was reserved, the peak that was seen."""
    lines = ["attempt    reserved        peak"]
    for attempt in attempts:
        seen = attempt.outcome.memory_peak_bytes if attempt.outcome else 0
        peak = format_bytes(seen) if seen else "not seen"
        reserved = format_bytes(attempt.placement.memory)
        lines.append(f"{attempt.number:7}  {reserved:>10}  {peak:>10}")
    return "\n".join(lines)
