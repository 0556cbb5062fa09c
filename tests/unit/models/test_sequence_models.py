"""What the models over histories are made of, against plain loops or torch's own modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rmixer.data.batch import Batch, Lists
from rmixer.data.info import DataInfo, FieldInfo, SequenceInfo, TableInfo
from rmixer.errors import UsageError
from rmixer.models.dien import AUGRU, next_entry_loss
from rmixer.models.dpin import Interest
from rmixer.models.history import History, Padded, Transformer, masked_softmax
from rmixer.models.layers import FusedEmbedding
from rmixer.models.model import build
from rmixer.models.sampled import sampled_softmax, table_of

torch.set_num_threads(1)
LENGTHS = [3, 0, 5, 1]


@pytest.fixture(autouse=True)
def in_float64() -> object:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def lists(lengths: list[int] = LENGTHS) -> Lists:
    values = np.arange(2, 2 + sum(lengths), dtype=np.int32)
    return Lists.of(values, np.array(lengths, np.int64))


@pytest.mark.parametrize(
    ("length", "right", "rows"),
    [
        (None, False, [[2, 3, 4, 0, 0], [0] * 5, [5, 6, 7, 8, 9], [10, 0, 0, 0, 0]]),
        (3, False, [[2, 3, 4], [0] * 3, [7, 8, 9], [10, 0, 0]]),
        (4, True, [[0, 2, 3, 4], [0] * 4, [6, 7, 8, 9], [0, 0, 0, 10]]),
    ],
)
def test_padding_keeps_the_newest_entries(
    length: int | None, right: bool, rows: list[list[int]]
) -> None:
    """In their order, at the left or at the right; the mask is where there is one."""
    padded = Padded.of(lists(), length, right=right)
    filled = padded.fill(lists().values_L.double().unsqueeze(1))[..., 0]
    assert filled.tolist() == rows
    assert padded.mask_BT.tolist() == [[value > 0 for value in row] for row in rows]


def test_no_list_has_an_entry() -> None:
    """There is one empty column, so that nothing has a width of 0."""
    padded = Padded.of(lists([0, 0]))
    assert padded.fill(torch.empty(0, 3)).tolist() == [[[0.0] * 3]] * 2
    assert masked_softmax(torch.zeros(2, 1), padded.mask_BT).tolist() == [[0.0], [0.0]]


def test_the_softmax_of_a_row_is_over_its_entries() -> None:
    """As if the others were not there, also for very large scores."""
    mask = torch.tensor([[True, True, False], [False, True, False]])
    found = masked_softmax(torch.tensor([[900.0, 901.0, 999.0], [5.0, -900.0, 7.0]]), mask)
    wanted = [[1 / (1 + np.e), np.e / (1 + np.e), 0.0], [0.0, 1.0, 0.0]]
    torch.testing.assert_close(found, torch.tensor(wanted))


def test_the_transformer_is_torchs() -> None:
    """The same weights in nn.TransformerEncoderLayer, with rows of different length."""
    ours = Transformer(6, 2, 10, nn.GELU())
    theirs = nn.TransformerEncoderLayer(6, 2, 10, 0.0, F.gelu, batch_first=True)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(ours.query_key_value.weight)
        theirs.self_attn.in_proj_bias.copy_(ours.query_key_value.bias)
        theirs.self_attn.out_proj.load_state_dict(ours.out.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward[2].state_dict())
    x, mask = torch.randn(3, 4, 6), torch.ones(3, 4, dtype=torch.bool)
    mask[0, :2] = False
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x, src_key_padding_mask=~mask)[mask])


def test_heads_must_divide_the_width() -> None:
    """Said with both numbers."""
    with pytest.raises(UsageError, match="4 heads do not divide the width of 6"):
        Transformer(6, 4, 10, nn.GELU())


def test_augru_is_a_gru_whose_update_is_scaled() -> None:
    """Equations 13 to 16, step by step; a weight of 0 leaves the state as it is."""
    layer, x = AUGRU(3), torch.randn(2, 4, 3)
    weights = torch.rand(2, 4)
    weights[1, 2:] = 0.0
    wanted = []
    for row, attention in zip(x, weights, strict=True):
        h = torch.zeros(3)
        for entry, a in zip(row, attention, strict=True):
            ri, ui, hi = layer.inputs(entry).chunk(3)
            rs, us, hs = layer.state(h).chunk(3)
            update = a * torch.sigmoid(ui + us)
            h = (1 - update) * h + update * torch.tanh(hi + torch.sigmoid(ri + rs) * hs)
        wanted.append(h)
    torch.testing.assert_close(layer(x, weights), torch.stack(wanted))


def test_the_auxiliary_loss_of_dien(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that point to their next entries and away from all others cost little."""
    monkeypatch.setattr(torch, "randperm", lambda count: torch.arange(count).roll(1))
    past = torch.eye(6).view(2, 3, 6)
    good = 40 * past.roll(-1, 1) - 20
    mask = torch.ones(2, 3, dtype=torch.bool)
    losses = [float(next_entry_loss(s, past, mask)) for s in (good, -good, torch.zeros(2, 3, 6))]
    assert losses[0] < losses[2] < losses[1]
    assert losses[2] == pytest.approx(np.log(2))
    assert next_entry_loss(good[:, :1], past[:, :1], mask[:, :1]) == 0


