"""Programs on fake tensors: what is recorded is what would have been allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

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
    """A forward pass without gradients can be the peak: here its batch is larger than a step's."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0] if model.training else batch[0].repeat(400, 1)).mean()

    without, with_it = (trace_build(mlp, loss=loss, evaluate=e) for e in (False, True))
    assert gpu_peak(with_it).allocated > gpu_peak(without).allocated + 50 * MIB
    assert gpu_peak(with_it).phase == "evaluation"


def bag(optimizer: Any = torch.optim.SGD) -> Any:
    torch.manual_seed(0)
    table = nn.EmbeddingBag(100_000, 16, sparse=True, mode="sum")
    return table, optimizer(table.parameters(), lr=0.1), (torch.randint(0, 100_000, (1024, 20)),)


def test_a_bag_has_a_row_per_index() -> None:
    """``EmbeddingBag``'s gradient is made whole by one operator; its rows are those of its ids."""
    trace = trace_build(bag, "cpu", evaluate=False)
    sizes = {row[0] for row in trace["storages"] if row[1] == "gradients"}
    assert sizes == {20480 * 8, 20480 * 16 * 4}
    assert host_peak(trace).allocated == pytest.approx(_really(bag), rel=0.1)


def test_sparse_gradients_add_up() -> None:
    """Eight backward passes with other ids touch eight times the rows; the same ids do not."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return model(torch.randint(0, 1 << 20, (256,))).mean()

    def build() -> Any:
        table = nn.Embedding(1 << 20, 16, sparse=True)
        return table, torch.optim.SGD(table.parameters(), 0.1), ()

    one, eight = (
        host_peak(trace_build(build, "cpu", loss=loss, accumulate=n, evaluate=False))
        for n in (1, 8)
    )
    assert eight.by_category["gradients"] >= 8 * 256 * 16 * 4
    assert eight.allocated - one.allocated >= 7 * 256 * 16 * 4


def test_coalescing_merges_rows_that_are_known() -> None:
    """Ids stay real, so how many different rows a batch touches is true."""

    def build() -> Any:
        table = nn.Embedding(1000, 64, sparse=True)
        ids = torch.arange(4096) % 10
        return table, torch.optim.SparseAdam(table.parameters(), 0.1), (ids,)

    peak = host_peak(trace_build(build, "cpu", evaluate=False))
    assert peak.allocated < 2 * 4096 * 64 * 4 + 3 * 1000 * 64 * 4 + MIB


@pytest.mark.parametrize("logical", ["cpu", "cuda"])
def test_what_scripts_do_with_values(logical: str) -> None:
    """NaN checks say no, numbers can be printed, and nothing is written into a checkpoint."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = model(*batch).square().mean()
        assert not torch.isnan(value)
        assert not torch.isinf(value).any()
        assert torch.isfinite(value)
        assert f"{value:.3f} {value.item():.2f}" == "0.000 1.00"
        assert value.detach().cpu().numpy().shape == ()
        return value

    assert gpu_peak(trace_build(mlp, logical, loss=loss)).allocated > 0


def test_a_checkpoint_that_is_there_stays_whole(tmp_path: Path) -> None:
    """Tensors without values do not replace a file that has some."""
    file = tmp_path / "model.pt"
    torch.save({"a": torch.ones(3)}, file)
    before = file.read_bytes()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        torch.save(model.state_dict(), file)
        return model(*batch).mean()

    trace_build(mlp, "cpu", loss=loss)
    assert file.read_bytes() == before


@pytest.mark.parametrize("logical", ["cpu", "cuda"])
def test_modules_move_and_change_their_type(logical: str) -> None:
    """``.to(device)`` and ``.half()`` of a module: parameters of half the size."""

    def build(dtype: torch.dtype) -> Any:
        model = nn.Linear(1024, 1024).to("cpu" if logical == "cpu" else 0).to(dtype)
        batch = torch.ones(8, 1024, dtype=dtype)
        return model, torch.optim.SGD(model.parameters(), 0.1), (batch,)

    sizes = [
        gpu_peak(trace_build(lambda d=dtype: build(d), logical)).by_category["parameters"]
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert sizes[1] < 0.6 * sizes[0]


def test_gpu_idioms_without_a_gpu() -> None:
    """Default device, properties, events, tensors made of lists: on the GPU that is not there."""

    def build() -> Any:
        torch.set_default_device("cuda")
        assert torch.cuda.get_device_properties(0).total_memory > 1 << 30
        timer = torch.cuda.Event(enable_timing=True)
        timer.record()
        table = torch.tensor([[0.0] * 100] * 1000, device="cuda")
        torch.set_default_device("cpu")
        model = nn.Linear(100, 1)
        return model, torch.optim.SGD(model.parameters(), 0.1), (table,)

    peak = gpu_peak(trace_build(build))
    assert peak.by_category["inputs"] >= 400_000
    assert torch.get_default_device().type == "cpu"


def test_a_model_that_is_there_is_not_trained() -> None:
    """``build`` must make it; the caller's random numbers are left as they were too."""
    model = nn.Linear(4, 1)
    before, state = model.weight.clone(), torch.get_rng_state()
    with pytest.raises(UsageError, match="make the model itself"):
        trace_build(lambda: (model, torch.optim.SGD(model.parameters(), 0.1), (torch.ones(2, 4),)))
    trace_build(mlp)
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


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
            model(*batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for event in recorder.events:
        if event[0] in ("a", "f"):
            size = recorder.storages[event[1]]["bytes"]
            live += size if event[0] == "a" else -size
            peak = max(peak, live)
    return peak
