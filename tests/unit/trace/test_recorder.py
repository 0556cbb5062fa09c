"""Programs on fake tensors: what is recorded is what would have been allocated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rmixer.errors import UsageError
from rmixer.estimate.heap import MIB
from rmixer.estimate.timeline import gpu_peak, host_peak
from rmixer.trace.build import trace_build
from rmixer.trace.recorder import Recorder


def mlp(width: int = 1024, depth: int = 3, rows: int = 64) -> Any:
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(depth)])
    return model, torch.optim.Adam(model.parameters()), (torch.randn(rows, width),)


def test_dense_adam_has_four_copies() -> None:
    """Parameters, gradients and two moments: 4 x 4 B x elements, by name."""
    peak = gpu_peak(trace_build(mlp))
    size = 3 * 1024 * 1024 * 4
    assert peak.by_category["parameters"] == size
    assert peak.by_category["gradients"] == size
    assert 2 * size <= peak.by_category["optimizer_state"] <= 2 * size + 4096
    assert any(t.name.startswith("0.weight") for t in peak.largest)
    assert peak.phase == "optimizer"


def test_a_large_table_with_dense_adam() -> None:
    """1,048,576 x 256 float32: weight, gradient and two moments are 4 GiB, and no memory is used."""

    def build() -> Any:
        table = nn.Embedding(1 << 20, 256)
        return table, torch.optim.Adam(table.parameters()), (torch.randint(0, 1 << 20, (512,)),)

    peak = gpu_peak(trace_build(build))
    assert peak.allocated >= 4 << 30
    assert peak.reserved < 7 << 30


def test_a_sparse_gradient_has_the_rows_of_the_batch() -> None:
    """Indices (int64) and values of what the batch touched, not of the table."""

    def build() -> Any:
        table = nn.Embedding(1 << 20, 64, sparse=True)
        return table, torch.optim.SGD(table.parameters(), 0.1), (torch.randint(0, 1 << 20, (512,)),)

    peak = host_peak(trace_build(build, "cpu", evaluate=False))
    assert peak.by_category["gradients"] <= 2 * 512 * (64 * 4 + 8)
    trace = trace_build(build, "cpu", evaluate=False)
    gradients = [row for row in trace["storages"] if row[1] == "gradients"]
    assert {row[0] for row in gradients} == {512 * 8, 512 * 64 * 4}


def test_adam_on_a_gpu_takes_the_foreach_path() -> None:
    """The temporaries of all parameters live at once there, one by one on a CPU."""
    on_gpu, on_cpu = (trace_build(lambda: mlp(depth=6), logical) for logical in ("cuda", "cpu"))
    assert any(name.startswith("_foreach") for name in on_gpu["operators"])
    assert not any(name.startswith("_foreach") for name in on_cpu["operators"])
    assert gpu_peak(on_gpu).allocated > gpu_peak(on_cpu).allocated


def test_accumulation_keeps_gradients_and_does_not_add_any() -> None:
    """Two backward passes per step need no more than one and the gradients that wait."""
    once, twice = gpu_peak(trace_build(mlp)), gpu_peak(trace_build(mlp, accumulate=2))
    assert once.allocated <= twice.allocated <= once.allocated + 3 * 4 * MIB + MIB


def test_mixed_precision_halves_activations() -> None:
    """Products give 2 bytes per element under autocast; float32 weights are cast and kept."""

    def wide() -> Any:
        return mlp(width=256, depth=6, rows=65536)

    full = gpu_peak(trace_build(wide))
    half = gpu_peak(trace_build(wide, autocast=torch.bfloat16))
    assert half.by_category["activations"] < 0.7 * full.by_category["activations"]


def test_a_program_that_moves_to_a_gpu_runs_without_one() -> None:
    """``.to("cuda")``, ``device="cuda"``, ``.cuda()`` and ``.item()`` all work."""

    def build() -> Any:
        assert torch.cuda.is_available()
        device = torch.device("cuda")
        model = nn.Linear(512, 512).to(device)
        extra = torch.ones(512, device="cuda:0")
        batch = torch.randn(64, 512).cuda()
        return model, torch.optim.SGD(model.parameters(), 0.1), (batch * extra,)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        out = model(*batch).square().mean()
        assert isinstance(out.item(), float)
        return out

    assert not torch.cuda.is_available()
    assert gpu_peak(trace_build(build, loss=loss)).by_category["parameters"] >= 512 * 512 * 4
    assert not torch.cuda.is_available()


def test_evaluation_counts() -> None:
    """A forward pass without gradients frees as it goes."""
    with_it = trace_build(mlp, evaluate=True)
    assert len(with_it["events"]) > len(trace_build(mlp, evaluate=False)["events"])


def test_a_wrong_build_is_told() -> None:
    """What ``build`` must return, and what steps can be."""
    with pytest.raises(UsageError, match="model, optimizer, batch"):
        trace_build(lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="at least 1"):
        trace_build(mlp, steps=0)


@pytest.mark.parametrize("make", ["adam", "adagrad", "sgd", "sparse"])
def test_the_peak_equals_a_real_run(make: str) -> None:
    """Living bytes at the peak of a traced CPU run are those of the run itself, to 1 %."""

    def build() -> Any:
        torch.manual_seed(0)
        table = nn.Embedding(20_000, 32, sparse=make == "sparse")
        model = nn.Sequential(
            table, nn.Flatten(), nn.Linear(8 * 32, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        makers = {
            "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad,
            "sgd": torch.optim.SGD, "sparse": torch.optim.SGD,
        }  # fmt: skip
        return (
            model,
            makers[make](model.parameters(), lr=0.01),
            (torch.randint(0, 20_000, (512, 8)),),
        )

    traced = host_peak(trace_build(build, "cpu", evaluate=False))
    assert traced.allocated == pytest.approx(_really(build), rel=0.01)


def _really(build: Any) -> int:
    """The highest sum of living storages while three real steps run."""
    recorder = Recorder("cpu", large_bytes=1 << 60)
    live = peak = 0
    with recorder:
        model, optimizer, batch = build()
        for part in (model.parameters(), batch):
            recorder.label_all(list(part), "parameters")
        for _ in range(3):
            F.relu(model(*batch)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for event in recorder.events:
        if event[0] in ("a", "f"):
            size = recorder.storages[event[1]]["bytes"]
            live += size if event[0] == "a" else -size
            peak = max(peak, live)
    return peak
