"""What an executor is: it starts attempts of jobs, stops them, and says once how each ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rmixer.errors import RmixerError
from rmixer.model import JobSpec, Outcome, Placement

#: The message of a `LostEnd` for an attempt that was ordered but never began.
NEVER_STARTED = "it was never started"


#: How often a suspended attempt has to be told that it is.
RENEW_SECONDS = 15.0


class ExecutionError(RmixerError):
    """A process cannot be started or watched: too many of them, no such kernel call."""


@dataclass(frozen=True, slots=True)
class End:
    """An attempt ended and nothing of it is left.

    Attributes:
        token: the attempt's.
        outcome: how it ended.
        result: what the job wrote about itself; empty if nothing.
        usage: what the operating system counted, as in ``exit.json``; empty if nothing.
    """

    token: str
    outcome: Outcome
    result: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LostEnd:
    """An attempt vanished without a word, through no fault of the job. Nothing of it is left."""

    token: str
    message: str


class Executor(Protocol):
    """Starts and stops attempts. Knows nothing of queues, retries or policies.

    Not safe for use from several threads. A token that is not running is a `KeyError`.
    """

    def start(self, spec: JobSpec, attempt_number: int, token: str, placement: Placement) -> int:
        """Start an attempt; returns the pid that stands for it.

        Raises:
            StorageError: its files cannot be written. Nothing was started, nothing is left.
            ExecutionError: no process can be made. Likewise.
        """
        ...

    def stop(self, token: str, *, force: bool, outcome: Outcome | None = None) -> None:
        """Ask an attempt to end, with ``force`` at once. Its end is then ``outcome``.

        Returns immediately; `poll` tells when nothing of it is left.
        """
        ...

    def rebook(self, token: str, placement: Placement) -> None:
        """Pin a running attempt, all of its processes and threads, to other cores.

        Where the placement has a memory limit, the attempt is held to that from now on.
        """
        ...

    def suspend(self, token: str) -> None:
        """Let all of an attempt stand still. To be said again before `RENEW_SECONDS` are over.

        An attempt of which nobody says so goes on: none is left standing by a runner that died.
        """
        ...

    def go_on(self, token: str) -> None:
        """Let a suspended attempt go on; one that runs is not disturbed."""
        ...

    def adopt(
        self, spec: JobSpec, attempt_number: int, token: str, outcome: Outcome | None = None
    ) -> int | None:
        """Take over an attempt of an earlier runner: its pid, or None if it does not run.

        In the second case `poll` tells how it ended, and it will never run. ``outcome`` is what its
        end counts as if it had been told to stop.

        Raises:
            ExecutionError: it runs and cannot be watched.
        """
        ...

    def poll(self) -> list[End | LostEnd]:
        """The attempts that have ended since the last call, each once."""
        ...

    def filenos(self) -> Sequence[int]:
        """Descriptors that become readable when `poll` has something to tell."""
        ...

    def roots(self) -> Mapping[str, int]:
        """Per running attempt the process that all of its processes are below."""
        ...

    def pids(self, token: str) -> list[int]:
        """All processes of an attempt, at this moment."""
        ...

    def close(self) -> None:
        """Let go of the descriptors. Attempts that run go on running."""
        ...
