"""Properties of AUC, vocabularies, the split, the order of rows, and lists."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from rmixer.data import dataset
from rmixer.data.dataset import lists, shuffled
from rmixer.data.schema import Valid
from rmixer.data.split import held_out
from rmixer.data.vocabulary import Coder, Vocabulary
from rmixer.train.metrics import auc, logloss

pairs = st.lists(
    st.tuples(st.booleans(), st.integers(-5, 5).map(lambda x: x / 3)), min_size=2, max_size=60
).filter(lambda rows: len({label for label, _ in rows}) == 2)


@given(pairs)
def test_auc_is_sklearns_with_ties(rows: list[tuple[bool, float]]) -> None:
    label, score = zip(*rows, strict=True)
    assert abs(auc(label, score) - roc_auc_score(label, score)) < 1e-12


@given(pairs)
def test_auc_counts_pairs(rows: list[tuple[bool, float]]) -> None:
    ups = [s for label, s in rows if label]
    downs = [s for label, s in rows if not label]
    wins = sum((u > d) + 0.5 * (u == d) for u in ups for d in downs)
    assert auc(*zip(*rows, strict=True)) == wins / (len(ups) * len(downs))


@given(pairs)
def test_logloss_is_sklearns(rows: list[tuple[bool, float]]) -> None:
    label, logit = (np.array(column) for column in zip(*rows, strict=True))
    expected = log_loss(label, 1 / (1 + np.exp(-logit.astype(float))))
    assert abs(logloss(label, logit) - expected) < 1e-12


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(auc([1, 1], [0.1, 0.2]))
    assert np.isnan(logloss([], []))


words = st.lists(st.none() | st.text("ab\n;é", min_size=1, max_size=3), max_size=40)
numbers = st.lists(st.none() | st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=40)


@given(
    values=words | numbers, cut=st.integers(0, 40), keep=st.integers(0, 40), least=st.integers(1, 3)
)
@settings(max_examples=200)
def test_a_vocabulary_is_the_frequent_training_values(
    values: list, cut: int, keep: int, least: int
) -> None:
    dtype = pl.String if any(isinstance(v, str) for v in values) else pl.Int64
    series = pl.Series(values, dtype=dtype)
    coder = Coder()
    codes = np.concatenate([coder.encode(series[:cut]), coder.encode(series[cut:])])
    counts = np.bincount(codes[:keep], minlength=len(coder))
    vocabulary, local = Vocabulary.build(coder, counts, min_count=least, max_ids=0)
    seen = [v for v in values[:keep] if v is not None]
    kept = {v for v in seen if seen.count(v) >= least}
    assert len(vocabulary) == 2 + len(kept)
    assert set(vocabulary.values) == kept
    order = [seen.count(v) for v in list(vocabulary.values)]
    assert order == sorted(order, reverse=True)
    again = Vocabulary.from_arrays(vocabulary.arrays())
    for found in (local[codes], vocabulary.encode(series), again.encode(series)):
        for value, index in zip(values, found.tolist(), strict=True):
            if value is None:
                assert index == 0
            elif value not in kept:
                assert index == 1
            else:
                assert list(vocabulary.values)[index - 2] == value


@given(values=numbers, cut=st.integers(0, 40))
def test_local_ids_depend_neither_on_cuts_nor_on_integer_or_text(values: list, cut: int) -> None:
    def ids(series: pl.Series, parts: list[slice]) -> list[int]:
        coder = Coder()
        codes = np.concatenate([coder.encode(series[part]) for part in parts])
        counts = np.bincount(codes, minlength=len(coder))
        return Vocabulary.build(coder, counts, min_count=1, max_ids=0)[1][codes].tolist()

    series = pl.Series(values, dtype=pl.Int64)
    whole = ids(series, [slice(None)])
    assert ids(series, [slice(cut, None), slice(0, cut)]) == whole[cut:] + whole[:cut]
    assert ids(series.cast(pl.String), [slice(None)]) == whole


@given(
    rows=st.integers(1, 3000),
    fraction=st.floats(0, 0.99),
    by=st.sampled_from(["hash", "tail"]),
    seed=st.integers(0, 2**31),
    cut=st.integers(0, 3000),
)
def test_the_split_of_a_row_does_not_depend_on_how_rows_are_cut(
    rows: int, fraction: float, by: str, seed: int, cut: int
) -> None:
    valid, cut = Valid(fraction=fraction, by=by, seed=seed), min(cut, rows)
    whole = held_out(valid, 0, rows, rows)
    parts = [held_out(valid, 0, cut, rows), held_out(valid, cut, rows, rows)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    if by == "tail":
        assert whole.sum() == int(rows * fraction)
        assert not (np.diff(whole.astype(int)) < 0).any()
    if by == "hash":
        longer = held_out(valid, 0, rows + 10, rows + 10)
        np.testing.assert_array_equal(longer[:rows], whole)
        assert abs(whole.mean() - fraction) < 5 * (0.25 / rows) ** 0.5 + 1e-9


@given(
    rows=st.integers(0, 500),
    size=st.integers(1, 90),
    seed=st.integers(0, 9),
    limit=st.integers(0, 500),
)
def test_an_epoch_has_every_row_once_in_an_order_of_its_own(
    rows: int, size: int, seed: int, limit: int
) -> None:
    numbers = np.arange(rows) * 3
    saved = dataset.FULL_SHUFFLE_ROWS, dataset._BLOCK_ROWS, dataset._GROUP_BLOCKS
    dataset.FULL_SHUFFLE_ROWS, dataset._BLOCK_ROWS, dataset._GROUP_BLOCKS = limit, 16, 4
    try:
        batches = list(shuffled(numbers, size, seed, 1))
        again = list(shuffled(numbers, size, seed, 1))
        other = list(shuffled(numbers, size, seed, 2))
    finally:
        dataset.FULL_SHUFFLE_ROWS, dataset._BLOCK_ROWS, dataset._GROUP_BLOCKS = saved
    joined = np.concatenate([*batches, np.empty(0, np.int64)])
    np.testing.assert_array_equal(np.sort(joined), numbers)
    assert all(len(batch) == size for batch in batches[:-1])
    np.testing.assert_array_equal(joined, np.concatenate([*again, np.empty(0, np.int64)]))
    if rows > 30:
        assert not np.array_equal(joined, np.concatenate(other))


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=20), st.data())
def test_lists_of_any_rows(table: list[list[int]], data: st.DataObject) -> None:
    values = np.array([v for row in table for v in row], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in table])]).astype(np.int64)
    rows = np.array(data.draw(st.lists(st.integers(0, len(table) - 1), max_size=10)), np.int64)
    found = lists(values, offsets, rows)
    assert found.length_B.tolist() == [len(table[row]) for row in rows]
    assert found.values_L.tolist() == [v for row in rows for v in table[row]]
    assert found.owner_L.tolist() == [i for i, row in enumerate(rows) for _ in table[row]]
