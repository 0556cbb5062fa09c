"""Everything goes wrong at once, and at the end every job is where it belongs.

    python benchmarks/chaos.py --minutes 10 [--jobs 200] [--seed 1] [--keep]

Jobs of all sorts on four fake GPUs (tests/doubles) and the CPU, under one run that is taken up
again whenever its runner is killed. Meanwhile runners, shims, jobs and MPS daemons are killed with
-9, GPUs cannot be read, and the disk that the run is on fills up (with root: a tmpfs of its own).
After the given time there is peace, and the run goes on to its end; if it ends before, another
begins with the next seed. At the end of each it is checked that

* every job is in a final state, one that its sort allows;
* each that succeeded ran to its end exactly once, and no job ran twice at a time;
* by the log, at no time more was booked than there is, of memory, cores and each GPU;
* no process, control group, pipe, or scratch file is left, and the store can be read.

Prints the counts; exits with 1 and the violations where there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e"), str(ROOT / "src")]

from support import PYTHON, Workplace  # noqa: E402 - found by the lines above

from chaos_checks import violations  # noqa: E402
from chaos_jobs import SORTS, write_jobs  # noqa: E402
from doubles.fake_gpus import UNKNOWN, FakeGpus, build_library, make_gpus  # noqa: E402
from doubles.fake_mps import install  # noqa: E402
from rmixer import events as ev  # noqa: E402
from rmixer.resources import GIB  # noqa: E402

GPUS = 4
DISK = "1500m"
#: Between two blows, seconds.
PAUSE = (0.1, 1.0)
#: How long the run may take once nobody disturbs it any more.
PEACE_SECONDS = 600.0


class Chaos:
    """One run, and who disturbs it.

    Args:
        place: where it runs.
        gpus: the fake GPUs.
        rng: draws what happens.
        disk: whether the place is a disk of its own, which may be filled up.
    """

    def __init__(self, place: Workplace, gpus: FakeGpus, rng: random.Random, *, disk: bool) -> None:
        self.place, self.gpus, self.rng, self.disk = place, gpus, rng, disk
        self.counts: Counter[str] = Counter()
        self.codes: Counter[int] = Counter()
        self.runner: subprocess.Popen[str] | None = None
        self._errors = (place.directory.parent / "runner.err").open("ab")

    def disturb(self, until: float) -> None:
        """Blow after blow up to that time, or until the run is over."""
        blows = [self.kill_runner, self.kill_shim, self.kill_job, self.kill_daemon, self.blind]
        if self.disk:
            blows.append(self.fill_disk)
        while time.monotonic() < until:
            self.tend()
            if self.is_over():
                return
            time.sleep(self.rng.uniform(*PAUSE))
            if self._found("shim.py"):  # a runner that has started nothing yet is left to do so
                self.rng.choice(blows)()

    def tend(self) -> None:
        """Start a runner where none runs."""
        if self.runner is not None and self.runner.poll() is None:
            return
        if self.runner is not None:
            self.codes[self.runner.returncode] += 1
        self.runner = subprocess.Popen(
            [PYTHON, "-m", "rmixer", "run", "jobs.yaml", "--policy", "fixed:k=6,threads=1"],
            cwd=self.place.directory, env=self.place.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self._errors, text=True, process_group=0,
        )  # fmt: skip
        self.place.started.append(self.runner)
        self.counts["runners started"] += 1

    def is_over(self) -> bool:
        """Whether the runner has come to the end of the run."""
        return self.runner is not None and self.runner.poll() in (0, 1) and self._is_reported()

    def _is_reported(self) -> bool:
        lock = self.place.paths().lock
        return lock.exists() and lock.read_bytes().endswith(b"reported")

    def finish(self) -> bool:
        """Let the run come to its end in peace."""
        until = time.monotonic() + PEACE_SECONDS
        while time.monotonic() < until:
            if self.is_over():
                self.codes[self.runner.returncode if self.runner else -1] += 1
                return True
            self.tend()
            time.sleep(0.2)
        return False

    # --- blows ------------------------------------------------------------------------------

    def kill_runner(self) -> None:
        if self.runner is not None and self.runner.poll() is None:
            self.runner.kill()
            self.runner.wait()
            self.counts["runners killed"] += 1

    def kill_shim(self) -> None:
        self._kill("shims killed", "shim.py")

    def kill_job(self) -> None:
        self._kill("job processes killed", "chaos_work.py")

    def kill_daemon(self) -> None:
        self._kill("MPS daemons killed", "nvidia-cuda-mps-control")

    def _kill(self, count: str, program: str) -> None:
        pids = self._found(program)
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                self.counts[count] += 1

    def _found(self, program: str) -> list[int]:
        """The processes of the run that run this program."""
        lines = [line.split(maxsplit=1) for line in self.place.left()]
        return [int(pid) for pid, *words in lines if words and program in words[0]]

    def blind(self) -> None:
        """A GPU, or all of them, cannot be read for a moment."""
        index = self.rng.choice([None, *range(GPUS)])
        self.gpus.lose(index, UNKNOWN)
        time.sleep(self.rng.uniform(0.3, 1.5))
        self.gpus.find(index)
        self.counts["GPUs gone blind"] += 1

    def fill_disk(self) -> None:
        """Nothing can be written for a moment."""
        ballast = self.place.directory / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            block = bytes(1 << 20)
            while True:
                file.write(block)
        time.sleep(self.rng.uniform(0.3, 1.5))
        ballast.unlink()
        self.counts["disks filled"] += 1


@contextlib.contextmanager
def disk_of(folder: Path) -> Iterator[bool]:
    """A disk of its own for the run, where that may be made."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def report(chaos: Chaos, found: list[str], seconds: float) -> None:
    """The counts, and what was wrong."""
    state = chaos.place.state()
    sorts: dict[str, Counter[str]] = {sort: Counter() for sort in SORTS}
    for job in state.jobs.values():
        sorts[job.spec.name.partition("-")[0]][str(job.state.name)] += 1
    print(f"{len(state.jobs)} jobs, {seconds:.0f} s", flush=True)
    for name, count in sorted(chaos.counts.items()):
        print(f"  {name:22} {count:5}")
    print(f"  {'runners ended with':22} {dict(sorted(chaos.codes.items()))}")
    attempts = sum(len(job.attempts) for job in state.jobs.values())
    adopted = sum(isinstance(event, ev.Adopted) for event in chaos.place.events())
    print(f"  {'attempts':22} {attempts:5}\n  {'adopted':22} {adopted:5}")
    for sort, ends in sorts.items():
        print(f"  {sort:22} {dict(sorted(ends.items()))}")
    print(f"{len(found)} violations" if found else "no violation", flush=True)
    for text in found[:50]:
        print(f"  {text}", file=sys.stderr)


