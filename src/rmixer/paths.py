"""The one owner of file names: a run's folder, the store, the cache. Nothing else builds paths.

runs/NAME/                          one run (kept as NAME.1, NAME.2 ... when a new one begins)
  lock                              held by the runner; its pid, and whether the report is written
  jobs.yaml                         the jobs file as it was
  events.jsonl  samples.jsonl       the truth; telemetry
  report.json  report.html
  jobs/ID/
    model/                          weights, configuration, vocabulary of a finished training
    checkpoints/                    of our trainer; `checkpoint` of a program that says `rmixer.job`
    attempts/N/
      order.json                    what the shim starts (mode 0600)
      lock  revoked                 one shim, once: see launch/shim.py
      started.json  exit.json       pid, start time, boot id, memory cage; how it ended
      log.txt  progress  result.json
      scratch/                      TMPDIR of the attempt, removed at its end
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

RUNS_DIR = "runs"


def state_dir() -> Path:
    """Where what outlives a run is kept: ``$RMIXER_HOME``, else the XDG state directory."""
    home = os.environ.get("RMIXER_HOME")
    if home:
        return Path(home)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "rmixer"


def store_path() -> Path:
    """The database of peaks, profiles and history."""
    return state_dir() / "store.sqlite"


def cache_dir() -> Path:
    """Where parsed data sets are kept: ``$RMIXER_CACHE``, else the XDG cache directory."""
    cache = os.environ.get("RMIXER_CACHE")
    if cache:
        return Path(cache)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rmixer" / "data"


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """The files of one attempt of a job."""

    root: Path

    @property
    def order(self) -> Path:
        return self.root / "order.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def revoked(self) -> Path:
        return self.root / "revoked"

    @property
    def started(self) -> Path:
        return self.root / "started.json"

    @property
    def exit(self) -> Path:
        return self.root / "exit.json"

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    @property
    def progress(self) -> Path:
        return self.root / "progress"

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The files of one job."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def checkpoint(self) -> Path:
        """Of a program that is not ours."""
        return self.checkpoints / "checkpoint"

    def attempt(self, number: int) -> AttemptPaths:
        """The files of the attempt of that number, from 1."""
        return AttemptPaths(self.root / "attempts" / str(number))


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The files of one run."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def jobs_file(self) -> Path:
        return self.root / "jobs.yaml"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def report_json(self) -> Path:
        return self.root / "report.json"

    @property
    def report_html(self) -> Path:
        return self.root / "report.html"

    def mps_log(self, index: int | None) -> Path:
        """Where the MPS daemon of that GPU writes its logs."""
        return self.root / "mps" / f"gpu-{index}"

    def job(self, id: str) -> JobPaths:  # noqa: A002
        """The files of the job of that id."""
        return JobPaths(self.root / "jobs" / id)
