"""NVIDIA's Multi-Process Service: one control daemon per GPU, ours, in a directory of its own.

One for all GPUs would let a fault on one keep new clients off the others. A daemon that we did not
start is never touched: ours are known by a tag in their environment. They outlive a runner that is
killed; the next one finds them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmixer.errors import RmixerError
from rmixer.execute.logtail import read_tail
from rmixer.faults import COLLATERAL
from rmixer.launch import mps_client
from rmixer.model import Device, Node, Outcome, Placement, StateName
from rmixer.monitor import read_process
from rmixer.paths import RunPaths
from rmixer.resources import MIB

logger = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
#: Marks a daemon as ours, with what it is for.
TAG = "RMIXER_MPS"
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREAD_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PID_FILE = "nvidia-cuda-mps-control.pid"
#: Where a daemon of somebody else's usually is.
DEFAULT_PIPE = Path("/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's default

START_SECONDS, QUIT_SECONDS = 20.0, 10.0
_TICK_SECONDS = 0.02


class MpsError(RmixerError):
    """A daemon cannot be started."""


@dataclass(slots=True)
class MpsDaemon:
    """The control daemon of one GPU.

    Attributes:
        device: the GPU.
        pipe: its pipe directory; the path is short, since sockets are in it.
        log: its log directory.
        control: the program that starts and asks it.
        is_faulty: a client has met a fault; it is started anew once it has no client.
    """

    device: Device
    pipe: Path
    log: Path
    control: str
    is_faulty: bool = False

    @property
    def words(self) -> dict[str, str]:
        """What `rmixer.launch.mps_client` needs to ask it."""
        return {"control": self.control, "pipe": str(self.pipe), "log": str(self.log)}

    @property
    def pid(self) -> int | None:
        """The daemon's process, if it lives and is ours."""
        pid = _pid_in(self.pipe)
        return pid if pid is not None and _has_tag(pid, f"{TAG}={self.pipe.name}") else None

    def ensure(self) -> None:
        """See to it that the daemon is there and answers; a faulty one without clients is renewed.

        Raises:
            MpsError: it cannot be started.
        """
        if self.pid is not None:
            try:
                if not self.is_faulty or mps_client.clients(self.words):
                    mps_client.ask(self.words, "get_server_list")
                    return
            except OSError as error:
                logger.warning("MPS on GPU %s does not answer: %s", self.device.index, error)
            self.quit()
        self._start()

    def quit(self) -> None:
        """End the daemon, if it is ours, and remove what it leaves."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(OSError):
                mps_client.ask(self.words, "quit -t 2", QUIT_SECONDS)
            for number in (0, signal.SIGTERM, signal.SIGKILL):
                if _is_gone(pid, number):
                    break
        shutil.rmtree(self.pipe, ignore_errors=True)

    def _start(self) -> None:
        shutil.rmtree(self.pipe, ignore_errors=True)  # pipes of a daemon that is dead
        try:
            self.pipe.mkdir(mode=0o700, parents=True)
            self.log.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                [self.control, "-d"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=START_SECONDS,
                start_new_session=True,
                check=False,
            )
            if done.returncode != 0:
                raise MpsError(self._why(f"exit {done.returncode}"))
            self._wait_until_it_answers()
        except (OSError, subprocess.SubprocessError) as error:
            why = self._why(str(error))
            self.quit()
            raise MpsError(why) from error
        self.is_faulty = False

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": self.device.id,
            mps_client.PIPE: str(self.pipe),
            mps_client.LOG: str(self.log),
            TAG: self.pipe.name,
        }

    def _wait_until_it_answers(self) -> None:
        """Until it has a server: one that cannot make one would fail every job."""
        deadline = time.monotonic() + START_SECONDS
        while self.pid is None:
            if time.monotonic() > deadline:
                raise OSError("it has not said its pid")
            time.sleep(_TICK_SECONDS)
        mps_client.ask(self.words, f"start_server -uid {os.getuid()}")
        while not mps_client.numbers(mps_client.ask(self.words, "get_server_list")):
            if time.monotonic() > deadline:
                raise OSError("it has started no server")
            time.sleep(_TICK_SECONDS)

    def _why(self, what: str) -> str:
        logs = (self.log / "control.log", self.log / "server.log")
        tails = [line for log in logs for line in read_tail(log)[-1:]]
        told = f": {'; '.join(tails)}" if tails else ""
        return f"MPS on GPU {self.device.index} cannot be started ({what}){told}"


@dataclass(slots=True)
class MpsDaemons:
    """The daemons of a run's GPUs.

    Args:
        paths: of the run.
        daemons: by the GPU's id, of those that are shared under MPS.
    """

    paths: RunPaths
    daemons: dict[str, MpsDaemon] = field(default_factory=dict)

    def add(self, device: Device, control: str) -> MpsDaemon:
        """A daemon for that GPU; it is not started yet."""
        digest = hashlib.sha256(f"{self.paths.root.absolute()} {device.id}".encode()).hexdigest()
        pipe = Path(tempfile.gettempdir(), f"rmixer-mps-{os.getuid()}-{digest[:12]}")
        daemon = MpsDaemon(device, pipe, self.paths.mps_log(device.index), control)
        self.daemons[device.id] = daemon
        return daemon

    def remove(self, device: Device) -> None:
        """Have none for that GPU."""
        self.daemons.pop(device.id).quit()

    def settings(self, placement: Placement) -> dict[str, str]:
        """The environment of a client; a daemon that has died, or is faulty, is started anew.

        Empty where the GPU is not shared under MPS; where its daemon cannot be started the job runs
        without.
        """
        daemon = self.daemons.get(placement.device)
        if daemon is None:
            return {}
        try:
            daemon.ensure()
        except MpsError as error:
            logger.warning("%s; jobs take turns there", error)
            return {}
        return client_settings(daemon, placement)

    def words(self, device: str) -> dict[str, str] | None:
        """How to ask the daemon of a GPU, for the shims of its clients, and which one it is."""
        daemon = self.daemons.get(device)
        return {**daemon.words, "pid": str(daemon.pid)} if daemon is not None else None

    def judge(self, outcome: Outcome, words: Mapping[str, str] | None) -> Outcome:
        """How a client's end counts: not as its own where its daemon had died.

        Args:
            outcome: of the attempt.
            words: how its daemon is asked; None where it was no client.
        """
        pipe = Path(words["pipe"]) if words else None
        daemon = next((one for one in self.daemons.values() if one.pipe == pipe), None)
        if daemon is None or words is None or outcome.state != StateName.FAILED:
            return outcome
        if str(daemon.pid) != words["pid"]:  # perhaps it was started anew already
            died = f"the MPS daemon of GPU {daemon.device.index} had died"
            lost = replace(outcome, state=StateName.PREEMPTED, reason=COLLATERAL, fault="")
            return replace(lost, message=f"{died}\n{outcome.message}".strip())
        daemon.is_faulty = daemon.is_faulty or bool(outcome.fault)
        return outcome

    def quit(self) -> None:
        """End all of them."""
        for daemon in self.daemons.values():
            daemon.quit()


def left_by(paths: RunPaths, node: Node) -> MpsDaemons:
    """The daemons that a run may have left, whose runner was killed."""
    left = MpsDaemons(paths)
    for device in node.devices:
        if device.sharing == "mps":
            left.add(device, shutil.which(CONTROL) or CONTROL)
    return left


def client_settings(daemon: MpsDaemon, placement: Placement) -> dict[str, str]:
    """Of a client: where its daemon is, and what it may take of the GPU.

    The limit is given by index, 0 since the daemon has one GPU; by UUID it is not applied. It is of
    each process. Where at most n jobs share the GPU each gets 100 / (n / 2) per cent of its
    threads: NVIDIA's own advice, since jobs are seldom busy all at once.
    """
    settings = {
        mps_client.PIPE: str(daemon.pipe),
        mps_client.LOG: str(daemon.log),
    }
    if placement.device_memory:
        settings[MEMORY_LIMIT] = f"0={-(-placement.device_memory // MIB)}M"
    places = daemon.device.places
    if places is not None and places > 2:  # noqa: PLR2004 - below, each would have all of it
        settings[THREAD_SHARE] = str(max(1, round(200 / places)))
    return settings


def foreign_daemons(environment: Mapping[str, str] = os.environ) -> list[tuple[int, Path]]:
    """Control daemons that are not ours, as (pid, pipe directory), where they are usually found."""
    folders = {DEFAULT_PIPE, Path(environment.get(mps_client.PIPE) or DEFAULT_PIPE)}
    found = [(pid, folder) for folder in sorted(folders) if (pid := _pid_in(folder)) is not None]
    return [(pid, folder) for pid, folder in found if not _has_tag(pid, f"{TAG}={folder.name}")]


def own_daemons(folder: Path | None = None) -> list[Path]:
    """The pipe directories of living daemons of ours, of any run of this user."""
    base = folder or Path(tempfile.gettempdir())
    pipes: Iterable[Path] = sorted(base.glob(f"rmixer-mps-{os.getuid()}-*"))
    return [p for p in pipes if (pid := _pid_in(p)) and _has_tag(pid, f"{TAG}={p.name}")]


def _pid_in(pipe: Path) -> int | None:
    """The living process that the pid file of a daemon names."""
    try:
        pid = int((pipe / PID_FILE).read_text().strip())
    except (OSError, ValueError):
        return None
    process = read_process(pid)
    return pid if process is not None and process.state != "Z" else None


def _has_tag(pid: int, tag: str) -> bool:
    try:
        return tag.encode() in Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_gone(pid: int, number: int) -> bool:
    """Signal a process, and wait a while for its end."""
    deadline = time.monotonic() + QUIT_SECONDS / 2
    with contextlib.suppress(OSError):
        os.kill(pid, number)
    while time.monotonic() < deadline:
        process = read_process(pid)
        if process is None or process.state == "Z":
            return True
        time.sleep(_TICK_SECONDS)
    return False
