"""``python -m rmixer.trace.worker``: the process in which estimates of our trainings are traced.

Reads a request from stdin (JSON: ``jobs``, ``device``, ``cache_dir``, ``parse``, ``environment``,
``workspace``), and writes one JSON line per job to stdout as soon as it is known, so that what is
done counts if the process is stopped. Other output goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.errors import RmixerError
from rmixer.estimate.heap import HeapSettings
from rmixer.estimate.timeline import gpu_peak, host_peak, sum_costs, why_not
from rmixer.monitor import own_memory

if TYPE_CHECKING:
    from rmixer.data.info import DataInfo

INDEX = 4  # bytes of a row number
#: Of the files of a data set; the others are read and let go.
_MAPPED = (".i4", ".i8")


def main() -> int:
    """Answer the request on stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a model of somebody else's prints is not an answer
    request = json.load(sys.stdin)
    for job in request["jobs"]:
        began = time.perf_counter()
        try:
            answer = trace_job(job, request)
        except RmixerError as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - one job that cannot be traced is no failure
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer |= {"id": job["id"], "seconds": time.perf_counter() - began}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


def trace_job(job: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """What one training needs: peaks on host and device, mapped data, costs of a step."""
    folder, info = _parsed(job, request)  # before torch is imported: it may end here

    from rmixer.trace.ours import Training, trace_training  # noqa: PLC0415

    training = Training(
        model=job["model"],
        params=job.get("params") or {},
        optimizer=job["optimizer"],
        batch_size=job["batch_size"],
        seed=job.get("seed") or 0,
        folder=folder,
        info=info,
    )
    gpu = request["device"] != "cpu"
    trace = trace_training(training, "cuda" if gpu else "cpu")
    answer: dict[str, Any] = {
        "costs": sum_costs(trace["costs"]),
        "calls": trace["calls"],
        "mapped_bytes": info.mapped_bytes if info else _size(folder),
        "order_bytes": 2 * INDEX * (info.train_rows if info else _rows(folder)),
        "resident_bytes": own_memory()["peak_bytes"],
    }
    if gpu:
        workspace = request.get("workspace") or 0
        answer["device"] = asdict(gpu_peak(trace, workspace=workspace))
        answer["refusal"] = why_not(trace, workspace, request.get("limit_bytes"))
    else:
        settings = HeapSettings.from_environment(request.get("environment") or {})
        answer["host"] = asdict(host_peak(trace, settings))
    return answer


def _parsed(
    job: Mapping[str, Any], request: Mapping[str, Any]
) -> tuple[Path | None, DataInfo | None]:
    """The parsed data of a job, if it has any; else what headers tell of them.

    They are parsed now only if the request says so and headers do not tell.
    """
    from rmixer.data import cache, detect, schema  # noqa: PLC0415

    if job.get("data") is None:
        return None, None
    spec = schema.parse(job["data"])
    found = cache.find(spec, Path(request["cache_dir"]))
    if found is not None:
        return found, None
    info = detect.header_info(spec)
    if info is not None:
        return None, info
    if not request.get("parse"):
        raise RmixerError("its data are not parsed yet, so the sizes of its tables are not known")
    return cache.prepare(spec, Path(request["cache_dir"])), None


def _rows(folder: Path | None) -> int:
    """Training rows, whose shuffled order is kept in memory."""
    return (folder / "train.i4").stat().st_size // INDEX if folder else 0


def _size(folder: Path | None) -> int:
    """Bytes of the columns that a training maps."""
    return sum(f.stat().st_size for f in folder.iterdir() if f.suffix in _MAPPED) if folder else 0


if __name__ == "__main__":
    sys.exit(main())
