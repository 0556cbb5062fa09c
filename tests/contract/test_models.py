"""What every model of the table does. A new model gets these tests by being listed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rmixer.data.batch import Batch, Lists
from rmixer.data.info import DataInfo, FieldInfo, SequenceInfo, TableInfo
from rmixer.errors import UsageError
from rmixer.models import MODELS, params
from rmixer.models.features import HISTORY_MODELS
from rmixer.models.layers import FusedEmbedding
from rmixer.models.model import build, objective
from rmixer.train import optimizers

torch.set_num_threads(1)  # small tensors, and other tests run beside these
INFO = DataInfo(
    dense=("age", "price"),
    fields=(FieldInfo("item", 0), FieldInfo("cate", 1), FieldInfo("day", 2)),
    sequences=(
        SequenceInfo("hist_items", 0, 8, "item"),
        SequenceInfo("hist_cates", 1, 8, "cate"),
        SequenceInfo("tags", 3, 8),
    ),
    tables=(
        TableInfo("item", 50),
        TableInfo("cate", 9),
        TableInfo("day", 9),
        TableInfo("tags", 20),
    ),
    rows=100,
)
SMALL = {
    "bert4rec": {"embedding_dim": 4, "heads": 2, "layers": 1, "length": 5, "negatives": 10},
    "bst": {"embedding_dim": 4, "heads": 2, "length": 5, "mlp": [8]},
    "dien": {"embedding_dim": 4, "mlp": [8]},
    "dmr": {"embedding_dim": 4, "mlp": [8], "context": [], "negatives": 100, "length": 5},
    "dpin": {"embedding_dim": 4, "position": "cate", "base_mlp": [8], "width": 4, "mlp": [8]},
    "dlrm": {"embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]},
    "dcn": {"embedding_dim": 4, "cross_layers": 2, "mlp": [8]},
    "dcn_v2": {"embedding_dim": 4, "cross_layers": 2, "mlp": [8]},
    "deepfm": {"embedding_dim": 4, "mlp": [8, 8]},
    "difm": {"embedding_dim": 4, "mlp": [8], "heads": 2, "head_dim": 3},
    "din": {"embedding_dim": 4, "attention_mlp": [8], "mlp": [8]},
    "flen": {"embedding_dim": 4, "mlp": [8], "groups": [["item", "cate"], ["tags"]]},
    "widedeep": {"embedding_dim": 4, "mlp": [8], "crosses": [["item", "day"]], "cross_buckets": 30},
}
#: Parameters that name columns.
NAMING = ("crosses", "groups")
every_model = pytest.mark.parametrize("name", sorted(MODELS))


def model(name: str, seed: int = 0, info: DataInfo = INFO) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build(name, SMALL[name], info)


def batch(size: int, seed: int = 0, longest: int = 6) -> Batch:
    generator = np.random.default_rng(seed)
    rows = [table.rows for table in INFO.tables]
    sparse = np.stack([generator.integers(0, rows[f.table], size) for f in INFO.fields], 1)
    lengths = generator.integers(0, longest + 1, size)
    sequences = {}
    for sequence in INFO.sequences:
        values = generator.integers(1, rows[sequence.table], int(lengths.sum()))
        sequences[sequence.name] = Lists.of(values.astype(np.int32), lengths)
    return Batch(
        dense_BN=torch.from_numpy(generator.normal(size=(size, 2))).float(),
        sparse_BF=torch.from_numpy(sparse.astype(np.int32)),
        label_B=torch.from_numpy(generator.integers(0, 2, size)).float(),
        sequences=sequences,
    ).check(INFO)


def loss_of(module: torch.nn.Module, some: Batch) -> torch.Tensor:
    return objective(module, some)


def cross_entropy(module: torch.nn.Module, some: Batch) -> float:
    with torch.no_grad():
        return float(F.binary_cross_entropy_with_logits(module(some), some.label_B))


def test_every_model_has_parameters_and_a_small_form() -> None:
    assert set(params.PARAMS) == set(MODELS) == set(SMALL)


@every_model
def test_one_logit_per_row_and_a_finite_loss(name: str) -> None:
    some = batch(7)
    logits = model(name)(some)
    assert logits.shape == (7,)
    assert logits.dtype == torch.float32
    assert torch.isfinite(loss_of(model(name), some))


@every_model
def test_a_gradient_for_every_parameter(name: str) -> None:
    module = model(name)
    loss_of(module, batch(64)).backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@every_model
def test_the_loss_falls(name: str) -> None:
    """The cross entropy of the labels; a model's own objective may have a part that cannot fall."""
    module, some = model(name), batch(64)
    optimizer = optimizers.build({"name": "adam", "lr": 0.01}, module)
    before = cross_entropy(module, some)
    for _ in range(60):
        loss_of(module, some).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert cross_entropy(module, some) < 0.7 * before


