"""What outlives a run: measured peaks, profiles, solo times. SQLite in WAL mode.

The store only makes the next run better; a run never fails for it. Where it is locked or damaged, a
warning is logged and the run goes on with what it knows.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rmixer.model import CPU, Profile

logger = logging.getLogger(__name__)
T = TypeVar("T")

_BUSY_SECONDS = 2.0
#: A database that could not answer so many times in a row is not asked again.
_PATIENCE = 3
_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
  token TEXT PRIMARY KEY,
  signature TEXT NOT NULL,
  family TEXT NOT NULL,
  machine TEXT NOT NULL,
  state TEXT NOT NULL,
  ended REAL NOT NULL,
  threads INTEGER,
  seconds REAL NOT NULL,
  was_alone INTEGER NOT NULL,
  memory_peak_bytes INTEGER NOT NULL,
  profile TEXT,
  device_peak_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS attempts_signature ON attempts (signature, machine);
CREATE INDEX IF NOT EXISTS attempts_family ON attempts (family, machine);
CREATE TABLE IF NOT EXISTS machines (
  machine TEXT PRIMARY KEY,
  memory_bandwidth REAL NOT NULL,
  measured REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS peaks (
  machine TEXT PRIMARY KEY,
  core_flops REAL NOT NULL,
  measured REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS profiles (
  signature TEXT NOT NULL,
  family TEXT NOT NULL,
  machine TEXT NOT NULL,
  source TEXT NOT NULL,
  profile TEXT NOT NULL,
  measured REAL NOT NULL,
  PRIMARY KEY (signature, machine, source)
);
CREATE INDEX IF NOT EXISTS profiles_family ON profiles (family, machine);
CREATE TABLE IF NOT EXISTS baselines (
  key TEXT PRIMARY KEY,
  anonymous_bytes INTEGER NOT NULL,
  file_bytes INTEGER NOT NULL,
  measured REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS contexts (
  key TEXT PRIMARY KEY,
  bytes INTEGER NOT NULL,
  measured REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS estimates (
  token TEXT PRIMARY KEY,
  source TEXT NOT NULL,
  estimated_bytes INTEGER NOT NULL,
  measured_bytes INTEGER NOT NULL,
  ended REAL NOT NULL
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What is kept of one attempt.

    Attributes:
        token: unique; the same attempt stored twice is stored once.
        signature: of the job.
        family: of the job.
        machine: where it ran (name and number of cores).
        state: how it ended.
        ended: unix time.
        threads: threads it was given; None: the program's own default.
        seconds: from start to end.
        was_alone: whether nothing else of ours ran meanwhile.
        memory_peak_bytes: highest host memory of its process tree.
        device_peak_bytes: highest memory on its GPU; 0 on the CPU, and where not measured.
        profile: what it was seen to use.
    """

    token: str
    signature: str
    family: str
    machine: str
    state: str
    ended: float
    threads: int | None
    seconds: float
    was_alone: bool
    memory_peak_bytes: int
    profile: Profile | None
    device_peak_bytes: int = 0


