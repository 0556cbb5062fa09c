"""The shim: starts one attempt of a job, stays with it, and writes down how it ended.

    python -I -S shim.py ATTEMPT_DIR

Standard library only, Python 3.8 or newer, nothing of rmixer. It runs in a session of its own and
outlives the process that started it. Its standard output and error are the attempt's log.

No attempt ever runs twice, and none is forgotten: the shim holds a lock on ``lock`` for its whole
life, and runs nothing if ``revoked``, ``started.json`` or ``exit.json`` is there. It is the
subreaper of all that the job spawns, so daemons and re-parented workers come to it, and it ends
only when none of them is left. Where the order has a memory limit, all of that is in a cage, which
cage.py beside this file makes. Signals to the shim: SIGTERM stops the job (SIGTERM to all of it,
grace, SIGKILL), SIGQUIT kills it at once, SIGUSR1 lets all of it stand still (SIGSTOP) and SIGUSR2
go on; SIGINT and SIGHUP do nothing. Who wants a job to stand still says so again and again: after
`STAND_SECONDS` without a word it goes on, so that no job is left standing by a runner that died.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any, Callable, Dict

Document = Dict[str, Any]

# The names of `rmixer.paths.AttemptPaths`; a test keeps the two equal.
ORDER = "order.json"
LOCK = "lock"
REVOKED = "revoked"
STARTED = "started.json"
EXIT = "exit.json"
SCRATCH = "scratch"
#: Files are written under this suffix and renamed. Made beforehand with `RESERVE_BYTES` in them,
#: they can be written when the disk is full.
RESERVE_SUFFIX = ".tmp"
RESERVE_BYTES = 4096

#: Exit codes of the shim itself: the attempt was run; it was not for this shim to run.
RAN, REFUSED = 0, 75
#: Exit codes of a program that cannot be started, as shells have them.
NOT_FOUND, NOT_EXECUTABLE = 127, 126

PR_SET_CHILD_SUBREAPER = 36
OOM_SCORE_RAISE = 500  # of 1000: the kernel takes jobs before anything of ours
SETTLE_SECONDS = 0.1  # what the main process leaves behind may end by itself
SURVIVOR_GRACE_SECONDS = 2.0  # from then on: SIGTERM, this long, SIGKILL
KILL_TICK_SECONDS = 0.02
WRITE_RETRY_SECONDS = 0.5
SIGNAL_ROUNDS = 1000  # a tree that forks faster than this many walks meets the next tick

STAND_SECONDS = 60.0

WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
IGNORED = {signal.SIGINT, signal.SIGHUP, signal.SIGPIPE}


def main(directory: str) -> int:
    """Run the attempt whose order lies in ``directory``, unless it is taken, done or revoked."""
    take_signals()
    lock = claim(directory)
    if lock is None:
        return REFUSED
    with open(os.path.join(directory, ORDER), encoding="utf-8") as file:
        order = json.load(file)
    started = identity(order["token"])
    write(directory, STARTED, started)
    become_subreaper()
    watch = Watch(float(order.get("grace_seconds", 10.0)), order.get("mps"))
    cage = make_cage(order, lambda about: note(directory, dict(started, cage=about)))
    oom_kills = count_oom_kills()
    error = watch.start(order, cage)
    if cage is not None and not cage.is_there():  # it could not be entered
        cage = None
    about = cage.document() if cage is not None else None
    note(directory, dict(started, cage=about, job_pid=watch.main))
    watch.until_nothing_is_left()
    oom_kills = count_oom_kills() - oom_kills
    remove_scratch(directory, order.get("temporary"))
    write_end(directory, watch.document(order["token"], error, oom_kills, close_cage(cage)))
    return RAN


# --- one shim, once -------------------------------------------------------------------------------


def claim(directory: str) -> int | None:
    """The descriptor of the held lock, or None if the attempt is not for this shim to run."""
    descriptor = os.open(
        os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    if any(os.path.exists(os.path.join(directory, name)) for name in (REVOKED, STARTED, EXIT)):
        return None
    return descriptor


def identity(token: str) -> Document:
    """Who this shim is: a pid alone can be another process tomorrow."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return {
        "pid": os.getpid(),
        "start_time": int(fields[19]),  # field 22 of proc(5), in clock ticks since boot
        "boot_id": boot_id,
        "token": token,
        "wall": time.time(),
    }


