"""How the jobs of a run share each GPU: what was asked for, and what the machine can do.

``mps``: side by side under NVIDIA's Multi-Process Service, by a daemon of the run; ``mps:4`` lets
four at most do so, and gives each its share of the GPU's threads. ``time-slice``: in turns.
``exclusive``: one job at a time. ``auto``: MPS where its daemon can be started and nobody else's
serves the machine, else in turns, which is said.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace

from rmixer.errors import UsageError
from rmixer.execute.mps import CONTROL, MpsDaemons, MpsError, foreign_daemons
from rmixer.model import CPU, Device, Node, SharingMode
from rmixer.paths import RunPaths

logger = logging.getLogger(__name__)

AUTO, MPS = "auto", "mps"
#: The words of the command line, and the model's.
MODES: Mapping[str, SharingMode] = {
    MPS: "mps",
    "time-slice": "time-slicing",
    "exclusive": "exclusive",
}


def asked_modes(text: str, node: Node) -> dict[str, str]:
    """The mode of each GPU by its id: one for all, or ``0=mps,1=exclusive``; ``auto`` for the rest.

    Raises:
        UsageError: there is no such mode or GPU.
    """
    gpus = {str(d.index): d.id for d in node.devices if d.kind != CPU}
    if "=" not in text:
        return dict.fromkeys(gpus.values(), _mode(text, text))
    found = dict.fromkeys(gpus.values(), AUTO)
    for part in text.split(","):
        index, separator, word = part.strip().partition("=")
        if not separator or index not in gpus:
            there = ", ".join(gpus) or "none"
            raise UsageError(
                f"--sharing {text}: {part!r} is no GPU=MODE; GPUs here: {there}; "
                "for example 0=mps,1=exclusive"
            )
        found[gpus[index]] = _mode(word, text)
    return found


def _mode(word: str, text: str) -> str:
    """The word, checked; MPS may have a number of places behind it."""
    name, separator, places = word.partition(":")
    right = name in (AUTO, *MODES) and (not separator or re.fullmatch(r"[1-9]\d{0,2}", places))
    if not right or (separator and name != MPS):
        words = ", ".join((AUTO, *MODES))
        raise UsageError(f"--sharing {text}: {word!r} is none of {words}, mps:JOBS")
    return word


def set_up(node: Node, text: str, paths: RunPaths, jobs: int) -> tuple[Node, MpsDaemons]:
    """The node with the sharing mode of each GPU, and the daemons that this takes, which run.

    Args:
        node: the machine.
        text: as `asked_modes` takes it.
        paths: of the run.
        jobs: how many there are; a single one shares nothing.

    Raises:
        UsageError: what was asked for cannot be done here.
    """
    modes, daemons = asked_modes(text, node), MpsDaemons(paths)
    try:
        devices = [_with_mode(d, modes.get(d.id), daemons, jobs) for d in node.devices]
    except BaseException:
        daemons.quit()
        raise
    return replace(node, devices=tuple(devices)), daemons


def _with_mode(device: Device, mode: str | None, daemons: MpsDaemons, jobs: int) -> Device:
    if mode is None:
        return device
    if mode in MODES and mode != MPS:
        return replace(device, sharing=MODES[mode])
    if mode == AUTO and jobs < 2:  # noqa: PLR2004 - nobody to share with
        return device
    _, _, places = mode.partition(":")
    limited = replace(device, places=int(places)) if places else device
    problem = _start(limited, daemons, is_asked=mode != AUTO)
    if not problem:
        return replace(limited, sharing="mps")
    if mode != AUTO:
        raise UsageError(f"GPU {device.index}: {problem}; leave --sharing out to take turns")
    logger.warning("jobs take turns on GPU %s: %s", device.index, problem)
    return device


def _start(device: Device, daemons: MpsDaemons, *, is_asked: bool) -> str:
    """Start the daemon of a GPU; why it does not run, empty where it does."""
    control = shutil.which(CONTROL)
    if control is None:
        return f"there is no MPS ({CONTROL} is not on the PATH)"
    others = [] if is_asked else foreign_daemons()
    if others:
        pid, folder = others[0]
        return f"an MPS daemon of somebody else's (pid {pid}, {folder}) runs; it is left alone"
    daemon = daemons.add(device, control)
    try:
        daemon.ensure()
    except MpsError as error:
        daemons.remove(device)
        return str(error)
    return ""