@every_model
def test_a_batch_of_one_and_of_none_long(name: str) -> None:
    module = model(name)
    for some in (batch(1), batch(1, longest=0), batch(5, longest=0)):
        loss_of(module, some).backward()
    assert all(torch.isfinite(p).all() for p in module.parameters())


@every_model
def test_unknown_and_missing_ids(name: str) -> None:
    some = batch(4)
    for value in (0, 1):
        ids = torch.full_like(some.sparse_BF, value)
        assert torch.isfinite(model(name)(replace(some, sparse_BF=ids))).all()


@every_model
def test_a_row_does_not_depend_on_its_companions_when_evaluated(name: str) -> None:
    module = model(name).eval()
    whole = batch(6)
    lengths = whole.sequences["tags"].length_B.numpy()
    for i in range(6):
        start, stop = int(lengths[:i].sum()), int(lengths[: i + 1].sum())
        sequences = {
            key: Lists.of(lists.values_L[start:stop].numpy(), lengths[i : i + 1])
            for key, lists in whole.sequences.items()
        }
        one = Batch(
            dense_BN=whole.dense_BN[i : i + 1],
            sparse_BF=whole.sparse_BF[i : i + 1],
            label_B=whole.label_B[i : i + 1],
            sequences=sequences,
        )
        torch.testing.assert_close(module(one)[0], module(whole)[i], rtol=1e-5, atol=1e-6)


@every_model
def test_saved_and_loaded_it_says_the_same(name: str, tmp_path: Path) -> None:
    module, some = model(name, seed=1), batch(9)
    module(some)  # running statistics, where there are any
    torch.save(module.state_dict(), tmp_path / "w.pt")
    again = model(name, seed=2)
    again.load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True))
    assert torch.equal(module.eval()(some), again.eval()(some))


@every_model
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    a, b = model(name, 3).state_dict(), model(name, 3).state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


@every_model
def test_sparse_gradients_equal_dense_ones(name: str) -> None:
    dense, sparse = model(name).double(), model(name).double()
    for layer in sparse.modules():
        if isinstance(layer, FusedEmbedding):
            layer.sparse = True
    some = batch(32)
    some = replace(some, dense_BN=some.dense_BN.double(), label_B=some.label_B.double())
    for module in (dense, sparse):
        torch.manual_seed(0)  # some draw what they are trained on
        loss_of(module, some).backward()
    for (key, a), (_, b) in zip(dense.named_parameters(), sparse.named_parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        grad = b.grad.to_dense() if b.grad.is_sparse else b.grad
        torch.testing.assert_close(grad, a.grad, rtol=1e-10, atol=1e-12, msg=key)
    assert sparse.embedding.weight.grad.is_sparse


@every_model
def test_an_unknown_parameter_is_an_error_with_the_nearest(name: str) -> None:
    with pytest.raises(UsageError, match="did you mean 'embedding_dim'"):
        build(name, {"embeding_dim": 8}, INFO)


@every_model
def test_it_builds_without_dense_columns(name: str) -> None:
    info, some = replace(INFO, dense=()), batch(5)
    some = replace(some, dense_BN=torch.empty(5, 0))
    assert model(name, info=info)(some).shape == (5,)


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(HISTORY_MODELS)))
def test_it_builds_from_table_sizes_alone(name: str) -> None:
    info = DataInfo.from_sizes([10, 20, 30], dense=4)
    small = {key: value for key, value in SMALL[name].items() if key not in NAMING}
    module = build(name, small, info)
    some = Batch(
        dense_BN=torch.zeros(3, 4),
        sparse_BF=torch.ones(3, 3, dtype=torch.int32),
        label_B=torch.ones(3),
    )
    assert module(some.check(info)).shape == (3,)
