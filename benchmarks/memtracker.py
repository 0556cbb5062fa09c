"""Our estimates of host memory against PyTorch's own `MemTracker`, and against sums of tensors.

For the configurations of `estimate.py` that train a model of ours, whose true peaks are in its
results: `torch.distributed._tools.mem_tracker.MemTracker` around two steps of the same training,
really computed (it refuses sparse gradients, so it is given their parts); and the sum that people
make by hand: parameters, their gradients, the optimizer's state and the batch. Both count tensors
alone, so both get for free what our estimate takes for the interpreter and its libraries.

    python benchmarks/memtracker.py            # writes results/memtracker.json, docs/results.md
    python benchmarks/memtracker.py --only "dlrm adam"
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.distributed._tools import mem_tracker

import pages
from estimate import RESULTS as MEASURED
from estimate import configurations
from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset, shuffled
from rmixer.models.model import build, objective
from rmixer.train import optimizers
from rmixer.train.touched import TouchedRows

RESULTS = Path(__file__).resolve().parent / "results" / "memtracker.json"


_storages = mem_tracker.get_untyped_storages


def storages(tensor: torch.Tensor) -> set[torch.UntypedStorage]:
    """Those of a tensor; of a sparse one, which torch 2.13 refuses, those of its parts."""
    if tensor.layout == torch.strided:
        return _storages(tensor)
    return _storages(tensor._indices()) | _storages(tensor._values())  # noqa: SLF001


mem_tracker.get_untyped_storages = storages


def tracked(keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Bytes by both ways, and the seconds that `MemTracker` takes."""
    dataset = Dataset(cache.prepare(schema.parse(keys["data"]), folder))
    torch.manual_seed(0)
    model = build(keys["model"], keys.get("params", {}), dataset.info)
    optimizer = optimizers.build(keys["optimizer"], model)
    batches = shuffled(dataset.train_rows, keys["batch_size"], 0, 1)
    began = time.perf_counter()
    tracker = mem_tracker.MemTracker()
    tracker.track_external(model, *optimizer.parts)
    with tracker:
        for rows in islice(batches, 2):
            tracker.reset_mod_stats()
            objective(model, dataset.batch(rows)).backward()
            optimizer.step()
            optimizer.zero_grad()
    peak = sum(snapshot["Total"] for snapshot in tracker.get_tracker_snapshot("peak").values())
    return {
        "tracker_bytes": peak, "sum_bytes": summed(model, optimizer, dataset, keys["batch_size"]),
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def summed(
    model: torch.nn.Module, optimizer: optimizers.Combined, dataset: Dataset, size: int
) -> int:
    """Parameters, as large gradients of those that are dense, state, and a batch."""
    tables = {id(table) for table in optimizer.tables}
    total = sum(p.nbytes * (1 if id(p) in tables else 2) for p in model.parameters())
    for part in optimizer.parts:
        assert isinstance(part, TouchedRows | torch.optim.Optimizer)
        for state in part.state.values():
            total += sum(value.nbytes for value in state.values() if torch.is_tensor(value))
    batch = dataset.batch(next(shuffled(dataset.train_rows, size, 0, 1)))
    given = [batch.dense_BN, batch.sparse_BF, batch.label_B]
    for lists in batch.sequences.values():
        given += [lists.values_L, lists.owner_L, lists.length_B]
    return total + sum(tensor.nbytes for tensor in given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="configurations whose name has this in it")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    if args.table:
        pages.put("results.md", "memtracker", table(json.loads(RESULTS.read_text())))
        return
    torch.set_num_threads(1)
    known = {row["name"]: row for row in json.loads(MEASURED.read_text())["rows"]}
    rows, refused = [], []
    with tempfile.TemporaryDirectory(prefix="memtracker-") as folder:
        for one in configurations():
            if "model" not in one.keys or args.only not in one.name or one.name not in known:
                continue
            row = known[one.name]
            kept = {k: row[k] for k in ("name", "measured_bytes", "estimated_bytes")}
            try:
                found = tracked(one.keys, Path(folder))
            except NotImplementedError as error:  # a module that a step calls twice
                print(f"{one.name}: {error}", flush=True)
                refused.append(one.name)
                continue
            rows.append({
                **kept, "ours_seconds": row["seconds"], "context": row["parts"]["context"],
                "group": one.group, **found,
            })  # fmt: skip
            print(line(rows[-1]), flush=True)
    document = {"date": time.strftime("%Y-%m-%d"), "rows": rows, "refused": refused}
    print(table(document))
    if not args.only:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        pages.put("results.md", "memtracker", table(document))


def errors(row: Mapping[str, Any]) -> dict[str, float]:
    """Of each way, relative; the baseline is given to those that count tensors alone."""
    told = {
        "ours": row["estimated_bytes"],
        "tracker": row["tracker_bytes"] + row["context"],
        "sum": row["sum_bytes"] + row["context"],
    }
    return {name: value / row["measured_bytes"] - 1 for name, value in told.items()}


def line(row: Mapping[str, Any]) -> str:
    found = ", ".join(f"{name} {error:+.1%}" for name, error in errors(row).items())
    return f"{row['name']:48} {row['measured_bytes'] / 2**20:6.0f} MiB: {found}"


def table(document: Mapping[str, Any]) -> str:
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    lines = [
        f"`python benchmarks/memtracker.py`, 2-core x86 VM, {document['date']}: {len(rows)}",
        "configurations of `benchmarks/estimate.py`; errors of the peak of the host's memory.",
        "",
        "| model | n | ours, mean, range | `MemTracker` + baseline | sum of tensors + baseline |",
        "|---|---:|---|---|---|",
    ]
    groups = [*dict.fromkeys(row["group"] for row in rows), ""]
    for group in groups:
        some = [row for row in rows if group in ("", row["group"])]
        cells = [_cell([errors(row)[name] for row in some]) for name in ("ours", "tracker", "sum")]
        lines.append(f"| {group or '**all**'} | {len(some)} | {' | '.join(cells)} |")
    ours = statistics.median(row["ours_seconds"] for row in rows)
    theirs = statistics.median(row["seconds"] for row in rows)
    text = f"Time, medians: ours {ours:.1f} s, nothing computed; theirs {theirs:.1f} s."
    if refused := document["refused"]:
        text += f" `MemTracker` refuses {len(refused)}: {', '.join(refused)}."
    return "\n".join([*lines, "", text])


def _cell(found: Sequence[float]) -> str:
    mean = statistics.mean(map(abs, found))
    return f"{mean:.1%} ({min(found):+.1%} to {max(found):+.1%})"


if __name__ == "__main__":
    main()
