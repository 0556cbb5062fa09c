"""Every optimizer is torch.optim's of the same name, to the last bits of float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo
from rmixer.models.layers import FusedEmbedding
from rmixer.train import optimizers, optimizers_table

torch.set_num_threads(1)  # small tensors, and other tests run beside these
INFO = DataInfo.from_sizes([40, 7], dense=3)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = FusedEmbedding(INFO, 4, lambda table: table.normal_())
        self.head = nn.Linear(2 * 4 + 3, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        rows, _ = self.embedding(batch)
        x = torch.cat([rows.flatten(1), batch.dense_BN], 1)
        return self.head(x.tanh()).squeeze(1)


def make() -> Tiny:
    torch.manual_seed(0)
    return Tiny().double()


def batches(count: int) -> list[Batch]:
    generator = np.random.default_rng(0)
    found = []
    for _ in range(count):
        # Few ids of the first table, so that most of its rows are skipped most of the time.
        ids = np.stack(
            [(40 * generator.random(6) ** 4).astype(int), generator.integers(0, 7, 6)], 1
        )
        found.append(
            Batch(
                dense_BN=torch.from_numpy(generator.normal(size=(6, 3))),
                sparse_BF=torch.from_numpy(ids),
                label_B=torch.from_numpy(generator.integers(0, 2, 6)).double(),
            )
        )
    return found


def run(
    module: Tiny, step: Callable[[], object], zero: Callable[[], object], count: int = 200
) -> list[float]:
    losses = []
    for batch in batches(count):
        loss = nn.functional.binary_cross_entropy_with_logits(module(batch), batch.label_B)
        loss.backward()
        step()
        zero()
        losses.append(float(loss.detach()))
    return losses


def compare(settings: dict, reference: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    ours, theirs = make(), make()
    a = optimizers.build(settings, ours)
    b = reference(theirs)
    losses = run(ours, a.step, a.zero_grad)
    np.testing.assert_allclose(losses, run(theirs, b.step, b.zero_grad), rtol=0, atol=1e-9)
    a.flush()
    for (key, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-9, msg=key)


O = torch.optim  # noqa: E741


@pytest.mark.parametrize(
    ("settings", "make_reference", "sparse"),
    [
        ({"name": "sgd", "lr": 0.1}, lambda p: O.SGD(p, lr=0.1), True),
        ({"name": "sgd", "lr": 0.1, "momentum": 0.9}, lambda p: O.SGD(p, lr=0.1, momentum=0.9), False),
        ({"name": "sgd", "lr": 0.1, "weight_decay": 0.01}, lambda p: O.SGD(p, lr=0.1, weight_decay=0.01), False),
        ({"name": "adagrad", "lr": 0.1}, lambda p: O.Adagrad(p, lr=0.1), True),
        (
            {"name": "adagrad", "lr": 0.1, "lr_decay": 0.01, "eps": 1e-6, "initial_accumulator_value": 0.1},
            lambda p: O.Adagrad(p, lr=0.1, lr_decay=0.01, eps=1e-6, initial_accumulator_value=0.1),
            True,
        ),
        ({"name": "adagrad", "lr": 0.1, "weight_decay": 0.01}, lambda p: O.Adagrad(p, lr=0.1, weight_decay=0.01), False),
        ({"name": "adam", "lr": 0.01}, lambda p: O.Adam(p, lr=0.01), True),
        (
            {"name": "adam", "lr": 0.01, "beta1": 0.5, "beta2": 0.99, "eps": 1e-4},
            lambda p: O.Adam(p, lr=0.01, betas=(0.5, 0.99), eps=1e-4),
            True,
        ),
        (
            {"name": "adam", "lr": 0.01, "beta1": 0.9, "beta2": 0.5},
            lambda p: O.Adam(p, lr=0.01, betas=(0.9, 0.5)),
            False,
        ),
        (
            {"name": "adam", "lr": 0.01, "beta1": 0.8, "beta2": 0.9, "eps": 1e-4, "weight_decay": 0.1},
            lambda p: O.Adam(p, lr=0.01, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1),
            False,
        ),
    ],
)  # fmt: skip
def test_it_is_torchs(settings: dict, make_reference: Callable, sparse: bool) -> None:
    compare(settings, lambda module: make_reference(module.parameters()))
    module = make()
    optimizers.build(settings, module)
    assert module.embedding.sparse is sparse


def test_sparse_adam_is_torchs_on_the_table_and_adam_elsewhere() -> None:
    settings = {"name": "sparse_adam", "lr": 0.02, "beta1": 0.7}
    ours, theirs = make(), make()
    a = optimizers.build(settings, ours)
    theirs.embedding.sparse = True
    table = torch.optim.SparseAdam([theirs.embedding.weight], lr=0.02, betas=(0.7, 0.999))
    head = torch.optim.Adam(theirs.head.parameters(), lr=0.02, betas=(0.7, 0.999))

    def step() -> None:
        table.step()
        head.step()

    losses = run(ours, a.step, a.zero_grad)
    np.testing.assert_allclose(losses, run(theirs, step, theirs.zero_grad), rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.embedding.weight, theirs.embedding.weight, rtol=0, atol=1e-9)


class DenseRowwiseAdagrad(torch.optim.Optimizer):
    """The definition, on all rows."""

    def __init__(self, params: list[torch.Tensor], lr: float, start: float) -> None:
        super().__init__(params, {"lr": lr, "start": start})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                s = state.setdefault("s", p.new_full((len(p), 1), group["start"]))
                s += p.grad.square().mean(1, keepdim=True)
                update = p.grad / (s.sqrt() + 1e-10)
                p.sub_(update, alpha=group["lr"])


@pytest.mark.parametrize("start", [0.0, 0.1])
def test_rowwise_adagrad_is_its_definition_on_all_rows(start: float) -> None:
    settings = {"name": "rowwise_adagrad", "lr": 0.05, "initial_accumulator_value": start}
    ours, theirs = make(), make()
    a = optimizers.build(settings, ours)
    table = DenseRowwiseAdagrad([theirs.embedding.weight], 0.05, start)
    head = O.Adagrad(theirs.head.parameters(), lr=0.05, initial_accumulator_value=start)

    def step() -> None:
        table.step()
        head.step()

    losses = run(ours, a.step, a.zero_grad)
    np.testing.assert_allclose(losses, run(theirs, step, theirs.zero_grad), rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.embedding.weight, theirs.embedding.weight, rtol=0, atol=1e-9)


def test_rows_that_no_batch_has_are_not_touched() -> None:
    for name in ("sgd", "adagrad", "rowwise_adagrad", "sparse_adam"):
        module = make()
        before = module.embedding.weight.detach().clone()
        optimizer = optimizers.build({"name": name}, module)
        (batch,) = batches(1)
        module(batch).sum().backward()
        moved = optimizer.step()
        assert moved > 0
        changed = (module.embedding.weight != before).any(1).nonzero().flatten().tolist()
        assert set(changed) == set((batch.sparse_BF + torch.tensor([0, 40])).flatten().tolist())


@pytest.mark.parametrize(
    ("settings", "key", "part"),
    [
        ({"name": "adamm"}, "name", "did you mean 'adam'?"),
        ({"name": "adam", "ler": 1}, "ler", "did you mean 'lr'?"),
        ({"name": "adam", "lr": 0}, "lr", "above 0"),
        ({"name": "adam", "lr": "0.1"}, "lr", "not a number"),
        ({"name": "adam", "lr": float("nan")}, "lr", "not a number"),
        ({"name": "adam", "beta1": 1}, "beta1", "below 1"),
        ({"name": "sgd", "momentum": -0.1}, "momentum", "at least 0"),
        ({"name": "rowwise_adagrad", "weight_decay": 0.1}, "weight_decay", "no such setting"),
    ],
)
def test_each_fault_names_its_key(settings: dict, key: str, part: str) -> None:
    ((found, message),) = optimizers_table.validate(settings)
    assert found == key
    assert part in message


def test_every_optimizer_of_the_table_can_be_built() -> None:
    for name in optimizers_table.OPTIMIZERS:
        module = make()
        optimizer = optimizers.build({"name": name}, module)
        run(module, optimizer.step, optimizer.zero_grad, count=2)
    assert optimizers_table.validate({}) == []