def test_the_interest_at_a_position_is_of_the_entries_at_it() -> None:
    """A softmax among them alone; 0 where the user was never seen."""
    layer, past, places = Interest(3), torch.randn(9, 3), torch.tensor([0, 1, 0, 2, 2, 2, 0, 1, 3])
    found = layer(past, lists(), places, 4)
    owner = lists().owner_L
    scores = layer.score(past).squeeze(1)
    for row in range(4):
        for place in range(4):
            at = (owner == row) & (places == place)
            wanted = (torch.softmax(scores[at], 0).unsqueeze(1) * past[at]).sum(0)
            torch.testing.assert_close(found[row, place], wanted)


def test_all_items_as_candidates_are_the_softmax() -> None:
    """With a bias per item; the missing and the unknown are no items."""
    info = DataInfo.from_sizes([9], 0)
    table = FusedEmbedding(info, 5, nn.init.normal_)
    queries, ids = torch.randn(6, 4), torch.tensor([2, 8, 3, 3, 5, 2])
    scores = queries @ table.weight[2:, :4].T + table.weight[2:, 4]
    wanted = F.cross_entropy(scores, ids - 2)
    torch.testing.assert_close(sampled_softmax(table, queries, ids, 100), wanted)
    assert sampled_softmax(table, queries, ids, 3) < wanted, "fewer to be told from"


INFO = DataInfo(
    dense=(),
    fields=(FieldInfo("user", 0), FieldInfo("item", 1)),
    sequences=(
        SequenceInfo("past", 1, 50, "item"),
        SequenceInfo("done", 2, 50),
        SequenceInfo("tags", 2, 50),
    ),
    tables=(TableInfo("user", 5), TableInfo("item", 40), TableInfo("done", 6)),
)


def test_the_columns_of_a_history() -> None:
    """Shared ones against their fields, aligned ones by name, the rest are fields."""
    found = History.of("m", INFO, aligned=("done",))
    assert (found.names, found.targets) == (("past",), (1,))
    assert (found.aligned, found.others) == (("done",), ("tags",))
    assert table_of(INFO, "past").tables == (TableInfo("item", 40),)


def test_lists_that_do_not_go_together_are_an_error() -> None:
    """The columns are named."""
    history = History.of("m", INFO, aligned=("done",))
    batch = Batch(
        dense_BN=torch.empty(2, 0),
        sparse_BF=torch.zeros(2, 2, dtype=torch.int32),
        label_B=torch.zeros(2),
        sequences={"past": lists([1, 2]), "done": lists([2, 1])},
    )
    with pytest.raises(
        UsageError, match="m needs lists of equal length in each row: past and done"
    ):
        history.lists(batch)


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({}, "a sparse column 'position'"),
        ({"position": "user"}, "a sparse column 'user'"),  # no past of it
    ],
)
def test_dpin_says_what_it_misses(params: dict, part: str) -> None:
    """The column that is not there, or has no past."""
    with pytest.raises(UsageError, match=part):
        build("dpin", params, INFO)


def test_bert4rec_learns_what_follows_what() -> None:
    """Item i is followed by i + 1: its score behind a history is the highest."""
    params = {"embedding_dim": 8, "heads": 2, "layers": 1, "length": 4, "negatives": 100}
    model = build("bert4rec", params, INFO)
    starts = np.arange(2, 36)
    histories = Lists.of(
        (starts[:, None] + np.arange(3)).astype(np.int32).ravel(), np.full(len(starts), 3)
    )
    ids = np.stack([np.zeros_like(starts), starts + 3], 1).astype(np.int32)
    batch = Batch(
        dense_BN=torch.empty(len(starts), 0),
        sparse_BF=torch.from_numpy(ids),
        label_B=torch.ones(len(starts)),
        sequences={"past": histories},
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    model.eval()
    every = torch.stack([
        model(Batch(dense_BN=batch.dense_BN, label_B=batch.label_B, sequences=batch.sequences,
                    sparse_BF=torch.tensor([[0, item]] * len(starts))))
        for item in range(2, 40)
    ])  # fmt: skip
    assert (every.argmax(0) == torch.from_numpy(starts + 1)).double().mean() > 0.75
