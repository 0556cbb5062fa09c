"""Words with the control daemon of NVIDIA's Multi-Process Service.

A client of MPS that is killed with work in flight may damage its neighbours; it is taken off its
server first (``terminate_client``). Used by shims, which outlive the runner, and by the runner.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import subprocess
from typing import Dict, Iterable, List, Set

#: How long the daemon may take to answer.
ASK_SECONDS = 5.0
PIPE, LOG = WHERE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


def ask(mps: Dict[str, str], command: str, timeout: float = ASK_SECONDS) -> str:
    """What the daemon answers to a command.

    Args:
        mps: ``control``, the program; ``pipe`` and ``log``, its directories.
        command: as ``nvidia-cuda-mps-control`` takes it on its standard input.
        timeout: seconds.

    Raises:
        OSError: it cannot be asked, or it refuses.
    """
    environment = dict(os.environ)
    environment.update({PIPE: mps["pipe"], LOG: mps["log"]})
    try:
        done = subprocess.run(
            [mps["control"]],
            input=(command + "\n").encode("ascii"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.SubprocessError as error:
        raise OSError("%s: %s" % (command, error)) from error
    said = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode != 0:
        raise OSError("%s: %s" % (command, said or "exit %d" % done.returncode))
    return said


def numbers(text: str) -> List[int]:
    """The pids in an answer, one a line; what else it says is left out."""
    return [int(line) for line in text.split() if line.isdigit()]


def clients(mps: Dict[str, str]) -> Dict[int, int]:
    """The server of each client, by pid.

    Raises:
        OSError: the daemon cannot be asked.
    """
    found: Dict[int, int] = {}
    for server in numbers(ask(mps, "get_server_list")):
        for client in numbers(ask(mps, "get_client_list %d" % server)):
            found[client] = server
    return found


def terminate(mps: Dict[str, str], pids: Iterable[int]) -> Set[int]:
    """Take those of the processes that are clients off their server; which they were.

    Raises:
        OSError: the daemon cannot be asked.
    """
    wanted, done = set(pids), set()
    for client, server in clients(mps).items():
        if client in wanted:
            ask(mps, "terminate_client %d %d" % (server, client))
            done.add(client)
    return done