def write(directory: str, name: str, document: Document, sync: bool = False) -> None:
    """Write a file whole or not at all, into the space that was reserved for it."""
    path = os.path.join(directory, name)
    data = json.dumps(document).encode("ascii")
    descriptor = os.open(path + RESERVE_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.ftruncate(descriptor, len(data))
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(path + RESERVE_SUFFIX, path)


def note(directory: str, document: Document) -> None:
    """Write ``started.json`` anew; the job runs also where that cannot be done."""
    try:
        write(directory, STARTED, document)
    except OSError as problem:
        say("cannot write %s: %s" % (STARTED, problem))


def write_end(directory: str, document: Document) -> None:
    """Write ``exit.json``; on a full disk try until there is room, or SIGQUIT, or no directory."""
    told = False
    while os.path.isdir(directory):
        try:
            write(directory, EXIT, document, sync=True)
        except OSError as problem:
            if not told:
                say("cannot write %s: %s; trying until it can be" % (EXIT, problem))
                told = True
            if signal.sigtimedwait({signal.SIGQUIT}, WRITE_RETRY_SECONDS) is not None:
                return
        else:
            return


def say(text: str) -> None:
    """A line in the log; a log that cannot be written stops nothing."""
    with contextlib.suppress(OSError):
        os.write(2, ("rmixer: %s\n" % text).encode("utf-8", "replace"))


# --- the process that becomes the job -------------------------------------------------------------


def take_signals() -> None:
    """Signals wait to be fetched; those that are not for the shim are dropped.

    Whoever starts the shim may have blocked them, so that none is lost while Python starts, or may
    have ignored SIGCHLD, which would take the children's end from us.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for number in WATCHED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, WATCHED)


def become_subreaper() -> None:
    """Take in what the job orphans, however often it forks and whatever session it opens."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "cannot become a subreaper: %s" % os.strerror(code))


def become_job(order: Document, cage: Any) -> None:
    """Turn this process into the job. Returns only by raising OSError."""
    os.setsid()
    quietly(raise_oom_score)
    if order.get("nice"):
        quietly(os.nice, int(order["nice"]))
    if order.get("cores"):
        quietly(os.sched_setaffinity, 0, order["cores"])
    if cage is not None:
        quietly(enter_memory_cage, cage)
    environment = dict(os.environb)
    for name, value in order.get("env", {}).items():
        if value is None:
            environment.pop(os.fsencode(name), None)
        else:
            environment[os.fsencode(name)] = os.fsencode(value)
    os.chdir(order["cwd"])
    default_signals()
    os.execvpe(order["argv"][0], order["argv"], environment)  # noqa: S606


def default_signals() -> None:
    """A runner started with ``&`` or nohup ignores SIGINT; its jobs must not inherit that."""
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # SIGKILL, SIGSTOP, and those of the C library
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def raise_oom_score() -> None:
    """Where memory runs out, the job goes before the runner and the shims."""
    with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + OOM_SCORE_RAISE)
        file.seek(0)
        file.write(str(score))


def quietly(function: Callable[..., object], *args: object) -> None:
    """Call it; what the machine refuses is said in the log, and the job runs all the same."""
    try:
        function(*args)
    except (OSError, ValueError) as problem:
        say("%s: %s" % (function.__name__, problem))


# --- watching -------------------------------------------------------------------------------------


