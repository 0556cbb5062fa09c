"""An attempt's directory as a runner lays it out, for tests of the shim by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rmixer.launch import shim
from waiting import wait_until

LIMIT_SECONDS = 30.0


class Attempt:
    """An attempt's directory, as a runner lays it out."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = [sys.executable, "-I", "-S", shim.__file__, str(directory)]
        (directory / shim.SCRATCH).mkdir()

    def order(self, *argv: str, **more: Any) -> None:
        order = {
            "token": "t",
            "argv": argv,
            "cwd": str(self.directory),
            "env": {},
            "grace_seconds": 20.0,
        }
        (self.directory / shim.ORDER).write_text(json.dumps({**order, **more}))

    def spawn(self, **options: Any) -> subprocess.Popen[bytes]:
        with (self.directory / "log.txt").open("ab") as log:
            return subprocess.Popen(
                self.program,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **options,
            )  # fmt: skip

    def run(self, *argv: str, **more: Any) -> dict[str, Any]:
        self.order(*argv, **more)
        assert self.spawn().wait(LIMIT_SECONDS) == shim.RAN
        return self.end()

    def started(self) -> dict[str, Any]:
        """What started.json says once the job runs."""

        def read() -> Any:
            path = self.directory / shim.STARTED
            return path.exists() and json.loads(path.read_text())

        found: dict[str, Any] = wait_until(lambda: (now := read()) and "job_pid" in now and now)
        return found

    def end(self) -> dict[str, Any]:
        ended: dict[str, Any] = json.loads((self.directory / shim.EXIT).read_text())
        return ended

    @property
    def log(self) -> str:
        return (self.directory / "log.txt").read_text()

    def pid_in(self, name: str) -> int:
        """A number that the job has written to a file, once it is whole."""
        path = self.directory / name
        return int(
            wait_until(
                lambda: path.exists() and path.read_text().endswith("\n") and path.read_text()
            )
        )
