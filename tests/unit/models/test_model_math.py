"""The models compute what their papers' equations say."""

import itertools

import numpy as np
import torch
from torch import nn

from rmixer.data.batch import Lists
from rmixer.models.deepfm import pairwise
from rmixer.models.din import ActivationUnit
from rmixer.models.dlrm import DotInteraction
from rmixer.models.layers import Dice, mean_by_row


def test_dlrms_interaction_is_all_dot_products_of_different_vectors() -> None:
    x = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    found = DotInteraction(5)(x)
    pairs = [(i, j) for i in range(5) for j in range(i)]
    expected = torch.stack([(x[:, i] * x[:, j]).sum(1) for i, j in pairs], 1)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(DotInteraction(5), (x,))


def test_deepfms_second_order_term_is_the_sum_over_pairs() -> None:
    v = torch.randn(3, 6, 4, dtype=torch.float64)
    expected = sum((v[:, i] * v[:, j]).sum(1) for i, j in itertools.combinations(range(6), 2))
    torch.testing.assert_close(pairwise(v), expected)


def test_dins_split_first_layer_is_the_whole_one() -> None:
    torch.manual_seed(0)
    unit = ActivationUnit(4, (6, 3), "prelu").double()
    lengths = np.array([2, 0, 3])
    past = torch.randn(5, 4, dtype=torch.float64)
    target = torch.randn(3, 4, dtype=torch.float64)
    found = unit(past, target, Lists.of(np.ones(5, np.int32), lengths))
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for at, row in enumerate([0, 0, 2, 2, 2]):
        h, t = past[at], target[row]
        weight = unit.rest(unit.first(torch.cat([h, t, h - t, h * t])[None]))
        expected[row] += weight[0, 0] * h
    torch.testing.assert_close(found, expected)


def test_dice_has_the_gradient_of_its_formula() -> None:
    """In float64, against autograd on the formula; also where a value is far from the mean."""
    torch.manual_seed(0)
    dice = Dice(4).double()
    nn.init.normal_(dice.alpha)
    x = torch.randn(7, 4, dtype=torch.float64)
    x[0, 0] = 50.0
    x.requires_grad_()

    def formula(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean(0)
        p = torch.sigmoid(centered * torch.rsqrt(centered.square().mean(0) + dice.eps))
        return x * (alpha + p * (1 - alpha))

    weights = torch.randn(7, 4, dtype=torch.float64)
    ours = torch.autograd.grad((dice(x) * weights).sum(), [x, dice.alpha])
    plain = torch.autograd.grad((formula(x, dice.alpha) * weights).sum(), [x, dice.alpha])
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_dice_normalizes_with_the_batch_in_training_and_with_running_numbers_after() -> None:
    dice = Dice(3)
    nn.init.constant_(dice.alpha, 0.25)
    x = torch.randn(50, 3) * 2 + 1
    p = torch.sigmoid((x - x.mean(0)) / x.var(0, correction=0).sqrt())
    torch.testing.assert_close(dice(x), p * x + (1 - p) * 0.25 * x)
    torch.testing.assert_close(dice.running_mean, 0.1 * x.mean(0))
    dice.eval()
    before = dice(x[:1])
    torch.testing.assert_close(dice(x)[:1], before)


def test_the_mean_of_an_empty_list_is_zero() -> None:
    lists = Lists.of(np.ones(3, np.int32), np.array([1, 0, 2]))
    values = torch.tensor([[1.0], [2.0], [4.0]])
    assert mean_by_row(values, lists).flatten().tolist() == [1.0, 0.0, 3.0]