class Watch:
    """The job's processes, from the first to the last."""

    def __init__(self, grace_seconds: float, mps: Document | None = None) -> None:
        self.grace_seconds = grace_seconds
        self.mps = mps  # how the MPS daemon that the job is a client of is asked
        self.taken_off: set[int] = set()
        self.main = 0
        self.status: int | None = None  # of the main process, once it has ended
        self.stopped = False
        self.survivors: set[int] = set()
        self.began = self.ended = time.monotonic()
        self.ended_at = 0.0
        self.terminate_at: float | None = None  # when SIGTERM is due; None: not, or done
        self.kill_at: float | None = None  # when SIGKILL is due; None: the job runs
        self.stands_since: float | None = None  # None: it does not stand still
        self.stands_until = 0.0
        self.stood_seconds = 0.0

    def start(self, order: Document, cage: Any) -> Document | None:
        """Fork and exec. Returns what kept the program from starting, if something did."""
        reader, writer = os.pipe()  # closed by a successful exec
        self.main = os.fork()
        if self.main == 0:
            try:
                os.close(reader)
                become_job(order, cage)
            except BaseException as problem:  # noqa: BLE001 - nothing may return from here
                os.write(writer, json.dumps(explain(problem, order)).encode("ascii"))
            finally:
                os._exit(NOT_FOUND)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            report = pipe.read()
        error = json.loads(report) if report else None
        if error:
            say(error["message"])
        return error

    def until_nothing_is_left(self) -> None:
        """Wait for the main process, then see to it that nothing outlives it."""
        while self.reap():
            now = time.monotonic()
            if self.terminate_at is not None and now >= self.terminate_at:
                self.terminate_at = None
                self.take_off(handles_term)
                self.signal_all(signal.SIGTERM, signal.SIGCONT)
            if self.kill_at is not None and now >= self.kill_at:
                self.take_off()
                self.signal_all(signal.SIGKILL)
            if self.stands_since is not None and now >= self.stands_until:
                say(
                    "nobody said for %g s that the job is to stand still: it goes on"
                    % STAND_SECONDS
                )
                self.go_on(now)
            self.obey(self.next_signal(now))

    def next_signal(self, now: float) -> int | None:
        if self.kill_at is None and self.stands_since is None:
            return signal.sigwaitinfo(WATCHED).si_signo
        if self.kill_at is None:
            due = self.stands_until
        else:
            due = self.kill_at if self.terminate_at is None else self.terminate_at
        got = signal.sigtimedwait(WATCHED, max(due - now, KILL_TICK_SECONDS))
        return None if got is None else got.si_signo

    def obey(self, number: int | None) -> None:
        if number == signal.SIGUSR1:
            self.stand(time.monotonic())
        elif number == signal.SIGUSR2:
            self.go_on(time.monotonic())
        if number not in (signal.SIGTERM, signal.SIGQUIT):
            return
        self.reap()
        now = time.monotonic()
        self.note_standing(now)
        if self.status is None:  # else it has ended by itself
            self.stopped = True
        if number == signal.SIGQUIT:
            self.kill_at = now
        elif self.kill_at is None:
            self.terminate_at, self.kill_at = now, now + self.grace_seconds

    def stand(self, now: float) -> None:
        """Let the job stand still for a while, also what it has started since it was told so."""
        if self.status is not None or self.kill_at is not None:
            return
        if self.stands_since is None:
            self.stands_since = now
        self.stands_until = now + STAND_SECONDS
        self.signal_all(signal.SIGSTOP)

    def go_on(self, now: float) -> None:
        if self.stands_since is not None:
            self.note_standing(now)
            self.signal_all(signal.SIGCONT)

    def note_standing(self, now: float) -> None:
        if self.stands_since is not None:
            self.stood_seconds += now - self.stands_since
            self.stands_since = None

    def reap(self) -> bool:
        """Collect what has ended. False once nothing is left, orphans included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main:
                self.main_ended(status)

    def main_ended(self, status: int) -> None:
        self.status, self.ended, self.ended_at = status, time.monotonic(), time.time()
        self.go_on(self.ended)  # what it leaves behind ends by itself, or is told to
        last = self.ended + SETTLE_SECONDS + SURVIVOR_GRACE_SECONDS
        if self.kill_at is None:
            self.terminate_at, self.kill_at = self.ended + SETTLE_SECONDS, last
        else:
            self.kill_at = min(self.kill_at, last)

    def take_off(self, spared: Callable[[int], bool] | None = None) -> None:
        """Take clients off their MPS server before they are killed; each once.

        Args:
            spared: whether a process is not killed by what comes next; none is by default.
        """
        if self.mps is None:
            return
        new = descendants(os.getpid()) - self.taken_off
        new = {pid for pid in new if spared is None or not spared(pid)}
        self.taken_off |= new
        if not new:
            return
        sys.path.append(os.path.dirname(os.path.abspath(__file__)))
        try:
            importlib.import_module("mps_client").terminate(self.mps, new)
        except Exception as problem:  # noqa: BLE001 - the job is to end all the same
            say("not taken off its MPS server: %s" % problem)

    def signal_all(self, *numbers: int) -> None:
        """Signal every process of the job, also those forked while this goes on."""
        done: set[int] = set()
        for _ in range(SIGNAL_ROUNDS):
            new = descendants(os.getpid()) - done
            if not new:
                return
            for pid in new:
                send(pid, numbers)
            done |= new
            if self.status is not None:
                self.survivors |= new

    def document(
        self, token: str, error: Document | None, oom_kills: int, cage: Document | None
    ) -> Document:
        """What ``exit.json`` says. A cage's own count of kills is of this job alone."""
        own = cage["oom_kills"] if cage else None
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert self.status is not None, "asked for before the end"
        signalled = os.WIFSIGNALED(self.status)
        code = error["exit_code"] if error else os.WEXITSTATUS(self.status)
        return {
            "token": token,
            "exit_code": None if signalled else code,
            "signal": os.WTERMSIG(self.status) if signalled else None,
            "stopped": self.stopped,
            "error": error["message"] if error else None,
            "seconds": self.ended - self.began,
            "suspended_seconds": self.stood_seconds,
            "ended_at": self.ended_at,
            "max_rss_bytes": used.ru_maxrss * 1024,
            "user_seconds": used.ru_utime,
            "system_seconds": used.ru_stime,
            "survivors_killed": len(self.survivors),
            "oom_kills": oom_kills if own is None else own,
            "cage": cage,
        }