def check_store(place: Workplace) -> list[str]:
    """The store can be read."""
    path = place.directory / "home" / "store.sqlite"
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            (answer,) = database.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.Error as error:
        return [f"store: {error}"]
    return [] if answer == "ok" else [f"store: {answer}"]


def run(folder: Path, arguments: argparse.Namespace, seed: int, until: float) -> int:
    """One chaos, from the jobs to the verdict."""
    began = time.monotonic()
    rng = random.Random(seed)
    work = folder / "run"
    work.mkdir()
    library = folder / "nvml"
    library.mkdir()
    with disk_of(work) as mounted:
        place = Workplace(work)
        gpus = make_gpus(folder / "gpus", build_library(library), *[8 * GIB] * GPUS)
        place.environment |= gpus.environment
        place.environment |= {
            "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1",
            "CHAOS_DIARY": str(folder / "diary"), "TMPDIR": str(folder),
        }  # fmt: skip
        (folder / "diary").mkdir()
        (folder / "bin").mkdir()
        place.environment["PATH"] = f"{install(folder / 'bin')}:{os.environ['PATH']}"
        write_jobs(place, rng, arguments.jobs)
        chaos = Chaos(place, gpus, rng, disk=mounted)
        try:
            chaos.disturb(until)
            done = chaos.finish()
            found = [] if done else [f"the run is not over {PEACE_SECONDS:.0f} s after peace came"]
            found += violations(place, folder / "diary") + check_store(place)
            report(chaos, found, time.monotonic() - began)
        finally:
            place.end_all()
            if arguments.keep:
                shutil.copytree(place.paths().root, folder / "kept", ignore_dangling_symlinks=True)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long there is no peace")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the run's files, and say where")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rmixer-chaos-"))
    until, failed, seed = time.monotonic() + arguments.minutes * 60, 0, arguments.seed
    try:
        while time.monotonic() < until:
            place = folder / str(seed)
            place.mkdir()
            failed |= run(place, arguments, seed, until)
            if not arguments.keep:
                shutil.rmtree(place, ignore_errors=True)
            seed += 1
    finally:
        if arguments.keep:
            print(f"files: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
