"""How near static profiles come to published measurements on real GPUs.

Solo steps per second of Gavel's jobs on K80, P100 and V100 (`../shared/traces/gavel`), for those of
its models that are public examples of PyTorch, against the profile of a trace; and the published
GPU utilisation of the fourteen workloads (`../shared/facts/published-workloads.csv`, a V100)
against what their traces would keep busy. Nothing is fitted to either.

    python benchmarks/static_profiles.py            # minutes; --json for machines
    python benchmarks/static_profiles.py --quick    # one batch size per model, no workloads
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import nn

from rmixer.estimate.estimator import Estimator, Target
from rmixer.model import Profile
from rmixer.profile.peaks import known_peaks
from rmixer.profile.static import static_profile
from rmixer.spec import load_jobs_file
from rmixer.store import Store
from rmixer.trace.build import trace_build

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
RESULTS = Path(__file__).resolve().parent / "results"
KINDS = {"k80": "K80", "p100": "P100", "v100": "V100"}
PUBLISHED_KIND = "V100"


class Block(nn.Module):
    """A residual block: two convolutions of 3x3, or a bottleneck of 1x1, 3x3, 1x1."""

    def __init__(self, inside: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        out = width * (4 if bottleneck else 1)
        shapes = (
            [(inside, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
            if bottleneck
            else [(inside, width, 3, stride), (width, width, 3, 1)]
        )
        parts: list[nn.Module] = []
        for a, b, size, step in shapes:
            parts += [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b)]
            parts.append(nn.ReLU())
        self.body = nn.Sequential(*parts[:-1])
        same = stride == 1 and inside == out
        self.side = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.side(x))


def resnet(depths: tuple[int, ...], *, bottleneck: bool, small: bool, classes: int) -> nn.Module:
    stem: list[nn.Module] = (
        [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        if small
        else [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    )  # fmt: skip
    inside = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            stem.append(Block(inside, width, stride, bottleneck=bottleneck))
            inside = width * (4 if bottleneck else 1)
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


class Language(nn.Module):
    """The LSTM of PyTorch's word_language_model with its defaults, on WikiText-2."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(33278, 200)
        self.lstm = nn.LSTM(200, 200, 2)
        self.head = nn.Linear(200, 33278)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(self.lstm(self.words(ids))[0]), -1)


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def cifar(batch: int) -> Any:
    model = resnet((2, 2, 2, 2), bottleneck=False, small=True, classes=10)
    return model, sgd(model), torch.zeros(batch, 3, 32, 32)


def imagenet(batch: int) -> Any:
    model = resnet((3, 4, 6, 3), bottleneck=True, small=False, classes=1000)
    return model, sgd(model), torch.zeros(batch, 3, 224, 224)


def language(batch: int) -> Any:
    model = Language()
    return model, sgd(model), torch.zeros(35, batch, dtype=torch.int64)