class Store:
    """The database. Every method answers with what is empty where the database cannot.

    Args:
        path: the file; created with its directory if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._usable = True
        self._failures = 0
        self._attempt(_prepare, None)

    def record(self, facts: AttemptFacts) -> None:
        """Keep what an attempt showed."""
        values = asdict(facts) | {
            "profile": json.dumps(asdict(facts.profile)) if facts.profile else None
        }
        self._keep("attempts", values)

    def memory_peak(self, signature: str, family: str) -> int | None:
        """The highest measured peak of the signature, else of its family, else None; bytes."""
        return self._highest("memory_peak_bytes", signature, family)

    def device_peak(self, signature: str, family: str) -> int | None:
        """The same of the memory on a GPU."""
        return self._highest("device_peak_bytes", signature, family)

    def _highest(self, figure: str, signature: str, family: str) -> int | None:
        for column, value in (("signature", signature), ("family", family)):
            peak = self._one(
                f"SELECT MAX({figure}) FROM attempts WHERE {column} = ?",  # noqa: S608
                (value,),
            )
            if value and peak:
                return int(peak)
        return None

    def profile(self, signature: str, family: str, machine: str) -> Profile | None:
        """The newest profile of the signature, else of its family at lower confidence."""
        for column, value, confidence in (("signature", signature, 1.0), ("family", family, 0.5)):
            found = self._one(
                f"SELECT profile FROM attempts WHERE {column} = ? AND machine = ?"  # noqa: S608
                " AND profile IS NOT NULL ORDER BY ended DESC LIMIT 1",
                (value, machine),
            )
            profile = _profile(found) if value and found else None
            if profile is not None:
                solo = self.solo_seconds(signature, machine)
                return replace(profile, source="history", confidence=confidence, solo_seconds=solo)
        return None

    def keep_profile(
        self, signature: str, family: str, machine: str, profile: Profile, now: float
    ) -> None:
        """Remember a profile that was not seen in a run: the newest of each source counts."""
        names = {"signature": signature, "family": family, "machine": machine}
        row = {"source": profile.source, "profile": json.dumps(asdict(profile)), "measured": now}
        self._keep("profiles", names | row)

    def kept_profiles(self, signature: str, family: str, machine: str) -> tuple[Profile, ...]:
        """What `keep_profile` was given for the signature, else for its family: half as sure.

        One of each source, the newest.
        """
        for column, value, confidence in (("signature", signature, 1.0), ("family", family, 0.5)):
            rows = self._rows(
                "SELECT source, profile FROM profiles"  # noqa: S608
                f" WHERE {column} = ? AND machine = ? ORDER BY measured",
                (value, machine),
            )
            newest = {source: _profile(text) for source, text in rows} if value else {}
            found = [profile for profile in newest.values() if profile is not None]
            if found:
                return tuple(replace(p, confidence=p.confidence * confidence) for p in found)
        return ()

    def solo_seconds(self, signature: str, machine: str) -> float | None:
        """The job's measured time alone at its best thread count: the shortest of the medians."""
        rows = self._rows(
            "SELECT threads, seconds FROM attempts WHERE signature = ? AND machine = ?"
            " AND was_alone AND state = 'SUCCEEDED'",
            (signature, machine),
        )
        by_threads: dict[int | None, list[float]] = {}
        for threads, seconds in rows:
            by_threads.setdefault(threads, []).append(seconds)
        medians = [sorted(times)[len(times) // 2] for times in by_threads.values()]
        return min(medians, default=None)

    def memory_bandwidth(self, machine: str, measure: Callable[[], float], now: float) -> float:
        """The machine's memory bandwidth: measured once, then remembered; bytes per second."""
        known = self._one("SELECT memory_bandwidth FROM machines WHERE machine = ?", (machine,))
        if known:
            return float(known)
        measured = measure()
        row = {"machine": machine, "memory_bandwidth": measured, "measured": now}
        self._keep("machines", row)
        return measured

    def core_flops(self, machine: str, measure: Callable[[], float], now: float) -> float:
        """What one core computes: measured once, then remembered; FLOPs per second."""
        known = self._one("SELECT core_flops FROM peaks WHERE machine = ?", (machine,))
        if known:
            return float(known)
        measured = measure()
        self._keep("peaks", {"machine": machine, "core_flops": measured, "measured": now})
        return measured

    # --- estimates --------------------------------------------------------------------------

    def baseline(self, key: str) -> tuple[int, int] | None:
        """Memory of a warm process without tensors, if it was measured: anonymous, file; bytes."""
        query = "SELECT anonymous_bytes, file_bytes FROM baselines WHERE key = ?"
        rows = self._rows(query, (key,))
        return (int(rows[0][0]), int(rows[0][1])) if rows else None

    def keep_baseline(self, key: str, memory: tuple[int, int], now: float) -> None:
        """Remember what `baseline` answers."""
        sizes = dict(zip(("anonymous_bytes", "file_bytes"), memory, strict=True))
        self._keep("baselines", {"key": key, **sizes, "measured": now})

    def context(self, key: str) -> int | None:
        """Bytes of a CUDA context, if it was measured."""
        found = self._one("SELECT bytes FROM contexts WHERE key = ?", (key,))
        return int(found) if found else None

    def keep_context(self, key: str, size: int, now: float) -> None:
        """Remember what `context` answers."""
        self._keep("contexts", {"key": key, "bytes": size, "measured": now})

    def keep_error(
        self, token: str, source: str, estimated: int, measured: int, now: float
    ) -> None:
        """Remember how an estimate compared with what was measured; bytes."""
        sizes = {"estimated_bytes": estimated, "measured_bytes": measured}
        self._keep("estimates", {"token": token, "source": source, **sizes, "ended": now})

    def estimate_errors(self, source: str) -> tuple[float, ...]:
        """Measured / estimated of the newest estimates of a source, oldest first."""
        rows = self._rows(
            "SELECT measured_bytes, estimated_bytes FROM estimates WHERE source = ?"
            " AND measured_bytes > 0 AND estimated_bytes > 0 ORDER BY ended DESC LIMIT 500",
            (source,),
        )
        return tuple(measured / estimated for measured, estimated in reversed(rows))

    # --- inside -----------------------------------------------------------------------------

    def _keep(self, table: str, row: Mapping[str, Any]) -> None:
        """Put a row in place of the one with its key."""
        marks = ", ".join(f":{name}" for name in row)
        columns = ", ".join(row)
        statement = f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608
        self._attempt(lambda db: db.execute(statement, row), None)

    def _one(self, query: str, values: tuple[Any, ...]) -> Any:
        rows = self._rows(query, values)
        return rows[0][0] if rows else None

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        return self._attempt(lambda db: db.execute(query, values).fetchall(), [])

    def _attempt(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        if not self._usable:
            return otherwise
        try:
            with self._connect() as database:
                answer = work(database)
        except sqlite3.DatabaseError as error:
            if type(error) is sqlite3.DatabaseError:  # the others say what was asked, not the file
                self._set_aside(error)
            else:
                self._fail(str(error))
        except OSError as error:
            self._usable = False
            self._fail(error.strerror or str(error))
        else:
            self._failures = 0
            return answer
        return otherwise

    def _fail(self, why: str) -> None:
        """Go on without an answer; after a few in a row without the database."""
        self._failures += 1
        if self._failures >= _PATIENCE:  # each may have waited for a lock
            self._usable = False
        logger.warning("%s: %s; going on without it", self.path, why)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=_BUSY_SECONDS)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            with database:
                yield database

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """A damaged file is kept under another name and a new one is begun."""
        damaged = self.path.with_name(self.path.name + ".damaged")
        try:
            self.path.replace(damaged)
            for suffix in ("-wal", "-shm"):  # they belong to the old one; a new one would read them
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            with self._connect() as database:
                _prepare(database)
        except (OSError, sqlite3.Error):
            self._usable = False
        logger.warning("%s: %s; kept as %s, a new one is begun", self.path, error, damaged.name)


def _prepare(database: sqlite3.Connection) -> None:
    """Make the tables; give those of an earlier version the columns that they lack."""
    database.executescript(_SCHEMA)
    columns = {row[1] for row in database.execute("PRAGMA table_info(attempts)")}
    if "device_peak_bytes" not in columns:
        database.execute(
            "ALTER TABLE attempts ADD COLUMN device_peak_bytes INTEGER NOT NULL DEFAULT 0"
        )


def _profile(text: str) -> Profile | None:
    try:
        fields = json.loads(text)
        speeds = {int(threads): float(speed) for threads, speed in fields.pop("speeds", {}).items()}
        return Profile(**fields, speeds=speeds)
    except (AttributeError, TypeError, ValueError):  # written by another version
        return None


def machine_key(name: str, cores: int, kind: str = CPU) -> str:
    """What profiles are kept under: the machine, the cores in use, the kind of device."""
    return f"{name}/{cores}/{kind}"
