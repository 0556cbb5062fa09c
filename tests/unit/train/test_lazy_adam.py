"""Adam that touches only a batch's rows is torch's Adam: in float64 exactly, in float32 nearer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rmixer.train.lazy_adam import LazyAdam
from rmixer.train.replay import DEGREE, ReplayTable, can_replay

torch.set_num_threads(1)
ROWS, WIDTH = 300, 4
SETTINGS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
Script = list[tuple[Tensor, Tensor]]


def script(steps: int, seed: int = 0) -> Script:
    """Rows and gradients per step: some rows in most steps, some once in hundreds, 13 decades."""
    generator = torch.Generator().manual_seed(seed)
    often = torch.logspace(-3, 0, ROWS)[torch.randperm(ROWS, generator=generator)]
    size = torch.logspace(-12, 1, ROWS, dtype=torch.float64)[:, None]
    found = []
    for _ in range(steps):
        rows = (torch.rand(ROWS, generator=generator) < often).nonzero()[:, 0]
        grad = torch.randn(len(rows), WIDTH, generator=generator, dtype=torch.float64)
        found.append((rows, grad * size[rows]))
    return found


def weights(dtype: torch.dtype) -> torch.nn.Parameter:
    generator = torch.Generator().manual_seed(1)
    table = 0.05 * torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return torch.nn.Parameter(table.to(dtype))


def dense(steps: Script, dtype: torch.dtype, **kind: bool) -> Tensor:
    """What torch makes of it."""
    param = weights(dtype)
    optimizer = torch.optim.Adam([param], lr=SETTINGS["lr"], **kind)
    for rows, grad in steps:
        param.grad = torch.zeros_like(param).index_copy_(0, rows, grad.to(dtype))
        optimizer.step()
    return param.detach()


def give(param: Tensor, rows: Tensor, grad: Tensor) -> None:
    param.grad = torch.sparse_coo_tensor(
        rows[None], grad.to(param.dtype), param.shape, is_coalesced=True, check_invariants=False
    )


def train(param: torch.nn.Parameter, optimizer: LazyAdam, rows: Tensor, grad: Tensor) -> None:
    """A step: the rows are read, then they get gradients."""
    optimizer.catch_up(param, rows)
    give(param, rows, grad)
    optimizer.step()


def lazy(steps: Script, dtype: torch.dtype) -> tuple[torch.nn.Parameter, LazyAdam]:
    param = weights(dtype)
    optimizer = LazyAdam([param], **SETTINGS)
    for rows, grad in steps:
        train(param, optimizer, rows, grad)
    return param, optimizer


@pytest.fixture(scope="module")
def steps() -> Script:
    return script(200)


@pytest.fixture(scope="module")
def truth(steps: Script) -> Tensor:
    return dense(steps, torch.float64, foreach=False)


def test_rows_are_skipped_for_up_to_199_steps(steps: Script) -> None:
    """What the other tests rely on."""
    skipped, last = set(), {}
    for step, (rows, _) in enumerate(steps):
        for row in rows.tolist():
            skipped.add(step - last.get(row, -1) - 1)
            last[row] = step
    assert {0, 1, 2, 5, 20, 50} < skipped
    assert max(skipped) > 150
    assert len(last) < ROWS, "and some rows are never touched"


def test_in_float64_every_element_is_torchs(steps: Script, truth: Tensor) -> None:
    """After 200 steps, within 1e-12; and once more: flushed again, nothing moves."""
    param, optimizer = lazy(steps, torch.float64)
    optimizer.flush()
    torch.testing.assert_close(param.detach(), truth, rtol=0, atol=1e-12)
    before = param.detach().clone()
    optimizer.flush()
    assert torch.equal(param.detach(), before)


def test_in_float32_it_is_no_further_from_the_truth_than_torch(
    steps: Script, truth: Tensor
) -> None:
    """Against the loop and the fused kernel, whichever is worse; the largest and the mean error."""
    param, optimizer = lazy(steps, torch.float32)
    optimizer.flush()
    ours = (param.detach().double() - truth).abs()
    theirs = [
        (dense(steps, torch.float32, **kind).double() - truth).abs()
        for kind in ({"foreach": False}, {"fused": True})
    ]
    assert ours.max() <= max(error.max() for error in theirs)
    assert ours.mean() <= max(error.mean() for error in theirs)


def test_a_flush_in_between_changes_nothing(steps: Script, truth: Tensor) -> None:
    """Evaluation may flush at any time: the rest of the training is the same to rounding."""
    param, optimizer = lazy(steps[:77], torch.float64)
    optimizer.flush()
    for rows, grad in steps[77:]:
        train(param, optimizer, rows, grad)
    optimizer.flush()
    torch.testing.assert_close(param.detach(), truth, rtol=0, atol=1e-12)


def test_what_was_saved_goes_on_to_the_bit(steps: Script) -> None:
    """Parameters and state as they are, not flushed; counters stay whole numbers."""
    whole, end = lazy(steps, torch.float32)
    param, optimizer = lazy(steps[:60], torch.float32)
    state = optimizer.state_dict()
    again = torch.nn.Parameter(param.detach().clone())
    resumed = LazyAdam([again], **SETTINGS)
    resumed.load_state_dict(state)
    for rows, grad in steps[60:]:
        train(again, resumed, rows, grad)
    for one in (end, resumed):
        one.flush()
    assert resumed.state[again]["last"].dtype == torch.int32
    assert torch.equal(whole, again)


@pytest.mark.parametrize("size", [1e-11, 1e-3])
def test_a_row_that_is_left_alone_for_ever(size: float) -> None:
    """Touched twice, 3000 steps apart: as torch's loop, which takes each of them."""
    first, second = torch.tensor([0]), torch.tensor([1])
    grad = torch.full((1, WIDTH), size, dtype=torch.float64)
    ours = weights(torch.float64)
    optimizer = LazyAdam([ours], **SETTINGS)
    theirs = torch.nn.Parameter(ours.detach()[:2].clone())
    loop = torch.optim.Adam([theirs], lr=SETTINGS["lr"], foreach=False)
    moments = (first, grad), (second, grad), *[(second, 0 * grad)] * 3000, (first, -grad)
    for rows, given in moments:
        train(ours, optimizer, rows, given)
        theirs.grad = torch.zeros_like(theirs).index_copy_(0, rows, given)
        loop.step()
    torch.testing.assert_close(ours.detach()[0], theirs.detach()[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta1", [0.1, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("step", [0, 1, 7, 300, 40_000])
def test_the_sum_of_all_steps_to_come(beta1: float, step: int) -> None:
    """The polynomial is the sum, for roots of the second moment from 1e-14 to 10."""
    lr, beta2, eps = 0.01, 0.999, 1e-8
    table = ReplayTable(lr, beta1, beta2, eps)
    row = table.reach(step)
    j = np.arange(1, 3000)
    bias1, bias2 = 1 - beta1 ** (step + j), 1 - beta2 ** (step + j)
    for s in np.logspace(-14, 1, 16):
        wanted = (lr / bias1 * beta1**j / (s * beta2 ** (j / 2) / np.sqrt(bias2) + eps)).sum()
        under = s + table.scales[row]
        given = table.coefficients[row, : table.degrees[row]]
        found = np.polynomial.chebyshev.chebval(2 * s / under - 1, given) / under
        assert found == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize(
    ("beta1", "beta2", "eps", "can"),
    [
        (0.9, 0.999, 1e-8, True),
        (0.9, 0.9999, 1e-8, True),
        (0.0, 0.999, 1e-8, False),
        (0.9, 0.8, 1e-8, False),  # its steps grow for ever
        (0.9, 0.999, 0.0, False),  # torch divides 0 by 0 for rows without a gradient
        (0.9, 0.999999, 1e-8, False),
    ],
)
def test_settings_without_a_closed_form(beta1: float, beta2: float, eps: float, can: bool) -> None:
    """They get dense gradients and torch's own Adam."""
    assert can_replay(beta1, beta2, eps) is can


def test_degrees_fall_and_are_enough() -> None:
    """The degree of the earliest row among some is enough for all of them."""
    table = ReplayTable(**SETTINGS)
    table.reach(5000)
    assert (np.diff(table.degrees) <= 0).mean() > 0.99
    assert table.degrees[0] < DEGREE