def explain(problem: BaseException, order: Document) -> Document:
    """Why the program could not be started, for the log and for ``exit.json``."""
    code = getattr(problem, "errno", None)
    what = order["argv"][0] if order.get("argv") else "nothing"
    if not os.path.isdir(order.get("cwd", "")):
        what = "%s in %s" % (what, order.get("cwd"))
    text = os.strerror(code) if code else repr(problem)
    if code == errno.ENOEXEC:
        text += " (a script needs a first line like #!/bin/sh)"
    return {
        "exit_code": NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE,
        "message": "cannot start %s: %s" % (what, text),
    }


def descendants(root: int) -> set[int]:
    """Living processes below ``root``, zombies left out."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:  # gone meanwhile
            continue
        children.setdefault(int(parent), []).append((int(name), state))
    found, queue = set(), [root]
    while queue:
        for pid, state in children.get(queue.pop(), ()):
            queue.append(pid)
            if state != b"Z":
                found.add(pid)
    return found


def handles_term(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM, or ignores it."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
            lines = [line for line in file if line.startswith(("SigCgt:", "SigIgn:"))]
    except OSError:  # gone meanwhile
        return False
    bit = 1 << (signal.SIGTERM - 1)
    return any(int(line.split()[1], 16) & bit for line in lines)


def send(pid: int, numbers: tuple[int, ...]) -> None:
    """Send the signals in order to a process that may be gone by now."""
    for number in numbers:
        try:
            os.kill(pid, number)
        except OSError:  # gone meanwhile, or another user's
            return


def make_cage(order: Document, announce: Callable[[Document], None]) -> Any:
    """The job's memory cage, or None where none is asked for or can be made: see cage.py."""
    if not order.get("memory_limit"):
        return None
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    try:
        cage = importlib.import_module("cage")
        return cage.make(int(order["memory_limit"]), order["token"], announce)
    except Exception as problem:  # noqa: BLE001 - a job runs without rather than not at all
        say("the job has no memory limit: %s" % problem)
        return None


def enter_memory_cage(cage: Any) -> None:
    """Enter the cage, for `quietly` to say by this name that it could not be done."""
    cage.enter()


def close_cage(cage: Any) -> Document | None:
    """What the cage has counted; it is gone then."""
    if cage is None:
        return None
    counted = dict(cage.document(), oom_kills=cage.oom_kills(), peak_bytes=cage.peak_bytes())
    quietly(cage.clear)
    return counted


def count_oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot; 0 where it does not say."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def remove_scratch(directory: str, link: str | None) -> None:
    """Remove the attempt's temporary files, and the short name that led to them."""
    import shutil  # noqa: PLC0415 - slow to import, and wanted only here

    if link and os.path.islink(link):
        quietly(os.unlink, link)
    shutil.rmtree(os.path.join(directory, SCRATCH), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
