"""How well the network predicts real co-location: published measurements of pairs on one GPU.

Gavel's table (time-shared V100, P100, K80; 26 jobs): fitted to a random half of the pairs, judged
on the other, five seeds. Then without one job: its numbers are read off the same model's other
batch sizes, and all its pairs are predicted. Lucid's table (one 24 GB GPU): nothing is fitted,
demands are what the driver said of the jobs alone. MISO's mixes (A100 under MPS, up to seven jobs
without names): from their speeds on a slice of the same GPU.

    python benchmarks/interference.py          # writes results/ and docs/interference.md
    python benchmarks/interference.py --json   # the document on stdout, nothing is written
    python benchmarks/interference.py --quick  # one seed, one GPU, nothing left out
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import pages
from rmixer.interference import (
    Correction,
    Pairs,
    Sharing,
    Sized,
    Station,
    fit_pairs,
    from_siblings,
    one_gpu,
    relative_error,
    solve,
)

ROOT = Path(__file__).resolve().parent.parent
TRACES = Path(os.environ.get("RMIXER_TRACES", ROOT.parent / "shared" / "traces"))
RESULTS = Path(__file__).resolve().parent / "results" / "interference.json"
DOCS = ROOT / "docs" / "interference.md"
GPUS = ("v100", "p100", "k80")
#: Goals for the mean error of unseen pairs, and with no fitting at all: single rates, their sum.
GOALS = {"v100": 0.067, "p100": 0.075, "k80": 0.039}
LEFT_OUT_GOAL, LUCID_GOALS = 0.08, (0.081, 0.060)
SEEDS = range(5)
#: Rates below this are a pair that could not run.
RAN = 0.01

#: What is fitted, by what the tables call it.
VARIANTS: Mapping[str, tuple[Sharing, bool]] = {
    "one station": (one_gpu(1), True),
    "one station, no overhead": (Sharing(stations=one_gpu(1).stations, overhead=0.0), False),
    "one station, gamma 0.5": (one_gpu(1, gamma=0.5), True),
    "two stations": (one_gpu(2), True),
    "three stations": (one_gpu(3), True),
}


# --- the tables -----------------------------------------------------------------------------------


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    yield from csv.DictReader(text.splitlines())


def gavel(gpu: str) -> tuple[Pairs, list[Sized]]:
    """The measured pairs of one GPU type, and what its jobs are."""
    measured: dict[tuple[Sized, Sized], tuple[float, float]] = {}
    for row in rows_of(TRACES / "gavel" / "gavel_pairs.csv.gz"):
        if row["table"] != "oracle" or row["gpu"] != gpu:
            continue
        a, b = (Sized(row[f"job_{x}"], int(row[f"batch_{x}"] or 1)) for x in "ab")
        rates = float(row["rel_a"] or 0), float(row["rel_b"] or 0)
        if min(rates) > RAN:
            measured[a, b] = rates
    jobs = sorted({job for pair in measured for job in pair}, key=lambda j: (j.model, j.batch_size))
    number = {job: at for at, job in enumerate(jobs)}
    index = np.array([[number[a], number[b]] for a, b in measured])
    names = tuple(f"{job.model} {job.batch_size}" for job in jobs)
    return Pairs(names, index, np.array(list(measured.values()))), jobs


def lucid() -> tuple[np.ndarray, np.ndarray]:
    """Demands [pairs, 2, 2] from the solo table, and measured rates [pairs, 2]."""
    alone = {}
    for row in rows_of(TRACES / "lucid" / "single_data.csv"):
        key = row["model"], row["dataset"], row["batchsize"], row["amp"]
        gpu, memory = float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100
        alone[key] = (max(gpu - memory, 0.0), memory)
    demands, rates = [], []
    for row in rows_of(TRACES / "lucid" / "colocate_info.csv.gz"):
        keys = [
            tuple(row[f"{c}{x}"] for c in ("model", "dataset", "batchsize", "amp")) for x in "12"
        ]
        if all(key in alone for key in keys):
            demands.append([alone[key] for key in keys])
            rates.append([float(row["speed1"]), float(row["speed2"])])
    return np.array(demands), np.array(rates)


# --- what is measured -----------------------------------------------------------------------------


def unseen(pairs: Pairs, sharing: Sharing, *, overhead: bool, seeds: range) -> dict[str, Any]:
    """Fitted to a half, judged on the other: single rates and their sum, per seed."""
    single, total, fits = [], [], []
    for seed in seeds:
        seen, rest = pairs.halves(seed)
        fit = fit_pairs(seen, sharing, overhead=overhead)
        predicted = fit.rates(rest.index)
        single.append(relative_error(predicted, rest.rates))
        total.append(relative_error(predicted.sum(1), rest.rates.sum(1)))
        fits.append(fit.error)
    return {"single": single, "sum": total, "fitted": fits}


def constant(pairs: Pairs, seeds: range) -> dict[str, Any]:
    """The same for the mean of the seen half as the answer to everything."""
    single, total = [], []
    for seed in seeds:
        seen, rest = pairs.halves(seed)
        guess = np.full(rest.rates.shape, seen.rates.mean())
        single.append(relative_error(guess, rest.rates))
        total.append(relative_error(guess.sum(1), rest.rates.sum(1)))
    return {"single": single, "sum": total}


def equal_grains(pairs: Pairs, seeds: range) -> dict[str, Any]:
    """The same with granularity 1 for all: a demand per job is fitted, nothing else."""
    single, total = [], []
    for seed in seeds:
        seen, rest = pairs.halves(seed)
        fit = fit_pairs(seen, one_gpu(1, gamma=0.0))
        predicted = fit.rates(rest.index)
        single.append(relative_error(predicted, rest.rates))
        total.append(relative_error(predicted.sum(1), rest.rates.sum(1)))
    return {"single": single, "sum": total}


def left_out(pairs: Pairs, jobs: list[Sized], sharing: Sharing) -> dict[str, Any]:
    """Each job that has siblings is taken out of all pairs, read off them, and predicted.

    Then again with the correction on: its pairs come one by one, in random order, and each is
    predicted before it is learned. No pair comes twice.
    """
    errors: dict[str, list[float]] = {}
    corrected: list[float] = []
    for job, one in enumerate(jobs):
        if sum(other.model == one.model for other in jobs) < 2:
            continue
        with_it = pairs.with_job(job)
        fit = from_siblings(fit_pairs(pairs.some(~with_it), sharing), jobs, job)
        asked = pairs.some(with_it)
        told = fit.rates(asked.index)
        errors[pairs.jobs[job]] = np.abs(told / asked.rates - 1).ravel().tolist()
        corrected += one_by_one(asked, told)
    every = np.concatenate(list(errors.values()))
    worst = max(errors, key=lambda name: np.mean(errors[name]))
    return {
        "mean": float(every.mean()),
        "median": float(np.median(every)),
        "corrected": float(np.mean(corrected)),
        "jobs": len(errors),
        "worst": worst,
        "worst_mean": float(np.mean(errors[worst])),
    }


def one_by_one(pairs: Pairs, told: np.ndarray) -> list[float]:
    """Errors of single rates, each corrected by the pairs before it."""
    belief, errors = Correction(), []
    for at in np.random.default_rng(0).permutation(len(pairs)):
        names = [pairs.jobs[job] for job in pairs.index[at]]
        said = belief.correct(names, np.minimum(told[at], 1.0))
        errors += np.abs(said / pairs.rates[at] - 1).tolist()
        belief = belief.learn(names, told[at], pairs.rates[at])
    return errors


def without_fitting() -> dict[str, Any]:
    """Lucid's pairs from what the driver said of the jobs alone, beside two simple answers."""
    demands, rates = lucid()
    stations = (Station(name="compute"), Station(name="bandwidth"))
    predicted = solve(demands, np.ones_like(demands), Sharing(stations=stations, overhead=0.0))
    busy = demands.sum(2)
    shared = np.repeat(1 / np.maximum(1, busy.sum(1, keepdims=True)), 2, 1)
    answers = {
        "network": predicted,
        "constant": np.full(rates.shape, rates.mean()),
        "share": shared,
    }
    return {
        "pairs": len(rates),
        **{
            name: {
                "single": relative_error(guess, rates),
                "sum": relative_error(guess.sum(1), rates.sum(1)),
            }
            for name, guess in answers.items()
        },
    }


