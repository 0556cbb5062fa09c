"""Predicted against measured rates on this machine: pairs and triples of real jobs.

The paper's 14 workloads (examples/workloads.yaml), two plain scripts and a reader that waits for
its input, with one thread each, are started once by the real executor, profiled one after the other
by the runner's own watcher, and stopped (SIGSTOP). Then sets of them go on together for a few
seconds at a time, and their steps are counted; between them each job does so alone. So a set costs
three seconds and no start-up. Repeats go around all sets, so that what the machine does meanwhile
hits all alike. The prediction knows the profiles only.

    python benchmarks/colocation_pairs.py          # 18 minutes; again after a break: goes on
    python benchmarks/colocation_pairs.py --smoke  # 3 jobs, short windows, writes only --out
    python benchmarks/colocation_pairs.py --table  # the page again from the results, nothing is run

All jobs are in memory at once (about 5 GiB).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import colocation_figures as figures
from rmixer.execute.process import ProcessExecutor
from rmixer.launch.page import TRAINING, read_progress
from rmixer.model import JobSpec, Node, Placement, Profile
from rmixer.monitor import discover_node, measure_memory_bandwidth
from rmixer.paths import RunPaths
from rmixer.runner.watch import Watcher
from rmixer.spec import load_jobs_file

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
RESULTS = Path(__file__).resolve().parent / "results" / "colocation_pairs.json"

#: More steps than any job makes here.
ENDLESS = 10_000_000
OTHERS = {
    "plain_mlp": f"python plain_mlp.py --epochs {ENDLESS}",
    "plain_tables": f"python plain_tables.py --steps {ENDLESS}",
    "reader": f"python slow_reader.py --steps {ENDLESS}",
}
SMOKE = ("criteo_dlrm", "plain_mlp", "reader")
PAIRS, TRIPLES, REPEATS = 60, 15, 3
#: A set goes on for so long before it is measured, and is measured for so long.
SETTLE_SECONDS, WINDOW_SECONDS = 0.4, 2.5
#: A window grows until its slowest job has made so many steps, but not beyond this.
LEAST_STEPS, LONGEST_SECONDS = 8, 10.0
START_SECONDS, PROFILE_SECONDS, PROFILE_LONGEST_SECONDS = 120.0, 8.0, 25.0
LOOK_SECONDS, TICK_SECONDS = 0.5, 0.01


class Stage:
    """All jobs, started and stopped; only those that are asked for go on."""

    def __init__(self, specs: Sequence[JobSpec], node: Node, folder: Path) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.node, self.paths = node, RunPaths(folder)
        self.executor = ProcessExecutor(self.paths, node, grace_seconds=2.0)
        self.placement = Placement(threads=1, cpu=1.0)

    def start(self, name: str) -> None:
        """Start a job and let it train a little; it is then stopped.

        Raises:
            RuntimeError: it ended, or did not begin to train.
        """
        self.executor.start(self.specs[name], 1, name, self.placement)
        deadline = time.monotonic() + START_SECONDS
        while not self._trains(name):
            if ended := self.executor.poll():
                raise RuntimeError(f"{ended[0].token} ended: {ended[0]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not begin to train in {START_SECONDS:.0f} s")
            time.sleep(TICK_SECONDS)
        time.sleep(SETTLE_SECONDS)
        self.signal([name], signal.SIGSTOP)

    def profile(self, name: str) -> Profile:
        """A short solo run under the runner's watcher.

        Raises:
            RuntimeError: its steps were too few to tell.
        """
        watcher, found = Watcher(self.node.memory_bandwidth), None
        began = time.monotonic()
        with self.awake([name]):
            time.sleep(SETTLE_SECONDS)
            watcher.attach(name, name, self._attempt(name), self.placement, time.monotonic())
            while (passed := time.monotonic() - began) < PROFILE_LONGEST_SECONDS:
                if found is not None and passed > PROFILE_SECONDS:
                    break
                time.sleep(LOOK_SECONDS)
                look = watcher.look(time.monotonic(), {name: self.executor.roots()[name]})
                found = next((profile for _, profile in look.profiles), found)
        watcher.detach(name)
        watcher.close()
        if found is None:
            raise RuntimeError(f"{name}: no profile in {PROFILE_LONGEST_SECONDS:.0f} s")
        return found

    def paces(self, names: Sequence[str], seconds: float) -> list[float]:
        """Steps per second of each job of a set that goes on together.

        Raises:
            RuntimeError: a job ended, or made no step.
        """
        with self.awake(names) as resumed:
            time.sleep(SETTLE_SECONDS)
            before = [self._step(name, after=resumed) for name in names]
            began = time.monotonic()
            while True:
                time.sleep(LOOK_SECONDS)
                now = [self._step(name, after=resumed) for name in names]
                steps = [b[0] - a[0] for a, b in zip(before, now, strict=True)]
                passed = time.monotonic() - began
                if passed >= seconds and (min(steps) >= LEAST_STEPS or passed >= LONGEST_SECONDS):
                    break
        if min(steps) < 2:
            raise RuntimeError(f"{names}: too few steps in {LONGEST_SECONDS:.0f} s: {steps}")
        return [(b[0] - a[0]) / (b[1] - a[1]) for a, b in zip(before, now, strict=True)]

    @contextlib.contextmanager
    def awake(self, names: Sequence[str]) -> Iterator[float]:
        """They go on inside; gives the unix time at which they did."""
        at = time.time()
        self.signal(names, signal.SIGCONT)
        try:
            yield at
        finally:
            self.signal(names, signal.SIGSTOP)

    def signal(self, names: Sequence[str], number: int) -> None:
        for name in names:
            for pid in self.executor.pids(name):
                os.kill(pid, number)

    def close(self) -> None:
        """End all jobs."""
        running = list(self.executor.roots())
        for name in running:
            self.executor.stop(name, force=True)
            with contextlib.suppress(ProcessLookupError):
                self.signal([name], signal.SIGCONT)
        while self.executor.roots():
            self.executor.poll()
            time.sleep(TICK_SECONDS)
        self.executor.close()

    def _attempt(self, name: str) -> Any:
        return self.paths.job(self.specs[name].id).attempt(1)

    def _page(self, name: str) -> dict[str, Any] | None:
        return read_progress(str(self._attempt(name).progress))

    def _trains(self, name: str) -> bool:
        page = self._page(name)
        return page is not None and page["phase"] == TRAINING and page["step"] >= 2

    def _step(self, name: str, *, after: float) -> tuple[int, float]:
        """The newest published step and when it was published, once there is one after a time."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < deadline:
            page = self._page(name)
            if page is not None and page["phase"] == TRAINING and page["updated_at"] > after:
                return page["step"], page["updated_at"]
            if ended := self.executor.poll():
                raise RuntimeError(f"{ended[0].token} ended: {ended[0]}")
            time.sleep(TICK_SECONDS)
        raise RuntimeError(f"{name} made no step in {LONGEST_SECONDS:.0f} s")


