"""What watching costs: the share of a core that telemetry takes, as a run does it.

Starts processes that hold memory and do a little work in several threads each, lets the watcher of
a run look at them twice a second for a minute, and counts the processor time of this process in its
looks. The kernel's own work for `/proc` is in it.

    python benchmarks/monitor.py                       # 16 jobs of 700 MiB, a minute
    python benchmarks/monitor.py --jobs 4 --mib 50 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rmixer.model import Placement
from rmixer.monitor import process_table
from rmixer.paths import AttemptPaths
from rmixer.runner.loop import SAMPLE_SECONDS
from rmixer.runner.watch import Watcher

RESULTS = Path(__file__).resolve().parent / "results"
GOAL = 0.005

#: A job under a root, as a shim is: the root waits, its child holds memory in `threads` threads.
JOB = """
import sys, threading, time
mib, threads = int(sys.argv[1]), int(sys.argv[2])
held = bytearray(mib << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
print("ready", flush=True)
def live():
    while True:
        sum(held[:1000])
        time.sleep(0.2)
for _ in range(threads - 1):
    threading.Thread(target=live, daemon=True).start()
live()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--mib", type=int, default=700)
    parser.add_argument("--threads", type=int, default=2, help="of each job")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--out", type=Path, default=RESULTS / "monitor.json")
    args = parser.parse_args()
    document = {
        "command": " ".join(["python", "benchmarks/monitor.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        **measure(args.jobs, args.mib, args.threads, args.seconds),
    }
    text = json.dumps(document, indent=2) + "\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(text if args.json else render(document))


def measure(jobs: int, mib: int, threads: int, seconds: float) -> dict[str, Any]:
    """The cost of watching so many jobs for so long."""
    roots: dict[str, int] = {}
    watcher = Watcher()
    with tempfile.TemporaryDirectory(prefix="monitor-") as folder:
        try:
            for number in range(jobs):
                roots[str(number)] = start(mib, threads)
                paths = AttemptPaths(Path(folder) / str(number))
                watcher.attach(str(number), str(number), paths, Placement(memory=mib << 21), 0.0)
            costs, seen = look(watcher, roots, seconds)
        finally:
            watcher.close()
            for pid in roots.values():
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    ordered = sorted(costs)
    return {
        "jobs": jobs,
        "mib": mib,
        "threads": threads,
        "looks": len(costs),
        "proportional_memory_asked": seen,
        "processes_of_machine": len(process_table()),
        "share_of_a_core": sum(costs) / (len(costs) * SAMPLE_SECONDS),
        "milliseconds": {
            "median": 1000 * ordered[len(ordered) // 2],
            "longest": 1000 * ordered[-1],
        },
        "goal": GOAL,
    }


def start(mib: int, threads: int) -> int:
    """A root with a job below it, in a process group of its own; returns once it holds all."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.dup2(write, 1)
        words = [sys.executable, "-S", "-c", JOB, str(mib), str(threads)]
        subprocess.run(words, check=False)
        os._exit(0)
    os.close(write)
    if os.read(read, 5) != b"ready":
        raise SystemExit("a job did not start; is there enough memory?")
    os.close(read)
    return pid


def look(watcher: Watcher, roots: dict[str, int], seconds: float) -> tuple[list[float], int]:
    """Processor seconds of each look, and how many jobs' proportional memory was asked for."""
    costs, told = [], set()
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        before = time.process_time()
        line = watcher.look(at, roots).sample
        costs.append(time.process_time() - before)
        told |= {job for job, values in line["jobs"].items() if "pss_bytes" in values}
        time.sleep(max(0.0, began + at + SAMPLE_SECONDS - time.monotonic()))
    return costs, len(told)


def render(document: dict[str, Any]) -> str:
    share, times = document["share_of_a_core"], document["milliseconds"]
    return (
        f"{document['jobs']} jobs of {document['mib']} MiB, {document['threads']} threads each, "
        f"{1 / SAMPLE_SECONDS:g} looks a second: {100 * share:.2f} % of a core (goal "
        f"{100 * document['goal']:.1f} %); {times['median']:.1f} ms a look, longest "
        f"{times['longest']:.1f} ms; proportional memory of "
        f"{document['proportional_memory_asked']} jobs"
    )


if __name__ == "__main__":
    main()
