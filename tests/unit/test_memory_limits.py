"""What attempts are held to, and what follows when that was not enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driving import BAD, OK, Driver, job, kinds

from rmixer import events as ev
from rmixer.log import decode, encode
from rmixer.model import (
    Attempt,
    Device,
    Estimate,
    JobSpec,
    Node,
    Outcome,
    Placement,
    Profile,
    StateName,
)
from rmixer.policies.baselines import Sequential
from rmixer.policies.limits import HELD, attempts_table, memory_limit, raised_limit
from rmixer.resources import GIB, MIB
from rmixer.runner.admit import estimate_memory
from rmixer.state import DECLARED_GROWTH, MEMORY_MARGIN
from rmixer.store import AttemptFacts, Store

NODE = Node(cores=(0, 1), memory=16 * GIB)


def out_of_memory(peak: int, reason: str = "host") -> Outcome:
    return Outcome(state=StateName.OUT_OF_MEMORY, reason=reason, memory_peak_bytes=peak)


def driven(*jobs: JobSpec, **more: Any) -> Driver:
    return Driver(*jobs, node=NODE, **more)


def placements(driver: Driver, name: str = "a") -> list[Placement]:
    return [p.placement for p in kinds(driver.said, ev.Placed) if p.job == name]


# --- what is held to ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "memory", "limit"),
    [
        ("hint", 2 * GIB, 2 * GIB),
        ("out of memory", 3 * GIB, 3 * GIB),
        ("history", GIB, 2 * GIB),
        ("history", 4 * GIB, 6 * GIB),
        ("trace", 4 * GIB, 6 * GIB),
        ("history", 12 * GIB, 16 * GIB),
        ("default", GIB, 0),
        ("measured", GIB, 0),
    ],
)
def test_limit_by_source(source: str, memory: int, limit: int) -> None:
    """Promises are held to: numbers as they are, measurements with room, never above the node."""
    driver = driven(job("a"), estimates={"a": Estimate(memory=memory, source=source)})
    (placed,) = placements(driver)
    assert (placed.memory, placed.memory_limit) == (memory, limit)


def test_limit_is_at_least_the_reservation() -> None:
    """Also where more is reserved than the node has, as after it became smaller."""
    for source in HELD:
        assert memory_limit(job("a"), Estimate(memory=9, source=source), 9, most=5) == 9


def test_declared_and_measured_to_need_more() -> None:
    """The smaller number of the user loses; what was seen holds, with room above it."""
    driver = Driver(
        job("a", family="f", memory=GIB),
        job("b", family="f", memory=GIB),
        node=NODE,
        policy=Sequential(),
    )
    driver.ends("a", Outcome(state=StateName.SUCCEEDED, memory_peak_bytes=3 * GIB))
    (placed,) = placements(driver, "b")
    assert placed.memory == int(3 * GIB * MEMORY_MARGIN)
    assert placed.memory_limit == int(placed.memory * 1.5)


def test_declared_number_that_is_enough_stays_the_limit() -> None:
    """A glance at the first member of a family does not free the others of what was declared."""
    driver = Driver(
        job("a", family="f", memory=GIB),
        job("b", family="f", memory=GIB),
        node=NODE,
        policy=Sequential(),
    )
    driver.about(ev.Profiled, "a", profile=Profile(demand={"cores": 1.0}, memory=MIB))
    driver.ends("a", OK)
    (placed,) = placements(driver, "b")
    assert (placed.memory, placed.memory_limit) == (GIB, GIB)


# --- a running job that grows ---------------------------------------------------------------------


def test_growth_raises_the_limit_of_what_was_measured() -> None:
    """A job that outgrows its history is booked more, and may have that much with room above it."""
    driver = driven(job("a"), estimates={"a": Estimate(memory=2 * GIB, source="history")})
    (rebooked,) = kinds(driver.about(ev.MemoryGrew, "a", memory=4 * GIB), ev.Rebooked)
    assert rebooked.placement.memory == int(4 * GIB * MEMORY_MARGIN)
    assert rebooked.placement.memory_limit == int(rebooked.placement.memory * 1.5)


def test_growth_does_not_raise_what_was_declared() -> None:
    """More is booked, since it is used, but the job ends at the number that its user gave."""
    driver = driven(job("a", memory=GIB))
    (rebooked,) = kinds(driver.about(ev.MemoryGrew, "a", memory=GIB), ev.Rebooked)
    assert rebooked.placement.memory == int(GIB * MEMORY_MARGIN)
    assert rebooked.placement.memory_limit == GIB


def test_growth_of_a_job_that_is_not_held() -> None:
    """Where nothing is known, a job may grow, and is not held to anything on the way."""
    driver = driven(job("a"))
    (rebooked,) = kinds(driver.about(ev.MemoryGrew, "a", memory=GIB), ev.Rebooked)
    assert rebooked.placement.memory_limit == 0


def test_growth_without_room_raises_nothing() -> None:
    """What others have been promised is not given away."""
    estimates = {name: Estimate(memory=8 * GIB, source="history") for name in "ab"}
    driver = driven(job("a"), job("b"), estimates=estimates)
    assert not kinds(driver.about(ev.MemoryGrew, "a", memory=9 * GIB), ev.Rebooked)


def test_reservation_that_shrinks_keeps_the_limit() -> None:
    """Booking less than before tightens nothing for what runs."""
    held = Placement(memory=4 * GIB, memory_limit=6 * GIB)
    assert raised_limit(job("a"), held, GIB, most=16 * GIB) == 6 * GIB


# --- when it was not enough -----------------------------------------------------------------------


def test_wrong_number_is_learned_from() -> None:
    """Declared 2 GiB, needs 6: killed at 2, PENDING for Backoff, again with enough, SUCCEEDED."""
    driver = driven(job("a", memory=2 * GIB), job("b", memory=GIB))
    driver.ends("a", out_of_memory(2 * GIB))
    assert driver.reason("a") == "Backoff(1 s)"
    driver.wake()
    first, second = placements(driver)
    assert first.memory_limit == 2 * GIB
    assert second.memory == second.memory_limit == 2 * GIB * DECLARED_GROWTH
    driver.ends("a", Outcome(state=StateName.SUCCEEDED, memory_peak_bytes=6 * GIB))
    assert driver.states()["a"] == StateName.SUCCEEDED
    assert [attempt.counted for attempt in driver.core.state.jobs["a"].attempts] == [False, True]
    assert len(driver.core.state.jobs["b"].attempts) == 0, "its neighbour runs on"


@pytest.mark.parametrize(
    ("estimate", "peak", "reserved"),
    [
        (Estimate(memory=2 * GIB, source="history"), 3 * GIB, 4 * GIB),
        (Estimate(memory=GIB, source="default"), 3 * GIB, int(3 * GIB * MEMORY_MARGIN)),
        (Estimate(memory=GIB, source="default"), 0, 2 * GIB),
    ],
    ids=["twice what was reserved", "a peak above it", "no peak seen"],
)
def test_next_reservation(estimate: Estimate, peak: int, reserved: int) -> None:
    """At least twice what was reserved, and the peak that was seen with its margin."""
    driver = driven(job("a"), estimates={"a": estimate})
    driver.ends("a", out_of_memory(peak))
    driver.wake()
    again = placements(driver)[-1]
    assert again.memory == again.memory_limit == reserved


def test_number_that_held_nothing_back() -> None:
    """A peak far above the declared number, where no cage could be made, says what is needed."""
    driver = driven(job("a", memory=GIB))
    driver.ends("a", out_of_memory(5 * GIB))
    driver.wake()
    assert placements(driver)[-1].memory == 6 * GIB


def test_last_free_attempt_is_alone() -> None:
    """The third has the whole node, so it waits for the others to end."""
    driver = driven(job("a", memory=GIB), job("b", memory=GIB))
    for _ in range(2):
        driver.ends("a", out_of_memory(GIB))
        driver.wake()
    assert driver.reason("a").startswith("HostMemory(16.0 GiB>")
    driver.ends("b", OK)
    last = placements(driver)[-1]
    assert (last.memory, last.memory_limit) == (NODE.memory, NODE.memory)
    assert [j.id for j in driver.core.state.active] == ["a"]


def test_out_of_memory_for_good_has_a_table_of_attempts() -> None:
    """Not even alone: OUT_OF_MEMORY, and the message has what was reserved and seen each time."""
    driver = driven(job("a", memory=GIB))
    for peak in (1, 4, 16):
        assert driver.core.state.finished is None
        driver.ends("a", out_of_memory(peak * GIB))
        if driver.core.state.finished is None:
            driver.wake()
    final = driver.core.state.jobs["a"].state.outcome
    assert final.state == StateName.OUT_OF_MEMORY
    assert final.message.splitlines() == [
        "attempt    reserved        peak",
        "      1     1.0 GiB     1.0 GiB",
        "      2     4.0 GiB     4.0 GiB",
        "      3    16.0 GiB    16.0 GiB",
    ]


def test_table_says_what_was_not_seen() -> None:
    """An attempt that was lost has no peak."""
    table = attempts_table([Attempt(number=1, token="t", placement=Placement(), started_at=0.0)])
    assert table.splitlines()[1] == "      1         0 B    not seen"


def test_siblings_start_from_what_was_not_enough() -> None:
    """What one member has shown by running out, the others are given, and held to; not the node."""
    jobs = [job(name, family="f", memory=GIB) for name in "ab"]
    driver = Driver(*jobs, node=NODE, policy=Sequential())
    driver.ends("a", out_of_memory(GIB))
    (placed,) = placements(driver, "b")
    assert placed.memory == placed.memory_limit == GIB * DECLARED_GROWTH


def test_device_memory_that_ran_out_books_the_whole_device() -> None:
    """It is no matter of the host's memory: there the reservation stays."""
    gpu = Device(id="GPU-1", kind="T", index=0, memory=8 * GIB)
    node = Node(cores=(0, 1), memory=16 * GIB, devices=(Device(), gpu))
    estimate = Estimate(memory=GIB, device_memory=2 * GIB, source="hint")
    driver = Driver(job("a", device="gpu", memory=GIB), node=node, estimates={"a": estimate})
    driver.ends("a", out_of_memory(GIB, reason="gpu"))
    driver.wake()
    first, second = placements(driver)
    assert (first.memory, first.device_memory) == (GIB, 2 * GIB)
    assert (second.memory, second.device_memory) == (GIB, 8 * GIB)