#: Name in Gavel's table, what builds it, its batch sizes there.
MODELS: tuple[tuple[str, Callable[[int], Any], tuple[int, ...]], ...] = (
    ("ResNet-18", cifar, (16, 32, 64, 128, 256)),
    ("ResNet-50", imagenet, (16, 32, 64, 128)),
    ("LM", language, (5, 10, 20, 40, 80)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one batch size each, no workloads")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--out", type=Path, default=RESULTS / "static_profiles.json")
    args = parser.parse_args()
    if not SHARED.is_dir():
        raise SystemExit(f"{SHARED}: the published tables are not there")
    rows = list(gavel(quick=args.quick))
    loads = [] if args.quick else list(workloads())
    document = {
        "command": " ".join(["python", "benchmarks/static_profiles.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "gavel": rows,
        "errors": errors(rows),
        "workloads": loads,
        "rank_correlation": rank(loads),
    }
    text = json.dumps(document, indent=2) + "\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(text if args.json else render(document))


def gavel(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Measured and predicted steps per second."""
    path = SHARED / "traces" / "gavel" / "oracle_throughputs.json.gz"
    with gzip.open(path, "rt") as file:
        measured = json.load(file)
    for name, build, sizes in MODELS:
        for batch in sizes[2:3] if quick else sizes:
            trace = trace_build(lambda b=build, n=batch: b(n), evaluate=False)
            inputs = sum(row[0] for row in trace["storages"] if row[1] == "inputs")
            for table, kind in KINDS.items():
                solo = measured[table].get(f"{name} (batch size {batch})", {}).get("null")
                if not solo:
                    continue
                profile = static(kind, trace["calls"], inputs)
                yield {
                    "kind": kind, "model": name, "batch": batch, "measured": solo,
                    "predicted": 1 / (profile.step_seconds or 1.0),
                }  # fmt: skip


def static(kind: str, calls: Any, inputs: int) -> Profile:
    profile = static_profile(kind, calls, known_peaks(kind), input_bytes=inputs)
    assert profile is not None
    return profile


def workloads() -> Iterator[dict[str, Any]]:
    """Published utilisation, and the share of a step in which the trace keeps the GPU busy."""
    path = SHARED / "facts" / "published-workloads.csv"
    published = {row["workload"]: row for row in csv.DictReader(path.open())}
    jobs = load_jobs_file(ROOT / "examples" / "workloads.yaml", require_data=False).jobs
    with tempfile.TemporaryDirectory() as folder:
        found = Estimator(Store(Path(folder) / "store")).estimate(
            jobs, Target(device=PUBLISHED_KIND), parse=True
        )
    for one in found:
        if not one.calls:
            raise SystemExit(f"{one.name}: {'; '.join(one.notes)}")
        profile = static(PUBLISHED_KIND, one.calls, one.bytes.get("inputs", 0))
        row, step = published[one.name], profile.step_seconds or 0.0
        busy = sum(profile.demand.get(name, 0.0) for name in ("compute", "bandwidth"))
        solo = row["solo_seconds_500_iterations"]
        yield {
            "workload": one.name,
            "published_utilisation": float(row["gpu_utilisation_percent"]) / 100,
            "static_utilisation": busy,
            "published_step_seconds": float(solo) / 500 if solo else None,
            "static_step_seconds": step,
            "static_busy_of_published_step": busy * step * 500 / float(solo) if solo else None,
        }


def errors(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Per model and per kind of GPU: mean error of the rate, and the median of their ratio."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for key in (row["model"], row["kind"], "all"):
            groups.setdefault(key, []).append(row)
    return {
        key: {
            "mape": statistics.fmean(abs(r["predicted"] / r["measured"] - 1) for r in some),
            "ratio": statistics.median(r["predicted"] / r["measured"] for r in some),
        }
        for key, some in groups.items()
    }


def rank(loads: list[dict[str, Any]]) -> dict[str, float]:
    """Whether the order by utilisation is the published one."""
    if not loads:
        return {}
    true = [row["published_utilisation"] for row in loads]
    names = ("static_utilisation", "static_busy_of_published_step")
    return {name: float(spearmanr(true, [row[name] for row in loads])[0]) for name in names}


def render(document: dict[str, Any]) -> str:
    lines = ["| GPU | model | batch | measured steps/s | predicted |", "|---|---|---|---|---|"]
    lines += [
        f"| {r['kind']} | {r['model']} | {r['batch']} | {r['measured']:.1f} "
        f"| {r['predicted']:.1f} |"
        for r in document["gavel"]
    ]
    lines += ["", "| of | mean error | median predicted/measured |", "|---|---|---|"]
    for key, row in document["errors"].items():
        lines.append(f"| {key} | {100 * row['mape']:.0f} % | {row['ratio']:.2f} |")
    if document["workloads"]:
        lines += ["", "| workload | published utilisation | static | published step | static |"]
        lines.append("|---|---|---|---|---|")
    for r in document["workloads"]:
        true, own = r["published_step_seconds"], r["static_step_seconds"]
        lines.append(
            f"| {r['workload']} | {100 * r['published_utilisation']:.0f} % "
            f"| {100 * r['static_utilisation']:.0f} % | {1000 * true:.0f} ms "
            f"| {1000 * own:.1f} ms |"
        )
    lines += [f"rank correlation, {key}: {value:.2f}" for key, value in
              document["rank_correlation"].items()]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
