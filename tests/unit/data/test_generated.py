"""Generated data: the same as its file, of any length, with a signal that can be learned."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from rmixer.data import cache, generate, schema, synthetic
from rmixer.data.dataset import Dataset
from rmixer.data.generated import BEHAVIOUR_FILE_SCHEMA, DEFAULTS

COLUMNS = ("label.u1", "dense.f4", "sparse.i4", "train.i8", "valid.i8")
LISTS = tuple(f"hist_{k}.{p}" for k in ("items", "cates") for p in ("values.i4", "offsets.i8"))


@pytest.mark.parametrize("like", ["criteo", "behaviour"])
def test_the_file_and_the_format_give_the_same_columns(tmp_path: Path, like: str) -> None:
    sizes = {**DEFAULTS, "rows": 40_000, "seed": 5, "max_table_rows": 300, "history": 4}
    path = tmp_path / "data.txt.gz"
    generate.write(like, sizes, path)
    file_data = (
        {"format": "criteo"}
        if like == "criteo"
        else {"format": "csv", "schema": BEHAVIOUR_FILE_SCHEMA}
    )
    a = cache.prepare(schema.parse({**file_data, "path": str(path)}), tmp_path)
    b = cache.prepare(schema.parse({"format": "generated", "like": like, **sizes}), tmp_path)
    for name in (*COLUMNS, *(LISTS if like == "behaviour" else ())):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert Dataset(a).info.tables == Dataset(b).info.tables


def test_more_chunks_begin_with_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CHUNK_ROWS", 100)
    short = [chunk.id_BF for chunk in synthetic.criteo(200, 1, 50)]
    long = [chunk.id_BF for chunk in synthetic.criteo(500, 1, 50)]
    assert len(long) == 5
    for a, b in zip(short, long, strict=False):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(long[0], long[1])


def test_the_command_line_writes_a_file(tmp_path: Path) -> None:
    out = tmp_path / "b.txt.gz"
    generate.main(["behaviour", "--rows", "50", "--out", str(out), "--history", "3"])
    lines = gzip.decompress(out.read_bytes()).decode().splitlines()
    assert lines[0] == "hist_items;hist_cates;item;cate;label"
    assert len(lines) == 51
    with pytest.raises(SystemExit):
        generate.main(["behaviour", "--rows", "0", "--out", str(out)])


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
