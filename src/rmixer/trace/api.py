"""``rmixer.estimate(build)``: the peak memory of a training step that somebody wrote."""

from __future__ import annotations

import time
from typing import Any

from rmixer.errors import UsageError
from rmixer.estimate.blocks import AllocatorSettings, OutOfMemory
from rmixer.estimate.contexts import context_of, cublas_workspace
from rmixer.estimate.estimates import JobEstimate, refusal
from rmixer.estimate.quantiles import reserve
from rmixer.estimate.timeline import CATEGORIES, Peak, gpu_peak, host_peak
from rmixer.model import CPU
from rmixer.trace.build import Build, trace_build
from rmixer.trace.cost import summarize


def estimate(
    build: Build,
    device: str = "cuda",
    *,
    device_memory: int | None = None,
    context: int | None = None,
    allocator: AllocatorSettings | None = None,
    **options: Any,
) -> JobEstimate:
    """The peak memory of three training steps and an evaluation, without the memory or a GPU.

    Args:
        build: returns ``(model, optimizer, batch)``. It may say ``device="cuda"`` or not: all that
            it builds counts as on ``device``.
        device: ``cuda``, a kind of GPU (``NVIDIA H200``), or ``cpu``.
        device_memory: of the GPU, bytes; whether it fits is told in ``refusal``.
        context: of a GPU process, bytes; None: the stated value.
        allocator: settings of the CUDA caching allocator.
        options: see `rmixer.trace.build.trace_build` (``loss``, ``steps``, ``accumulate``,
            ``autocast``, ``evaluate``).

    Raises:
        UsageError: an option or what ``build`` returns is not right.
    """
    began = time.perf_counter()
    if not device:
        raise UsageError("device: name one, for example cuda or cpu")
    gpu = device != CPU
    trace = trace_build(build, "cuda" if gpu else CPU, **options)
    around = context_of(context).bytes if gpu else 0
    workspace = cublas_workspace(device)
    peak = gpu_peak(trace, workspace=workspace, settings=allocator) if gpu else host_peak(trace)
    parts = {key: peak.by_category.get(key, 0) for key in CATEGORIES}
    total = peak.reserved + around
    why = ""
    if gpu and device_memory is not None:
        try:
            room = max(0, device_memory - around)
            gpu_peak(trace, workspace=workspace, settings=allocator, limit_bytes=room)
        except OutOfMemory:
            why = refusal("build", device, total, device_memory, parts)
    return JobEstimate(
        id="build",
        name="build",
        device=device,
        source="trace",
        bytes={
            **parts,
            "allocated_peak": peak.allocated,
            "reserved_peak": peak.reserved,
            "context": around,
            "total": total,
        },
        host_bytes=0 if gpu else peak.reserved,
        reserve_device_bytes=reserve(total, "trace-gpu") if gpu else 0,
        reserve_host_bytes=0 if gpu else reserve(peak.reserved, "trace"),
        seconds=time.perf_counter() - began,
        operator=peak.operator,
        phase=peak.phase,
        largest=_rows(peak),
        costs=summarize(trace["costs"]),
        refusal=why,
    )


def _rows(peak: Peak) -> tuple[dict[str, Any], ...]:
    return tuple({"name": t.name, "category": t.category, "bytes": t.bytes} for t in peak.largest)