def mixes() -> dict[str, Any]:
    """MISO's mixes: speeds under MPS relative to the fastest of the mix, from those on a slice.

    The files have no names and no absolute speeds, so only the ratios within a mix can be judged. A
    job that a slice slows more uses more of the GPU. How a slice's speed tells demand and
    granularity, and how much MPS lets run side by side, is chosen on 1,000 mixes and judged on the
    others.
    """
    with np.load(TRACES / "miso_mig" / "mps_vs_mig_mixes.npz") as file:
        together, slices = (_relative(file[key][:, 0].astype(float)) for key in ("mps", "mig"))
    order = np.random.default_rng(0).permutation(len(together))
    seen, rest = order[:1000], order[1000:]

    def rates(which: np.ndarray, scale: float, capacity: float, finer: float) -> np.ndarray:
        demand = np.clip(scale * (1 - slices[which]), 0.01, 0.99)[:, :, None]
        grain = np.exp(-finer * demand)
        return _relative(solve(demand, grain, one_gpu(1, capacity=capacity)))

    choices = itertools.product((1.0, 1.5, 2.0, 2.5), (1.0, 2.0, 3.0), (0.0, 1.0, 2.0))
    best = min(choices, key=lambda c: float(np.abs(rates(seen, *c) - together[seen]).mean()))
    truth = together[rest]
    return {
        "mixes": len(together),
        "network": float(np.abs(rates(rest, *best) - truth).mean()),
        "slices": float(np.abs(slices[rest] - truth).mean()),
        "constant": float(np.abs(together[seen].mean() - truth).mean()),
    }


def _relative(speeds: np.ndarray) -> np.ndarray:
    return speeds / speeds.max(1, keepdims=True)


