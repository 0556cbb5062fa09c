"""Attempts as processes: each one under a shim, which outlives us if it has to."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmixer.execute import attempt
from rmixer.execute.base import NEVER_STARTED, End, ExecutionError, LostEnd
from rmixer.execute.command import build_order
from rmixer.execute.environment import inherited_environment
from rmixer.execute.logtail import read_tail
from rmixer.execute.mps import MpsDaemons
from rmixer.execute.outcome import classify
from rmixer.execute.tagged import find_tagged, kill_tagged
from rmixer.launch import mps_client, shim
from rmixer.model import JobSpec, Node, Outcome, Placement, StateName
from rmixer.monitor import boot_id, descendants, read_process
from rmixer.paths import AttemptPaths, RunPaths

logger = logging.getLogger(__name__)

ADOPT_SECONDS = 10.0
_TICK_SECONDS = 0.005
_AFFINITY_ROUNDS = 10

RESTARTED = "the machine was restarted"
SHIM_GONE = "its shim was killed"


@dataclass(slots=True)
class _Watched:
    """A running attempt."""

    spec: JobSpec
    paths: AttemptPaths
    pid: int
    pidfd: int
    process: subprocess.Popen[bytes] | None  # None: an earlier runner's child
    stopping: Outcome | None = None


class ProcessExecutor:
    """Runs attempts as processes of this machine.

    Args:
        paths: the run's files.
        node: the machine; attempts without cores of their own are pinned to all of its cores.
        grace_seconds: from SIGTERM to SIGKILL when an attempt is told to stop.
        inherited: the environment that jobs start from; None for our own.
        mps: the daemons of GPUs that are shared under MPS.
    """

    def __init__(
        self,
        paths: RunPaths,
        node: Node,
        *,
        grace_seconds: float = 10.0,
        inherited: Mapping[str, str] | None = None,
        mps: MpsDaemons | None = None,
    ) -> None:
        self._mps = mps
        self._paths, self._node, self._grace_seconds = paths, node, grace_seconds
        self._inherited = dict(inherited_environment() if inherited is None else inherited)
        self._running: dict[str, _Watched] = {}
        self._ended: list[End | LostEnd] = []
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    # --- orders ----------------------------------------------------------------------------------

    def start(self, spec: JobSpec, attempt_number: int, token: str, placement: Placement) -> int:
        """Start an attempt under a shim of its own; returns the shim's pid."""
        paths = self._attempt_paths(spec, attempt_number)
        order = build_order(
            spec,
            attempt_number,
            token,
            placement,
            paths=self._paths,
            cores=placement.cores or self._node.cores,
            grace_seconds=self._grace_seconds,
            inherited=self._inherited,
            mps=self._mps,
        )
        attempt.lay_out(paths, order.document, order.config)
        try:
            process = self._spawn(paths)
        except OSError as error:
            attempt.clear(paths, order.temporary)
            raise ExecutionError(f"job {spec.name}: no process can be started: {error}") from error
        self._running[token] = _Watched(spec, paths, process.pid, _pidfd(process.pid), process)
        return process.pid

    def stop(self, token: str, *, force: bool, outcome: Outcome | None = None) -> None:
        """SIGTERM to all of an attempt, grace, SIGKILL; with ``force`` SIGKILL at once."""
        watched = self._running[token]
        watched.stopping = outcome or Outcome(state=StateName.CANCELLED, reason="stopped")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched.pidfd, signal.SIGQUIT if force else signal.SIGTERM)

    def rebook(self, token: str, placement: Placement) -> None:
        """Pin and limit every process of an attempt, also those that start meanwhile."""
        cores = placement.cores or self._node.cores
        done: set[int] = set()
        for _ in range(_AFFINITY_ROUNDS):
            pids = self.pids(token)
            new = {thread for pid in pids for thread in _threads(pid)} - done
            if not new:
                return
            for thread in new:
                with contextlib.suppress(OSError):  # gone meanwhile
                    os.sched_setaffinity(thread, cores)
            self._limit(token, placement.memory_limit, pids)
            done |= new

    def suspend(self, token: str) -> None:
        """SIGSTOP to all of an attempt, by its shim, which takes it back if it is not renewed."""
        self._signal(token, signal.SIGUSR1)

    def go_on(self, token: str) -> None:
        """SIGCONT to all of an attempt, if it stands still."""
        self._signal(token, signal.SIGUSR2)

    def adopt(
        self, spec: JobSpec, attempt_number: int, token: str, outcome: Outcome | None = None
    ) -> int | None:
        """Watch an attempt of an earlier runner, or make sure that it never runs again."""
        paths = self._attempt_paths(spec, attempt_number)
        deadline = time.monotonic() + ADOPT_SECONDS
        while time.monotonic() < deadline:
            try:
                with attempt.claim(paths) as free:
                    if free:
                        self._settle(spec, paths, token, outcome)
                        return None
            except FileNotFoundError:  # its directory was never made
                self._report(LostEnd(token, NEVER_STARTED))
                return None
            watched = self._watch_alive(spec, paths)
            if watched is not None:
                watched.stopping = outcome
                self._running[token] = watched
                return watched.pid
            time.sleep(_TICK_SECONDS)
        raise ExecutionError(
            f"{paths.root}: is held by a process that has not said who it is for "
            f"{ADOPT_SECONDS:.0f} s; end that process, then run again"
        )

    # --- what happened ---------------------------------------------------------------------------

    def poll(self) -> list[End | LostEnd]:
        """The attempts that have ended since the last call, each once."""
        readable = select.poll()
        for watched in self._running.values():
            readable.register(watched.pidfd, select.POLLIN)
        ready = {descriptor for descriptor, _ in readable.poll(0)}
        for token, watched in list(self._running.items()):
            if watched.pidfd in ready:
                del self._running[token]
                self._ended.append(self._conclude(token, watched))
        ended, self._ended = self._ended, []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        return ended

    def filenos(self) -> Sequence[int]:
        """Readable when an attempt has ended: one pidfd per shim, and a bell for the rest."""
        return [self._bell, *(watched.pidfd for watched in self._running.values())]

    def pids(self, token: str) -> list[int]:
        """All processes of an attempt, its shim left out."""
        watched = self._running[token]
        below = descendants(watched.pid)
        return below or [pid for pid in find_tagged(token) if pid != watched.pid]

    def roots(self) -> dict[str, int]:
        """The shim of each running attempt: what to walk down from, many at once."""
        return {token: watched.pid for token, watched in self._running.items()}

    def close(self) -> None:
        """Let go of the descriptors; the shims and their jobs go on."""
        for watched in self._running.values():
            os.close(watched.pidfd)
            if watched.process is not None:
                watched.process.returncode = 0  # nobody waits for it any more
        self._running.clear()
        os.close(self._bell)

    # --- inside ----------------------------------------------------------------------------------

    def _signal(self, token: str, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._running[token].pidfd, number)

    def _limit(self, token: str, limit: int, pids: Sequence[int]) -> None:
        """Set the limit of an attempt's cage, where there is one."""
        cage = attempt.cage_of(self._running[token].paths)
        if cage is None or not limit:
            return
        try:
            cage.resize(limit, pids)
        except OSError as error:  # it has just ended, mostly
            logger.info("%s: its memory limit stays as it is: %s", token, error)

    def _attempt_paths(self, spec: JobSpec, number: int) -> AttemptPaths:
        return self._paths.job(spec.id).attempt(number)

    def _spawn(self, paths: AttemptPaths) -> subprocess.Popen[bytes]:
        """Start the shim. Signals for it wait until it takes them: none is lost, none kills it."""
        held = shim.WATCHED | shim.IGNORED
        with paths.log.open("ab") as log:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
            try:
                return subprocess.Popen(
                    [sys.executable, "-I", "-S", shim.__file__, os.fspath(paths.root.absolute())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._inherited,
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _report(self, end: End | LostEnd) -> None:
        self._ended.append(end)
        os.eventfd_write(self._bell, 1)

    def _conclude(self, token: str, watched: _Watched) -> End | LostEnd:
        """The shim is gone: what did it leave?"""
        os.close(watched.pidfd)
        code = watched.process.wait() if watched.process is not None else None
        ended = attempt.read_document(watched.paths.exit)
        if ended is not None:
            end = _end(token, watched.spec, watched.paths, ended, watched.stopping)
            return self._judge(end, watched.paths)
        message = SHIM_GONE if code is None else f"{SHIM_GONE} ({_code_text(code)})"
        return _lost(token, watched.paths, message)

    def _judge(self, end: End, paths: AttemptPaths) -> End:
        """The end of a client of MPS as it counts."""
        if self._mps is None or end.outcome.state != StateName.FAILED:
            return end
        words = (attempt.read_document(paths.order) or {}).get("mps")
        return replace(end, outcome=self._mps.judge(end.outcome, words))

    def _settle(
        self, spec: JobSpec, paths: AttemptPaths, token: str, stopping: Outcome | None
    ) -> None:
        """No shim is alive, and we hold its lock: report its end, or forbid it for good."""
        ended = attempt.read_document(paths.exit)
        if ended is not None:
            self._report(self._judge(_end(token, spec, paths, ended, stopping), paths))
            return
        attempt.revoke(paths)
        started = attempt.read_document(paths.started)
        if started is None:
            self._report(_lost(token, paths, NEVER_STARTED))
        elif started.get("boot_id") != boot_id():
            self._report(_lost(token, paths, RESTARTED))
        else:
            self._report(_lost(token, paths, SHIM_GONE))

    def _watch_alive(self, spec: JobSpec, paths: AttemptPaths) -> _Watched | None:
        """The living shim that holds the lock, once it has said who it is."""
        started = attempt.read_document(paths.started)
        if started is None or started.get("boot_id") != boot_id():
            return None
        try:
            descriptor = os.pidfd_open(started["pid"])
        except OSError:
            return None
        now = read_process(started["pid"])
        if now is None or now.start_time != started["start_time"]:
            os.close(descriptor)
            return None
        return _Watched(spec, paths, started["pid"], descriptor, None)


def _end(
    token: str,
    spec: JobSpec,
    paths: AttemptPaths,
    ended: dict[str, Any],
    stopping: Outcome | None,
) -> End:
    outcome = classify(ended, read_tail(paths.log), stopping, ours=spec.kind == "model")
    _clear_cage(paths)  # mostly gone: its shim has done it
    return End(token, outcome, attempt.read_document(paths.result) or {}, ended)


def _lost(token: str, paths: AttemptPaths, message: str) -> LostEnd:
    """The end of an attempt without a shim; what it has left goes first."""
    words = (attempt.read_document(paths.order) or {}).get("mps")
    if words:  # a client that is killed with work in flight may damage its neighbours
        with contextlib.suppress(OSError):
            mps_client.terminate(words, find_tagged(token))
    left = kill_tagged(token)
    _clear_cage(paths)
    attempt.remove_scratch(paths)
    if left:
        message += f"; processes {', '.join(map(str, left))} do not end"
    return LostEnd(token, message)


def _clear_cage(paths: AttemptPaths) -> None:
    """End what is left in an attempt's memory cage, and remove it."""
    cage = attempt.cage_of(paths)
    try:
        if cage is not None:
            cage.clear()
    except OSError as error:
        logger.warning("%s: its memory cage is left: %s", paths.root, error)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        os.kill(pid, signal.SIGQUIT)
        raise ExecutionError(f"cannot watch process {pid}: {error.strerror}") from error


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []


def _code_text(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit {code}"
