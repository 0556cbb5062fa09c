"""A trace of storages played through an allocator."""

from __future__ import annotations

from typing import Any

import pytest

from rmixer.errors import UsageError
from rmixer.estimate.blocks import OutOfMemory
from rmixer.estimate.heap import MIB, HeapSettings
from rmixer.estimate.timeline import gpu_peak, host_peak


def trace(storages: list[tuple[int, str, int]], events: list[Any], **more: Any) -> dict[str, Any]:
    """A trace document; storages are (bytes, category, on the host)."""
    return {
        "schema_version": 1,
        "logical": "cuda",
        "operators": ["add", "mm", "embedding_dense_backward"],
        "storages": [[size, kind, f"s{i}", host] for i, (size, kind, host) in enumerate(storages)],
        "events": events,
        **more,
    }


def op(number: int, phase: str = "forward", sizes: Any = ()) -> list[Any]:
    return ["o", number, phase, list(sizes)]


def test_the_peak_has_its_moment_and_what_lives_then() -> None:
    """Of three storages two live at the peak; the operator that made the second one is named."""
    made = trace(
        [(30 * MIB, "parameters", 0), (20 * MIB, "activations", 0), (40 * MIB, "gradients", 0)],
        [op(0), ["a", 0], ["a", 1], ["f", 1], op(1, "backward"), ["a", 2], op(0), ["f", 2]],
    )
    peak = gpu_peak(made)
    assert peak.allocated == 70 * MIB
    assert peak.reserved == 90 * MIB  # the segment of the dead one is too small for the last
    assert (peak.operator, peak.phase) == ("mm", "backward")
    assert peak.by_category["parameters"] == 30 * MIB
    assert peak.by_category["activations"] == 0
    assert [t.name for t in peak.largest] == ["s2", "s0"]


def test_the_workspace_is_taken_once_per_thread() -> None:
    """Forward and backward pass have a thread each; a second product takes no more."""
    events = [op(1), op(1), op(1, "backward"), op(1, "optimizer"), ["a", 0]]
    peak = gpu_peak(trace([(MIB, "inputs", 0)], events), workspace=32 * MIB)
    assert peak.by_category["temporaries"] == 64 * MIB
    assert peak.allocated == 65 * MIB


def test_temporaries_of_operators_count_while_they_run() -> None:
    """The sort buffers of an embedding's gradient are there for its moment only."""
    sizes = [[1000 * 16, 4], [1000, 8]]
    peak = gpu_peak(trace([(MIB, "parameters", 0)], [["a", 0], op(2, "backward", sizes), op(0)]))
    assert peak.by_category["temporaries"] > 1000 * 8 * 4
    assert peak.operator == "embedding_dense_backward"


def test_what_is_on_the_other_side_is_left_out() -> None:
    """A program for a GPU has storages on the host: each side counts its own."""
    made = trace([(8 * MIB, "parameters", 0), (4 * MIB, "inputs", 1)], [["a", 0], ["a", 1]])
    assert gpu_peak(made).allocated == 8 * MIB
    assert 4 * MIB <= host_peak(made, HeapSettings()).reserved < 5 * MIB


def test_a_device_that_is_too_small_is_an_error() -> None:
    """The limit counts after cached memory was given back."""
    made = trace([(30 * MIB, "inputs", 0), (40 * MIB, "inputs", 0)], [["a", 0], ["f", 0], ["a", 1]])
    assert gpu_peak(made, limit_bytes=40 * MIB).reserved == 40 * MIB
    with pytest.raises(OutOfMemory):
        gpu_peak(made, limit_bytes=39 * MIB)


def test_a_foreign_document_is_refused() -> None:
    """The version is looked at before anything else."""
    with pytest.raises(UsageError, match="version 1"):
        gpu_peak({"schema_version": 7})