# --- all of it ------------------------------------------------------------------------------------


def measure(*, quick: bool) -> dict[str, Any]:
    seeds = range(1) if quick else SEEDS
    document: dict[str, Any] = {
        "machine": f"{os.cpu_count()}-core {platform.machine()}, numpy {np.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "gavel": {},
    }
    for gpu in GPUS[:1] if quick else GPUS:
        pairs, jobs = gavel(gpu)
        row: dict[str, Any] = {"pairs": len(pairs), "jobs": len(jobs), "unseen": {}}
        for name, (sharing, overhead) in VARIANTS.items():
            if quick and name not in {"one station", "two stations"}:
                continue
            row["unseen"][name] = unseen(pairs, sharing, overhead=overhead, seeds=seeds)
        if not quick:
            row["unseen"]["equal granularity"] = equal_grains(pairs, seeds)
        row["unseen"]["a constant"] = constant(pairs, seeds)
        if not quick:
            row["left_out"] = {
                name: left_out(pairs, jobs, one_gpu(count))
                for name, count in (("one station", 1), ("two stations", 2))
            }
        document["gavel"][gpu] = row
        print(f"{gpu}: done", file=sys.stderr)
    document["lucid"] = without_fitting()
    if not quick:
        document["miso"] = mixes()
    document["missed"] = missed(document)
    return document


def missed(document: Mapping[str, Any]) -> list[str]:
    """The goals that are missed, by the network with two stations."""
    found = []
    for gpu, row in document["gavel"].items():
        if np.mean(row["unseen"]["two stations"]["single"]) > GOALS[gpu]:
            found.append(f"{gpu}: unseen pairs")
    told = document["gavel"]["v100"].get("left_out")
    if told and told["two stations"]["mean"] > LEFT_OUT_GOAL:
        found.append("v100: a job left out")
    lucid_row = document["lucid"]["network"]
    if lucid_row["single"] > LUCID_GOALS[0] or lucid_row["sum"] > LUCID_GOALS[1]:
        found.append("lucid")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the document on stdout")
    parser.add_argument("--quick", action="store_true", help="one seed, one GPU; use with --json")
    args = parser.parse_args()
    if not TRACES.is_dir():
        print(f"{TRACES}: no traces there; set RMIXER_TRACES", file=sys.stderr)
        return 2
    document = measure(quick=args.quick)
    if args.json:
        print(json.dumps(document))
    else:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        pages.put(DOCS, "published", tables(document))
        print(tables(document))
    return 1 if document["missed"] else 0


def tables(document: Mapping[str, Any]) -> str:
    """The figures for the page."""
    lines = [
        f"`python benchmarks/interference.py`, {document['machine']}, {document['date']}.",
        "",
        "Unseen pairs: fitted to a random half, judged on the other; mean error of the single",
        f"rates and of the sum of both, means of {len(SEEDS)} seeds (worst seed).",
        "",
        "| | V100 | P100 | K80 |",
        "|---|---|---|---|",
    ]
    names = list(document["gavel"]["v100"]["unseen"])
    lines.append("| goal | " + " | ".join(f"{100 * GOALS[g]:.1f} %" for g in GPUS) + " |")
    for name in names:
        cells = []
        for gpu in GPUS:
            row = document["gavel"][gpu]["unseen"][name]
            single, total = 100 * np.array(row["single"]), 100 * np.array(row["sum"])
            cells.append(f"{single.mean():.1f} % ({single.max():.1f}), sum {total.mean():.1f} %")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "A job that is in no pair, read off the same model's other batch sizes; all its pairs.",
        "",
        "| | V100 | P100 | K80 |",
        "|---|---|---|---|",
    ]
    for name in document["gavel"]["v100"].get("left_out", ()):
        rows = [document["gavel"][gpu]["left_out"][name] for gpu in GPUS]
        cells = [
            f"{100 * r['mean']:.1f} %, median {100 * r['median']:.1f} %; corrected online "
            f"{100 * r['corrected']:.1f} %; worst {r['worst']} {100 * r['worst_mean']:.0f} %"
            for r in rows
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    told, miso = document["lucid"], document["miso"]
    goals = " and ".join(f"{100 * goal:.1f} %" for goal in LUCID_GOALS)
    lines += [
        "",
        f"Lucid's {told['pairs']} pairs, nothing fitted (goals: {goals}).",
        "",
        "| answer | single rates | sum of both |",
        "|---|---|---|",
    ]
    for name, what in (
        ("network", "network, demands from the solo table"),
        ("share", "1 / max(1, sum of utilisations)"),
        ("constant", "a constant"),
    ):
        row = told[name]
        lines.append(f"| {what} | {100 * row['single']:.2f} % | {100 * row['sum']:.2f} % |")
    lines += [
        "",
        f"MISO's {miso['mixes']:,} mixes under MPS, speeds relative to the mix's fastest, mean",
        f"absolute error: the network from speeds on a slice {miso['network']:.3f}, these speeds",
        f"themselves {miso['slices']:.3f}, a constant {miso['constant']:.3f}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
