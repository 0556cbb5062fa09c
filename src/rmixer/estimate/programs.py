"""Several programs of somebody else's, estimated in processes of their own, some at a time.

``python -m rmixer.estimate.programs`` is the process that runs one of them, by
`rmixer.estimate.program`. It reads one request as a line of JSON, answers with one, and ends all
that it has started when its standard input is closed: also when the process that asked is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rmixer.estimate import program
from rmixer.execute.logtail import last_line
from rmixer.model import JobSpec

_LOOK_SECONDS = 0.1
#: For starting, and for ending what a program has left, beyond the program's own limit.
_SLACK_SECONDS = 20.0
#: A traced run and a probe.
_RUNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How programs are run for their estimates; see `rmixer.estimate.program.estimate_command`."""

    gpu: bool
    environment: Mapping[str, str]
    limit_seconds: float
    limit_bytes: int | None = None
    workspace: int = 0
    device_room: int | None = None


def estimate_commands(
    jobs: Sequence[JobSpec],
    conditions: Conditions,
    *,
    at_once: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Run commands for a few steps each. Never raises for what a program does.

    Args:
        jobs: commands.
        conditions: how.
        at_once: how many run side by side.
        should_stop: asked several times a second; what is not known by then is an error.
        say: gets a line for people when a program is started.

    Returns:
        By job id the answer, or ``{"error": ...}``.
    """
    waiting, running = list(jobs), list[_Asked]()
    answers: dict[str, dict[str, Any]] = {}
    try:
        while (waiting or running) and not should_stop():
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                say(f"{job.name}: running it for a few steps")
                running.append(_Asked(job, conditions))
            for one in [one for one in running if one.is_over()]:
                running.remove(one)
                answers[one.id] = one.answer()
            time.sleep(_LOOK_SECONDS)
    finally:
        for one in running:
            one.end()
    stopped = {"error": "stopped before it was estimated"}
    return {job.id: answers.get(job.id, stopped) for job in jobs}


class _Asked:
    """One process that was asked for one estimate."""

    def __init__(self, job: JobSpec, conditions: Conditions) -> None:
        self.id = job.id
        self.seconds = conditions.limit_seconds * _RUNS + _SLACK_SECONDS
        self.began = time.monotonic()
        self.deadline = self.began + self.seconds
        request = {
            "job": {"payload": job.payload, "threads": job.threads},
            "conditions": {
                name: getattr(conditions, name) for name in Conditions.__dataclass_fields__
            },
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmixer.estimate.programs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.out: list[bytes] = []
        self.err: list[bytes] = []
        self.readers = [
            threading.Thread(target=_drain, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
            self.process.stdin.flush()

    def is_over(self) -> bool:
        return self.process.poll() is not None or time.monotonic() > self.deadline

    def answer(self) -> dict[str, Any]:
        """What it said; an error where it said nothing."""
        late = self.process.poll() is None
        self.end()
        with contextlib.suppress(ValueError):
            said: dict[str, Any] = json.loads(b"".join(self.out))
            return {"seconds": time.monotonic() - self.began, **said}
        if late:
            return {"error": f"no answer within {self.seconds:.0f} s"}
        why = last_line(b"".join(self.err)) or f"code {self.process.returncode}"
        return {"error": f"its estimate failed: {why}"}

    def end(self) -> None:
        """Tell it to end, with all that it has started; kill it where it does not."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(_SLACK_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for reader in self.readers:
            reader.join(_SLACK_SECONDS)


def _drain(stream: IO[bytes] | None, into: list[bytes]) -> None:
    assert stream is not None
    with stream:
        into.extend(iter(lambda: stream.read(1 << 16), b""))


def main() -> None:
    """Answer one request; see the module."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    job = JobSpec(id="", name="", kind="command", **request["job"])
    conditions = request["conditions"]
    answer = program.estimate_command(
        job,
        conditions.pop("gpu"),
        conditions.pop("environment"),
        conditions.pop("limit_seconds"),
        conditions.pop("limit_bytes"),
        **conditions,
    )
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


def _end_with_input() -> None:
    """Wait until the asking process has closed its end or is gone; then end like by SIGTERM."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
