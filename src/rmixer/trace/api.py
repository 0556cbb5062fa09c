"""``rmixer.estimate(build)``: the peak memory of a training step that somebody wrote."""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict
from typing import Any

import torch

from rmixer.errors import UsageError
from rmixer.estimate.blocks import AllocatorSettings
from rmixer.estimate.contexts import context_of, cublas_workspace, device_name
from rmixer.estimate.estimates import JobEstimate, figures, refusal
from rmixer.estimate.host import STATED
from rmixer.estimate.quantiles import reserve
from rmixer.estimate.timeline import CATEGORIES, gpu_peak, host_peak, sum_costs, why_not
from rmixer.model import CPU
from rmixer.resources import parse_bytes
from rmixer.trace.build import Build, trace_build


def estimate(
    build: Build,
    device: str | torch.device = "cuda",
    *,
    device_memory: int | str | None = None,
    context: int | None = None,
    allocator: AllocatorSettings | None = None,
    **options: Any,
) -> JobEstimate:
    """The peak memory of three training steps and an evaluation, without the memory or a GPU.

    Args:
        build: returns ``(model, optimizer, batch)``. It may say ``device="cuda"`` or not: all that
            it builds counts as on ``device``.
        device: ``cuda``, a kind of GPU (``NVIDIA H200``), or ``cpu``.
        device_memory: of the GPU, bytes or ``"80GiB"``; whether it fits is told in ``refusal``.
        context: of a GPU process, bytes; None: the stated value.
        allocator: settings of the CUDA caching allocator.
        options: see `rmixer.trace.build.trace_build` (``loss``, ``steps``, ``accumulate``,
            ``autocast``, ``evaluate``).

    Raises:
        UsageError: an option or what ``build`` returns is not right, or its step fails.
    """
    began = time.perf_counter()
    device = device_name(str(device))
    device_memory = _size(device_memory)
    gpu = device != CPU
    trace = _traced(build, "cuda" if gpu else CPU, options)
    around = context_of(context).bytes if gpu else STATED.anonymous + STATED.file
    workspace = cublas_workspace(device)
    found = gpu_peak(trace, workspace=workspace, settings=allocator) if gpu else host_peak(trace)
    peak = asdict(found)
    sizes = figures(peak, around)
    total, why = sizes["total"], ""
    if gpu and device_memory is not None:
        room = max(0, device_memory - around)
        if why_not(trace, workspace, room, allocator) is not None:
            parts = {key: sizes[key] for key in (*CATEGORIES, "context")}
            why = refusal("build", device, total, device_memory, parts)
    return JobEstimate(
        id="build",
        name="build",
        device=device,
        source="trace",
        bytes=sizes,
        host_bytes=0 if gpu else total,
        shared_bytes=0 if gpu else STATED.file,
        reserve_device_bytes=reserve(total, "trace-gpu") if gpu else 0,
        reserve_host_bytes=0 if gpu else reserve(total - STATED.file, "trace"),
        seconds=time.perf_counter() - began,
        operator=found.operator,
        phase=found.phase,
        largest=peak["largest"],
        costs=sum_costs(trace["costs"]),
        refusal=why,
    )


def _traced(build: Build, logical: str, options: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(options.keys() - inspect.signature(trace_build).parameters.keys())
    if unknown:
        raise UsageError(f"estimate has no option {', '.join(unknown)}")
    try:
        return trace_build(build, logical, **options)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the step cannot be traced: {type(error).__name__}: {error} (loss=FUNCTION says how "
            "a loss is computed from model and batch; what depends on values cannot be traced)"
        ) from error


def _size(memory: int | str | None) -> int | None:
    try:
        size = None if memory is None else parse_bytes(memory)
    except (TypeError, ValueError) as error:
        raise UsageError(f"device_memory {memory!r}: {error}") from error
    if size is not None and size < 1:
        raise UsageError(f"device_memory must be above 0, not {memory!r}")
    return size
