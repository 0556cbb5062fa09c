"""Generated data: the same as its file, of any length, with a signal that can be learned."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

from rmixer.data import cache, generate, schema, synthetic
from rmixer.data.dataset import Dataset
from rmixer.data.format import load_format
from rmixer.data.generated import LIKE, shape, sizes_of
from rmixer.train.metrics import auc

SMALL = {"max_table_rows": 300, "items": 400, "categories": 20, "history": 8, "users": 500}
#: The share of what can be known, (AUC - 0.5), that a model without pasts or products may find.
LINEAR = {
    "alimama": 0.2, "amazon": 0.3, "avazu": 0.8, "beauty": 0.2, "behaviour": 0.3, "criteo": 0.85,
    "kdd2012": 0.6,
}  # fmt: skip
every_shape = pytest.mark.parametrize("like", sorted(LIKE))


def small(like: str, **given: int) -> dict[str, int]:
    sizes = sizes_of(like)
    return {**{key: SMALL.get(key, value) for key, value in sizes.items()}, **given}


def generated(like: str, folder: Path, **given: int) -> Dataset:
    data = {"format": "generated", "like": like, **small(like, **given)}
    return Dataset(cache.prepare(schema.parse(data), folder))


@every_shape
def test_the_file_and_the_format_give_the_same_columns(
    like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several chunks, and with pasts that are longer than what is kept."""
    monkeypatch.setattr(synthetic, "CHUNK_ROWS", 700)
    sizes = small(like, rows=2500 - 100 * (like == "beauty"), seed=5)
    if "history" in sizes:
        sizes["history"] = 60
    path = tmp_path / "data.txt.gz"
    generate.write(like, sizes, path)
    own = {**shape(like).data, "path": str(path), "transform": {"dense": "log1p"}}
    a = Dataset(cache.prepare(schema.parse(own), tmp_path))
    b = generated(like, tmp_path, **sizes)
    assert a.info == b.info
    files = [file.name for file in a.folder.iterdir() if file.suffix[1:2] in ("u", "i", "f")]
    assert len(files) == 3 + 2 * len(a.info.sequences)
    for name in files:
        assert (a.folder / name).read_bytes() == (b.folder / name).read_bytes(), name


@every_shape
def test_more_rows_begin_with_the_same_rows(like: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CHUNK_ROWS", 50)
    users = {"users": 1} if like == "alimama" else {}  # as many as the rows make likely
    texts = [
        "".join(shape(like).text(small(like, rows=rows, seed=seed, **users)))
        for rows, seed in ((200, 0), (500, 0), (200, 9))
    ]
    assert texts[1].startswith(texts[0])
    assert not texts[1].startswith(texts[2])


@every_shape
def test_the_labels_are_drawn_from_the_probabilities(like: str, tmp_path: Path) -> None:
    """They tell a lot, and logistic regression on the columns without the pasts far less."""
    rows = 20_000
    data = generated(like, tmp_path, rows=rows)
    spec = schema.parse({"format": "generated", "like": like, **small(like, rows=rows)})
    chance = np.concatenate(
        [drawn.probability_B for drawn in load_format("generated")(spec).rows()]
    )
    labels = data.labels(np.arange(rows))
    train, valid = np.asarray(data.train_rows), np.asarray(data.valid_rows)
    for part in np.array_split(np.argsort(chance), 10):  # calibrated
        off = abs(labels[part].mean() - chance[part].mean())
        assert off < 5 * (0.25 / len(part)) ** 0.5
    best = auc(labels[valid], chance[valid])
    assert 0.78 < best < 0.9
    features = one_hot(data)
    linear = LogisticRegression(C=0.3, max_iter=200, tol=1e-3).fit(features[train], labels[train])
    found = auc(labels[valid], linear.decision_function(features[valid]))
    assert found - 0.5 < LINEAR[like] * (best - 0.5)


def one_hot(data: Dataset) -> scipy.sparse.csr_matrix:
    """The fields one-hot, and the numbers."""
    rows = data.info.rows
    batch = data.batch(np.arange(rows))
    parts = [scipy.sparse.csr_matrix(batch.dense_BN.numpy())]
    for i, field in enumerate(data.info.fields):
        at = (np.arange(rows), batch.sparse_BF[:, i].numpy())
        width = data.info.tables[field.table].rows
        parts.append(scipy.sparse.csr_matrix((np.ones(rows), at), (rows, width)))
    return scipy.sparse.hstack(parts).tocsr()


def test_the_command_line_writes_a_file(tmp_path: Path) -> None:
    out = tmp_path / "b.txt.gz"
    generate.main(["behaviour", "--rows", "50", "--out", str(out), "--history", "3"])
    lines = gzip.decompress(out.read_bytes()).decode().splitlines()
    assert lines[0] == "hist_items;hist_cates;item;cate;label"
    assert len(lines) == 51


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["behaviour", "--rows", "0"], "--rows: 0 is not a whole number of at least 1"),
        (["beauty", "--rows", "7"], "--rows: 7 is odd"),
        (["amazon", "--rows", "7", "--items", "3"], "--items: there must be at least as many"),
        (["criteo", "--rows", "7", "--items", "3"], "unrecognized arguments: --items 3"),
    ],
)
def test_the_command_line_refuses(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    with pytest.raises(SystemExit):
        generate.main([*arguments, "--out", str(out)])
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("data", "key", "message"),
    [
        ({"like": "criteo"}, "rows", "published are 45,840,617"),
        ({"like": "criteo", "rows": 9, "itms": 3}, "itms", "did you mean 'items'?"),
        ({"like": "amazon", "rows": 9, "history": 0}, "history", "at least 1"),
        ({"like": "beauty", "rows": 9}, "rows", "each user gives two rows"),
        ({"like": "amazn", "rows": 9}, "like", "did you mean 'amazon'?"),
    ],
)
def test_options_are_checked(data: dict, key: str, message: str) -> None:
    ((found, text),) = schema.validate({"format": "generated", **data})
    assert found == key
    assert message in text


def test_a_model_of_generated_data_can_be_told_new_rows() -> None:
    """A frame with the columns of the form, without a label."""
    spec = schema.parse({"format": "generated", "like": "kdd2012", "rows": 5})
    frame = {
        "item": ["3"], "cate": ["4"], "position": ["1"], "hist_items": ["3 5"],
        "hist_cates": ["4 6"], "hist_positions": ["1 2"],
    }  # fmt: skip
    (chunk,) = load_format("generated")(spec).chunks_of(frame)
    assert chunk.label_B is None
    assert [lengths.tolist() for _, lengths in chunk.sequences] == [[2], [2], [2]]


def test_categories_belong_to_items_and_some_histories_are_empty() -> None:
    (rows,) = synthetic.behaviour(2000, 0, items=70, categories=9, history=4)
    np.testing.assert_array_equal(rows.category_B, 1 + (rows.item_B - 1) % 9)
    assert rows.item_B.min() >= 1
    assert max(rows.item_B.max(), rows.history.max()) <= 70
    assert (rows.length_B == 0).any()
    assert rows.length_B.sum() == len(rows.history)


def test_hashed_normals_are_normal_enough() -> None:
    values = synthetic.normal_hash(np.arange(100_000, dtype=np.uint64), 3)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
