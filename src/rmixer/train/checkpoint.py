"""Checkpoints of a training: whole or not there, checked when read, two of them at most.

    CHECKPOINTS/
      000001200.pt      weights, optimizer, random state, where in the data; by step
      000001200.json    size and CRC-32 of it, whose it is; written after it

A checkpoint counts once its ``.json`` is there, which is renamed into place after everything else
is on disk. The newest two are kept, so that a damaged one costs only the steps in between. They are
of one job: ``identity`` says of which (`rmixer.train.worker`); those of another one are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

KEPT = 2
#: Saving may take this share of the time of a training, and happens at most so often, seconds.
SHARE, SHORTEST_SECONDS = 0.02, 60.0
_VERSION = 1


class Checkpoints:
    """The checkpoints of one job.

    Args:
        folder: made when the first is written.
        identity: of the job: what must be equal for another attempt to go on from one.
        say: gets a line for people when something is not right.
    """

    def __init__(
        self, folder: Path, identity: str, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder, self.identity, self.say = folder, identity, say
        self.cost_seconds = 0.0
        self._due = time.monotonic() + SHORTEST_SECONDS

    def is_due(self) -> bool:
        """Whether it is time for the next one: the dearer the last was, the later."""
        return time.monotonic() >= self._due

    def save(self, step: int, state: Mapping[str, Any]) -> bool:
        """Write a checkpoint, then drop the oldest. A training goes on if it cannot be written."""
        began = time.monotonic()
        name = f"{step:09d}"
        part = self.folder / f".{name}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                counted = _Counted(file)
                torch.save(dict(state), cast("IO[bytes]", counted))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.folder / f"{name}.pt")
            self._describe(name, counted)
            self._drop(keep=KEPT)
        except (OSError, RuntimeError) as error:  # torch hides what its file said
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            why = error.strerror if isinstance(error, OSError) else error
            self.say(f"no checkpoint at step {step}: {why}; going on")
            return False
        finally:
            self.cost_seconds = time.monotonic() - began
            self._due = time.monotonic() + max(SHORTEST_SECONDS, self.cost_seconds / SHARE)
        return True

    def load(self) -> dict[str, Any] | None:
        """The newest state that is whole and of this job; None if there is none."""
        for name in sorted(self._names(), reverse=True):
            why = self._fault(name)
            if why is None:
                path = self.folder / f"{name}.pt"
                try:
                    state: dict[str, Any] = torch.load(path, weights_only=True)
                except Exception as error:  # noqa: BLE001 - whatever is wrong with it, another may do
                    why = str(error)
                else:
                    return state
            self.say(f"checkpoint of step {int(name)} is not used: {why}")
        return None

    def remove(self) -> None:
        """Drop all of them: the training is done."""
        self._drop(keep=0)
        if self.folder.exists() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    # --- inside -----------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [path.stem for path in self.folder.glob("*.json") if path.stem.isdigit()]

    def _describe(self, name: str, counted: _Counted) -> None:
        said = {
            "version": _VERSION,
            "identity": self.identity,
            "bytes": counted.size,
            "crc32": counted.crc,
        }
        part = self.folder / f".{name}.json.part"
        with part.open("w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.folder / f"{name}.json")
        _sync(self.folder)

    def _fault(self, name: str) -> str | None:
        """Why a checkpoint cannot be used, or None."""
        try:
            said = json.loads((self.folder / f"{name}.json").read_text())
            crc = size = 0
            with (self.folder / f"{name}.pt").open("rb") as file:
                while block := file.read(1 << 22):
                    crc, size = zlib.crc32(block, crc), size + len(block)
            if (said["version"], said["identity"]) != (_VERSION, self.identity):
                return "it is of another job"
            if (said["bytes"], said["crc32"]) != (size, crc):
                return "it is damaged"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"it cannot be read: {error}"
        return None

    def _drop(self, keep: int) -> None:
        """Remove all but the newest, each first as what counts, and what was left half-written."""
        names = sorted(self._names())
        kept = names[len(names) - keep :] if keep else []
        for path in sorted(self.folder.glob("*"), key=lambda path: path.suffix == ".pt"):
            if path.suffix in (".pt", ".json", ".part") and path.stem not in kept:
                path.unlink(missing_ok=True)


class _Counted:
    """A file that counts what is written to it, and its CRC-32."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = self.crc = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        written = len(memoryview(data).cast("B"))
        self.size, self.crc = self.size + written, zlib.crc32(data, self.crc)
        return written

    def flush(self) -> None:
        self._file.flush()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
