"""The jobs of chaos.py: what each sort does, and the states in which it may end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from support import PYTHON, Workplace

#: One program for all sorts. Arguments: name, sort, seconds. It holds a lock as long as it runs, so
#: that a second one of the same job is noticed, and keeps a diary outside the disk that fills up.
WORK = """
import fcntl, os, signal, sys, time
name, sort, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
folder = os.environ["CHAOS_DIARY"]
def note(word):
    file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, ("%s %d\\n" % (word, os.getpid())).encode())
    os.close(file)
lock = open(os.path.join(folder, name + ".lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("overlap")
    sys.exit(9)
note("start")
fake, uuid = os.environ.get("FAKE_NVML"), os.environ.get("CUDA_VISIBLE_DEVICES", "")
lines = open(os.path.join(fake, "gpus")).read().splitlines()
index = [line.split()[0] for line in lines].index(uuid) if uuid.startswith("GPU-") else None
def hold(mib):
    if index is not None:
        mine = os.path.join(fake, "held", str(os.getpid()))
        with open(mine + ".part", "w") as part:
            part.write("%d %d\\n" % (index, mib << 20))
        os.replace(mine + ".part", mine)
pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
daemon = None
if index is not None and os.path.isdir(pipe):
    open(os.path.join(pipe, "clients", str(os.getpid())), "w").close()
    daemon = open(os.path.join(pipe, "nvidia-cuda-mps-control.pid")).read()
def rest(seconds):
    until = time.time() + seconds
    while time.time() < until:
        if daemon and not os.path.exists("/proc/" + daemon + "/cmdline"):
            note("cut")
            sys.exit("cudaErrorMpsRpcFailure: the MPS client failed")
        time.sleep(min(0.1, seconds))
hold(700)
if sort == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sort == "forks" and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    os._exit(0)
if sort == "growing":
    blocks = []
    for step in range(4):
        blocks.append(b"x" * (8 << 20))
        hold(200 + 300 * step)
        rest(seconds / 4)
elif sort == "lying":
    block = b"x" * (120 << 20)
    hold(2000)
    rest(seconds)
elif sort == "chatty":
    line = b"x" * 1023 + b"\\n"
    block = line * 1024
    for _ in range(100):
        try:
            os.write(1, block)
        except OSError:
            pass
elif sort == "hangs":
    rest(10000)
else:
    rest(seconds)
if sort == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
if index is not None:
    os.unlink(os.path.join(fake, "held", str(os.getpid())))
note("end")
"""


@dataclass(frozen=True, kw_only=True)
class Sort:
    """A sort of job.

    Attributes:
        share: of all jobs, relative.
        seconds: between which it runs.
        ends: states that are right for it, if it is killed now and then.
        keys: of the jobs file.
    """

    share: int
    seconds: tuple[float, float]
    ends: frozenset[str]
    keys: dict[str, Any] = field(default_factory=dict)


#: A job whose own process is killed from outside has FAILED, and is tried again `RETRIES` times;
#: one whose shim is killed three times is NODE_FAIL in the end. Both are right.
RETRIES = 3
KILLED = frozenset({"SUCCEEDED", "FAILED", "NODE_FAIL"})
MEMORY = KILLED | {"OUT_OF_MEMORY"}
SORTS: dict[str, Sort] = {
    "short": Sort(share=8, seconds=(0.05, 0.3), ends=KILLED),
    "long": Sort(share=3, seconds=(3.0, 8.0), ends=KILLED),
    "growing": Sort(share=3, seconds=(0.5, 3.0), ends=MEMORY, keys={"memory": "40MiB"}),
    "lying": Sort(share=2, seconds=(0.3, 1.0), ends=MEMORY, keys={"memory": "60MiB"}),
    "stubborn": Sort(
        share=2, seconds=(20.0, 30.0), ends=KILLED | {"TIMEOUT"}, keys={"timeout": 1.5}
    ),
    "forks": Sort(share=2, seconds=(0.1, 1.0), ends=KILLED),
    "crashes": Sort(share=2, seconds=(0.05, 0.5), ends=KILLED - {"SUCCEEDED"}),
    "hangs": Sort(
        share=2, seconds=(1.0, 1.0), ends=frozenset({"TIMEOUT", "FAILED", "NODE_FAIL"}),
        keys={"timeout": 1.5},
    ),
    "chatty": Sort(share=1, seconds=(0.1, 0.1), ends=KILLED),
}  # fmt: skip
#: Logs of 100 MB lie on the disk of the run until its end: so many at most.
MOST_CHATTY = 6


def write_jobs(place: Workplace, rng: random.Random, count: int) -> None:
    """The jobs file, and the program of all jobs."""
    (place.directory / "chaos_work.py").write_text(WORK)
    names = rng.choices(list(SORTS), [sort.share for sort in SORTS.values()], k=count)
    chatty = 0
    jobs = []
    for number, name in enumerate(names):
        chatty += name == "chatty"
        if name == "chatty" and chatty > MOST_CHATTY:
            name = "short"  # noqa: PLW2901 - another sort for this one
        jobs.append(_job(f"{name}-{number}", name, rng))
    place.write(*jobs, defaults={"retries": RETRIES})


def _job(name: str, sort: str, rng: random.Random) -> dict[str, Any]:
    about = SORTS[sort]
    seconds = rng.uniform(*about.seconds)
    command = f"exec {PYTHON} -S chaos_work.py {name} {sort} {seconds:.2f}"
    where = {"device": "gpu", "gpu_memory": "1GiB"} if rng.random() < 0.5 else {"device": "cpu"}
    return {
        "name": name,
        "command": ["sh", "-c", command],
        "memory": "64MiB",
        **where,
        **about.keys,
    }