def test_other_failures_change_no_reservation() -> None:
    """A job that fails by itself runs again with what it had."""
    driver = driven(job("a", memory=GIB, retries=1))
    driver.ends("a", BAD)
    driver.wake()
    first, second = placements(driver)
    assert (second.memory, second.memory_limit) == (first.memory, first.memory_limit)


# --- the log --------------------------------------------------------------------------------------


def test_log_of_before_there_were_limits() -> None:
    """A placement that was written without a limit has none, and replays."""
    driver = driven(job("a", memory=GIB))
    (placed,) = kinds(driver.said, ev.Placed)
    line = json.loads(encode(placed))
    assert line["placement"].pop("memory_limit") == GIB
    old = decode(json.dumps(line).encode())
    assert isinstance(old, ev.Placed)
    assert old.placement == Placement(
        threads=placed.placement.threads, cpu=placed.placement.cpu, memory=GIB
    )


# --- the next run ---------------------------------------------------------------------------------


def remembered(
    directory: Path, *ends: tuple[StateName, int], memory: int | None = None
) -> Estimate:
    """What the next run of a program starts from, after attempts that ended so at such peaks."""
    store = Store(directory / "store.sqlite")
    for number, (state, peak) in enumerate(ends):
        store.record(
            AttemptFacts(
                token=f"r.a.{number}", signature="s", family="f", machine="m", state=str(state),
                ended=float(number), threads=1, seconds=1.0, was_alone=True,
                memory_peak_bytes=peak, profile=None,
            )
        )  # fmt: skip
    spec = job("a", signature="s", family="f", memory=memory)
    return estimate_memory(spec, NODE, store)


def test_next_run_starts_at_what_was_learned(tmp_path: Path) -> None:
    """The peak of the attempt that succeeded, whatever smaller number the user still declares."""
    ends = [(StateName.OUT_OF_MEMORY, 2 * GIB), (StateName.SUCCEEDED, 6 * GIB)]
    estimate = remembered(tmp_path, *ends, memory=2 * GIB)
    assert (estimate.source, estimate.memory) == ("history", int(6 * GIB * MEMORY_MARGIN))


def test_limit_that_was_not_enough_is_remembered(tmp_path: Path) -> None:
    """A later success of which less was seen does not pull the next reservation below it."""
    ends = [(StateName.OUT_OF_MEMORY, 4 * GIB), (StateName.SUCCEEDED, GIB)]
    estimate = remembered(tmp_path, *ends, memory=GIB)
    assert estimate.memory > 4 * GIB
    limit = memory_limit(job("a"), estimate, estimate.memory, most=NODE.memory)
    assert limit > 5 * GIB
