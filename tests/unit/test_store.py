"""What outlives a run: it helps the next one, and never fails it."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from rmixer.model import JobSpec, Node, Profile
from rmixer.resources import GIB
from rmixer.runner.admit import DEFAULT_MEMORY, admit, estimate_memory
from rmixer.store import AttemptFacts, Store

PROFILE = Profile(demand={"cores": 0.4}, step_seconds=0.01, memory=5)
FACTS = AttemptFacts(
    token="t1", signature="s1", family="f1", machine="m", state="SUCCEEDED", ended=1.0, threads=1,
    seconds=20.0, was_alone=False, memory_peak_bytes=700, profile=PROFILE,
)  # fmt: skip
NODE = Node(cores=(0, 1), memory=8 * GIB)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep" / "store.sqlite")


def test_peaks_by_signature_then_by_family(store: Store) -> None:
    """A job's own peak counts; one that never ran is told its family's; a stranger nothing."""
    store.record(FACTS)
    store.record(replace(FACTS, token="t2", signature="s2", memory_peak_bytes=900))
    assert store.memory_peak("s1", "f1") == 700
    assert store.memory_peak("s3", "f1") == 900
    assert store.memory_peak("s3", "f3") is None
    assert store.memory_peak("", "") is None


def test_peaks_on_a_gpu_are_kept_apart(store: Store) -> None:
    """A run on the CPU says nothing of the GPU."""
    store.record(FACTS)
    assert store.device_peak("s1", "f1") is None
    store.record(replace(FACTS, token="t2", signature="s2", device_peak_bytes=3000))
    assert store.device_peak("s1", "f1") == 3000
    assert store.memory_peak("s1", "f1") == 700


def test_a_store_of_an_earlier_version_is_carried_on(tmp_path: Path) -> None:
    """Its table lacks a column; what was measured is kept."""
    path = tmp_path / "store.sqlite"
    Store(path).record(FACTS)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE attempts DROP COLUMN device_peak_bytes")
    database.close()
    store = Store(path)
    store.record(replace(FACTS, token="t2", signature="s2", device_peak_bytes=3000))
    assert store.memory_peak("s1", "") == 700
    assert store.device_peak("s2", "") == 3000


def test_a_profile_comes_back_with_its_confidence(store: Store) -> None:
    """The same signature: full confidence; the family: half; another machine: nothing."""
    store.record(FACTS)
    own, family = store.profile("s1", "f1", "m"), store.profile("s9", "f1", "m")
    assert own == replace(PROFILE, source="history", confidence=1.0)
    assert family is not None
    assert family.confidence == 0.5
    assert store.profile("s1", "f1", "another") is None


def test_solo_is_the_best_thread_count_alone(store: Store) -> None:
    """Only runs alone count; of the thread counts the one with the shortest median."""
    for token, threads, seconds in (("a", 1, 30.0), ("b", 2, 22.0), ("c", 2, 24.0), ("d", 2, 26.0)):
        store.record(replace(FACTS, token=token, threads=threads, seconds=seconds, was_alone=True))
    store.record(replace(FACTS, token="e", seconds=1.0, was_alone=False))
    store.record(replace(FACTS, token="f", seconds=2.0, was_alone=True, state="FAILED"))
    assert store.solo_seconds("s1", "m") == 24.0


def test_an_attempt_is_kept_once(store: Store) -> None:
    """The same token again replaces what was there."""
    store.record(FACTS)
    store.record(replace(FACTS, memory_peak_bytes=100))
    assert store.memory_peak("s1", "f1") == 100


def test_bandwidth_is_measured_once(store: Store) -> None:
    """The second run on a machine does not measure again."""
    measured = iter([5e9])
    for _ in range(2):
        assert store.memory_bandwidth("m", lambda: next(measured), now=0.0) == 5e9


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is kept under another name, a warning names it, and a new one works."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database " * 1000)
    with caplog.at_level(logging.WARNING):
        store = Store(path)
        store.record(FACTS)
    assert store.memory_peak("s1", "f1") == 700
    assert (tmp_path / "store.sqlite.damaged").exists()
    assert "store.sqlite" in caplog.text


def test_without_a_directory_it_knows_nothing(tmp_path: Path) -> None:
    """A file where the directory should be: every question has an empty answer."""
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "store.sqlite")
    store.record(FACTS)
    assert store.memory_peak("s1", "f1") is None


def test_a_locked_file_is_gone_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the database: a warning, and an empty answer."""
    monkeypatch.setattr("rmixer.store._BUSY_SECONDS", 0.01)
    path = tmp_path / "store.sqlite"
    store = Store(path)
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING):
        store.record(FACTS)
    assert "locked" in caplog.text
    holder.rollback()
    holder.close()


@pytest.mark.parametrize(
    ("hint", "peak", "memory", "source"),
    [
        (None, None, DEFAULT_MEMORY, "default"),
        (3 * GIB, None, 3 * GIB, "hint"),
        (None, 2 * GIB, int(2 * GIB * 1.2), "history"),
        (GIB, 2 * GIB, int(2 * GIB * 1.2), "history"),
        (3 * GIB, 2 * GIB, 3 * GIB, "hint"),
        (None, 100 * GIB, 8 * GIB, "history"),
    ],
)
def test_reservations(
    store: Store, hint: int | None, peak: int | None, memory: int, source: str
) -> None:
    """A measured peak with its margin, a hint where it is larger, else the default."""
    if peak:
        store.record(replace(FACTS, memory_peak_bytes=peak))
    spec = JobSpec(id="a", name="a", kind="command", signature="s1", family="f1", memory=hint)
    estimate = estimate_memory(spec, NODE, store)
    assert (estimate.memory, estimate.source) == (memory, source)
    (admitted,) = admit([spec], NODE, store)
    assert admitted.estimate == estimate


def test_it_is_in_wal_mode(store: Store) -> None:
    """A report can be read while a run writes."""
    with sqlite3.connect(store.path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_a_lock_that_stays_is_waited_for_a_few_times_only(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of jobs do not each wait for it: after three warnings the run goes on without."""
    monkeypatch.setattr("rmixer.store._BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(store.path)
    holder.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            store.record(FACTS)
    holder.rollback()
    holder.close()
    assert len(caplog.records) == 3
    assert store.memory_peak("s1", "f1") is None


def test_a_damaged_files_log_is_not_read_into_the_new_one(tmp_path: Path) -> None:
    """What a crash left in the write-ahead log of a damaged file goes with that file."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database " * 1000)
    leftover = tmp_path / "store.sqlite-wal"
    leftover.write_bytes(b"old pages")
    store = Store(path)
    store.record(FACTS)
    assert store.memory_peak("s1", "f1") == 700
    assert not leftover.exists() or leftover.read_bytes() != b"old pages"


def test_a_question_that_is_wrong_does_not_cost_the_file(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that the schema refuses is warned of; the rows that are there stay."""
    store.record(FACTS)
    with caplog.at_level(logging.WARNING):
        store.record(replace(FACTS, token="t9", signature=None))  # type: ignore[arg-type]
    assert "NOT NULL" in caplog.text
    assert store.memory_peak("s1", "f1") == 700
