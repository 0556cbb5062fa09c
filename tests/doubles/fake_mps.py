"""A stand-in for ``nvidia-cuda-mps-control``, for machines without a GPU.

``-d`` starts a daemon, which says its pid in the pipe directory; without words it reads commands and
answers as the real one does. Clients are the files ``clients/PID`` that fake-GPU jobs leave there.
Every command is kept in ``commands`` of the log directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = '''#!{python} -IS
import os, pathlib, signal, subprocess, sys, time

pipe = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
log = pathlib.Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])
pid_file, server_file = pipe / "nvidia-cuda-mps-control.pid", pipe / "server"


def alive(pid):
    try:
        os.kill(pid, 0)
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def note(line):
    with open(log / "commands", "a") as file:
        file.write(line + "\\n")


def serve():
    """The daemon: its server lives and dies with it."""
    server = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "sleep", "1000000"])
    server_file.write_text(str(server.pid))
    def end(*_):
        server.kill()
        server.wait()
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    part = pid_file.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.replace(pid_file)
    while True:
        time.sleep(0.1)
        if not pipe.is_dir() or server.poll() is not None:
            end()


if sys.argv[1:] == ["-d"]:
    refusal = pathlib.Path(os.environ.get("FAKE_NVML", "/"), "mps_refuses")
    if refusal.exists():
        (log / "control.log").write_text(refusal.read_text())
        sys.exit(1)
    if pid_file.exists() and alive(int(pid_file.read_text())):
        sys.exit("An instance of this daemon is already running")
    note("start " + os.environ["CUDA_VISIBLE_DEVICES"])
    (pipe / "clients").mkdir(exist_ok=True)
    if os.fork() == 0:
        os.setsid()
        serve()
    sys.exit(0)

if not pid_file.exists() or not alive(int(pid_file.read_text())):
    sys.exit("Cannot find MPS control daemon process")
daemon, server = int(pid_file.read_text()), int(server_file.read_text())
for line in sys.stdin:
    note(line.strip())
    word, *rest = line.split()
    if word == "get_server_list":
        print(server)
    elif word == "get_client_list":
        for file in sorted((pipe / "clients").iterdir()):
            if alive(int(file.name)):
                print(file.name)
    elif word == "quit":
        os.kill(daemon, signal.SIGTERM)
        while alive(daemon):
            time.sleep(0.01)
    elif word not in ("terminate_client", "start_server"):
        sys.exit("unknown command " + word)
'''


def install(folder: Path) -> Path:
    """Write the program into a folder; the folder, for ``PATH``."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(PROGRAM.replace("{python}", sys.executable))
    program.chmod(0o755)
    return folder