# --- what is measured -----------------------------------------------------------------------------


def load_specs(names: Sequence[str] | None, folder: Path) -> list[JobSpec]:
    """The jobs, without an end."""
    document = YAML(typ="safe").load(EXAMPLES / "workloads.yaml")
    document["defaults"].pop("epochs", None)
    document["defaults"]["steps"] = ENDLESS
    document["jobs"] += [
        {"name": name, "command": command, "workdir": str(EXAMPLES)}
        for name, command in OTHERS.items()
    ]
    if names is not None:
        document["jobs"] = [job for job in document["jobs"] if job["name"] in names]
    path = folder / "endless.yaml"
    YAML().dump(document, path)
    return list(load_jobs_file(path).jobs)


def choose(names: Sequence[str], size: int, count: int) -> list[tuple[str, ...]]:
    """Sets such that each job is in about as many as any other; the same ones every time."""
    left = list(itertools.combinations(names, size))
    random.Random(size).shuffle(left)
    used: Counter[str] = Counter()
    chosen = []
    while left and len(chosen) < count:
        best = min(
            left, key=lambda one: (max(used[name] for name in one), sum(used[n] for n in one))
        )
        left.remove(best)
        used.update(best)
        chosen.append(best)
    return chosen


def rounds(names: Sequence[str], repeats: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every set, the jobs alone among them, once per repeat and each time in another order."""
    sets = [(name,) for name in names] + choose(names, 2, PAIRS) + choose(names, 3, TRIPLES)
    for repeat in range(repeats):
        order = list(sets)
        random.Random(100 + repeat).shuffle(order)
        for one in order:
            yield repeat, one


def measure(
    document: dict[str, Any], path: Path, stage: Stage, settings: argparse.Namespace
) -> None:
    """What is not measured yet; the file is written after each step."""
    names = list(stage.specs)
    done = {(window["repeat"], tuple(window["jobs"])) for window in document["windows"]}
    for name in names:
        stage.start(name)
        if name not in document["profiles"]:
            document["profiles"][name] = asdict(stage.profile(name))
            save(document, path)
        print(f"{name:18} {json.dumps(document['profiles'][name]['demand'])}", file=sys.stderr)
    plan = list(rounds(names, settings.repeats))
    for at, (repeat, one) in enumerate(plan, start=1):
        if (repeat, one) in done:
            continue
        paces = stage.paces(one, settings.window)
        document["windows"].append({"repeat": repeat, "jobs": list(one), "paces": paces})
        save(document, path)
        print(f"{at}/{len(plan)} {' + '.join(one)}", file=sys.stderr)
    document["complete"] = True
    save(document, path)


def save(document: Mapping[str, Any], path: Path) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(path)


def begin(path: Path, node: Node, settings: argparse.Namespace) -> dict[str, Any]:
    """The document to go on with, or a new one."""
    what = {
        "jobs": list(SMOKE) if settings.smoke else "all",
        "repeats": settings.repeats,
        "window_seconds": settings.window,
        "machine": f"{len(node.cores)}-core {platform.machine()}",
    }
    if path.exists() and not settings.fresh:
        document: dict[str, Any] = json.loads(path.read_text())
        if not document["complete"] and all(document[key] == value for key, value in what.items()):
            print(f"{path}: going on after {len(document['windows'])} windows", file=sys.stderr)
            return document
    return {
        **what,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "complete": False,
        "cores": len(node.cores),
        "memory_bandwidth": measure_memory_bandwidth(),
        "profiles": {},
        "windows": [],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="3 jobs, short windows")
    parser.add_argument("--table", action="store_true", help="only write the page again")
    parser.add_argument("--fresh", action="store_true", help="measure all of it again")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--window", type=float, default=WINDOW_SECONDS, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=RESULTS)
    settings = parser.parse_args()
    if settings.smoke and settings.out == RESULTS:
        parser.error("--smoke needs --out FILE; it would overwrite the results")
    if not settings.table:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stopped jobs must not be left
        run(settings)
    if not settings.out.exists():
        parser.error(f"{settings.out}: nothing was measured yet")
    document = json.loads(settings.out.read_text())
    found = figures.evaluate(document)
    save({**document, "figures": found}, settings.out)
    if settings.out == RESULTS:
        figures.write_page(document, found)
    print(figures.table(document, found))
    return 0


def run(settings: argparse.Namespace) -> None:
    node = discover_node()
    document = begin(settings.out, node, settings)
    node = Node(**{**_fields(node), "memory_bandwidth": document["memory_bandwidth"]})
    with tempfile.TemporaryDirectory(prefix="colocation-") as folder:
        os.environ["RMIXER_CACHE"] = f"{folder}/cache"
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        specs = load_specs(SMOKE if settings.smoke else None, Path(folder))
        stage = Stage(specs, node, Path(folder) / "run")
        try:
            measure(document, settings.out, stage, settings)
        finally:
            stage.close()


def _fields(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in ("name", "cores", "memory", "devices")}


if __name__ == "__main__":
    raise SystemExit(main())
