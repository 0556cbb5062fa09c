"""The interactions of the models over fields, against the papers' equations written out in loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rmixer.data.batch import Batch
from rmixer.data.info import DataInfo, FieldInfo, TableInfo
from rmixer.errors import UsageError
from rmixer.models.dcn import CrossVectors
from rmixer.models.dcn_v2 import CrossMatrix, CrossMixture
from rmixer.models.difm import FieldAttention
from rmixer.models.flen import FieldWiseBiInteraction, group_of
from rmixer.models.model import build

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def in_float64() -> object:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in tensors]


def close(found: Tensor, wanted: object) -> None:
    np.testing.assert_allclose(found.detach().numpy(), np.asarray(wanted), rtol=1e-10, atol=1e-12)


def test_dcn_cross_layers() -> None:
    """x' = x0 x^T w + b + x, row by row."""
    layer = CrossVectors(5, 3)
    nn.init.normal_(layer.bias)
    x = torch.randn(4, 5)
    weights, biases, rows = arrays(layer.weight, layer.bias, x)
    wanted = []
    for x0 in rows:
        now = x0
        for w, b in zip(weights, biases, strict=True):
            now = np.outer(x0, now) @ w + b + now
        wanted.append(now)
    close(layer(x), wanted)


def test_dcn_v2_cross_matrix() -> None:
    """x0 * (W x + b) + x."""
    layer, x0, x = CrossMatrix(5), torch.randn(4, 5), torch.randn(4, 5)
    w, b, a0, a = arrays(layer.linear.weight, layer.linear.bias, x0, x)
    close(layer(x0, x), [r0 * (w @ r + b) + r for r0, r in zip(a0, a, strict=True)])


@pytest.mark.parametrize("experts", [1, 3])
def test_dcn_v2_mixture(experts: int) -> None:
    """The gated sum over experts of x0 * (U g(C g(V^T x)) + b), plus x."""
    layer, x0, x = CrossMixture(5, 2, experts), torch.randn(4, 5), torch.randn(4, 5)
    nn.init.normal_(layer.bias)
    down, middle, up, b, a0, a = arrays(layer.down, layer.middle, layer.up, layer.bias, x0, x)
    wanted = []
    for r0, r in zip(a0, a, strict=True):
        gates = np.ones(1)
        if layer.gate is not None:
            scores = np.exp(
                layer.gate.weight.detach().numpy() @ r + layer.gate.bias.detach().numpy()
            )
            gates = scores / scores.sum()
        parts = [
            gates[i] * r0 * (up[i] @ np.tanh(middle[i] @ np.tanh(down[i] @ r)) + b)
            for i in range(experts)
        ]
        wanted.append(sum(parts) + r)
    close(layer(x0, x), wanted)


def test_difm_attention_is_torchs() -> None:
    """Without the residual it is nn.MultiheadAttention with the same weights, before its output."""
    layer, x = FieldAttention(6, 2, 3), torch.randn(4, 5, 6)
    theirs = nn.MultiheadAttention(6, 2, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(layer.query_key_value.weight)
        theirs.out_proj.weight.copy_(torch.eye(6))
    mixed, _ = theirs(x, x, x)
    close(layer(x), torch.relu(mixed + layer.residual(x)).detach())


def test_flen_interaction() -> None:
    """Products of the sums of two groups, and of two columns within one, each with its weight."""
    groups = [0, 0, 1, 2, 2, 2]
    layer, x = FieldWiseBiInteraction(3, 0.0), torch.randn(4, 6, 5)
    nn.init.normal_(layer.between)
    nn.init.normal_(layer.within)
    between, within, a = arrays(layer.between, layer.within, x)
    wanted = np.zeros((4, 5))
    for i, j in itertools.combinations(range(6), 2):
        pairs = [*itertools.combinations(range(3), 2)]
        same = groups[i] == groups[j]
        weight = within[groups[i]] if same else between[pairs.index((groups[i], groups[j]))]
        wanted += weight * a[:, i] * a[:, j]
    one_hot = nn.functional.one_hot(torch.tensor(groups)).double()
    close(layer(x, one_hot), wanted)


@pytest.mark.parametrize(
    ("names", "groups", "found"),
    [
        (["a", "b", "c", "d", "e", "f"], None, [0, 0, 1, 1, 2, 2]),
        (["a", "b"], None, [0, 1]),
        (["a", "b", "c"], (("c",), ("a",)), [1, 2, 0]),
    ],
)
def test_flen_groups(names: list[str], groups: tuple | None, found: list[int]) -> None:
    """As given, the rest being one more group; else thirds."""
    assert group_of(names, groups).tolist() == found


@pytest.mark.parametrize(
    ("groups", "part"), [((("x",),), "unknown column 'x'"), ((("a",), ("a",)), "in two groups")]
)
def test_flen_groups_that_cannot_be(groups: tuple, part: str) -> None:
    """The name is said, and the known ones."""
    with pytest.raises(UsageError, match=part):
        group_of(["a", "b"], groups)


INFO = DataInfo(
    dense=(),
    fields=(FieldInfo("a", 0), FieldInfo("b", 1)),
    sequences=(),
    tables=(TableInfo("a", 6), TableInfo("b", 7)),
)


def test_wide_and_deep_learns_a_combination_that_no_sum_has() -> None:
    """Label = (a + b) mod 2: only the crossed column can say it without the deep part."""
    params = {"mlp": [1], "crosses": [["a", "b"]], "cross_buckets": 5000, "embedding_dim": 1}
    model = build("widedeep", params, INFO)
    ids = torch.tensor([[a, b] for a in range(6) for b in range(7)], dtype=torch.int32)
    label = (ids.sum(1) % 2).double()
    batch = Batch(dense_BN=torch.empty(42, 0), sparse_BF=ids, label_B=label)
    optimizer = torch.optim.Adam(model.crosses.parameters(), lr=0.1)
    for _ in range(60):
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert ((model(batch) > 0) == (label > 0)).all()


def test_wide_and_deep_names_a_field_that_is_not_there() -> None:
    """With the known ones."""
    with pytest.raises(UsageError, match=r"params\.crosses: unknown field 'c'"):
        build("widedeep", {"crosses": [["a", "c"]]}, INFO)
