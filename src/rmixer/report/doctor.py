"""What ``rmixer doctor`` finds out: the machine, its tools, and what was measured of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rmixer import paths
from rmixer.estimate.contexts import context_key, context_of
from rmixer.estimate.host import STATED, baseline_key
from rmixer.execute.logtail import last_line
from rmixer.model import JobSpec
from rmixer.monitor import discover_node
from rmixer.report.checks import all_checks
from rmixer.resources import format_bytes
from rmixer.store import Store

LIMIT_SECONDS = 120.0
#: A process of its own, since a context lives as long as its process. Free memory before the first
#: tensor and after it, as the driver tells, less the segment that the allocator then holds.
_MEASURE = """
import json, sys, pynvml, torch
index = int(sys.argv[1])
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(index)
before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
x = torch.randn(512, 512, device="cuda:0", requires_grad=True)
(x @ x).relu().sum().backward()
torch.cuda.synchronize()
after = pynvml.nvmlDeviceGetMemoryInfo(handle).used
print(json.dumps(after - before - torch.cuda.memory_reserved()))
"""


def examine(jobs: Sequence[JobSpec] = (), *, measure_contexts: bool = False) -> dict[str, Any]:
    """The machine as jobs see it.

    Args:
        jobs: whose interpreters are looked at too.
        measure_contexts: measure the CUDA context of every GPU and keep it.
    """
    node = discover_node()
    store = Store(paths.store_path())
    gpus, problems = [], []
    for device in node.devices:
        if device.index is None:
            continue
        if measure_contexts:
            problems += _measure(store, device.index, device.id, device.kind)
        context = context_of(store.context(context_key(device.kind)))
        gpus.append({
            "id": device.id,
            "kind": device.kind,
            "free_bytes": device.memory,
            "context_bytes": context.bytes,
            "context_source": context.source,
        })  # fmt: skip
    if measure_contexts and not gpus:
        problems.append("there is no GPU here whose context could be measured")
    known = store.baseline(baseline_key(None))
    checks = all_checks(node, jobs)
    problems += [f"{c.name}: {c.found}" for c in checks if c.state == "problem"]
    return {
        "schema_version": 1,
        "node": node.name,
        "cores": len(node.cores),
        "memory_bytes": node.memory,
        "gpus": gpus,
        "process": {
            "anonymous_bytes": known[0] if known else STATED.anonymous,
            "file_bytes": known[1] if known else STATED.file,
            "source": "measured" if known else STATED.source,
        },
        "python": sys.version.split()[0],
        "store": str(paths.store_path()),
        "cache": str(paths.cache_dir()),
        "checks": [check.as_dict() for check in checks],
        "problems": problems,
    }


def _measure(store: Store, index: int, uuid: str, kind: str) -> list[str]:
    """Measure one GPU's context; what went wrong, if something did."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(index)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
            capture_output=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
        size = int(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return [f"{kind}: no context within {LIMIT_SECONDS:.0f} s"]
    except subprocess.CalledProcessError as error:
        return [f"{kind}: the context cannot be measured: {last_line(error.stderr)}"]
    except ValueError as error:
        return [f"{kind}: the context cannot be measured: {error}"]
    if size <= 0:
        return [f"{kind}: other processes changed its memory meanwhile; measure again"]
    store.keep_context(context_key(kind), size, time.time())
    return []


def render_examination(document: Mapping[str, Any]) -> str:
    """For people."""
    process = document["process"]
    warm = process["anonymous_bytes"] + process["file_bytes"]
    memory, gpus = format_bytes(document["memory_bytes"]), len(document["gpus"])
    lines = [
        f"{document['node']}: {document['cores']} cores, {memory} for jobs, {gpus} GPUs",
        f"a warm training process without tensors: {format_bytes(warm)} ({process['source']})",
    ]
    lines += [
        f"{gpu['kind']} {gpu['id']}: {format_bytes(gpu['free_bytes'])} free, context "
        f"{format_bytes(gpu['context_bytes'])} ({gpu['context_source']})"
        for gpu in document["gpus"]
    ]
    lines += [f"store: {document['store']}", f"data cache: {document['cache']}", ""]
    for check in document["checks"]:
        state = "" if check["state"] == "ok" else f"{check['state'].upper()}: "
        lines.append(f"{check['name']}: {state}{check['found']}")
        lines += [f"    so: {check['follows']}"] * bool(check["follows"])
        lines += [f"    to mend it: {check['mend']}"] * bool(check["mend"])
    lines += [f"problem: {problem}" for problem in document["problems"]]
    return "\n".join(lines)
