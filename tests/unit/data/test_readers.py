"""Real and made-up files become the columns that they say."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from rmixer.data import cache, schema, text
from rmixer.data.dataset import Dataset

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs {SHARED}")
NO_VALID = {"fraction": 0.0}


def read(tmp_path: Path, data: dict) -> Dataset:
    return Dataset(cache.prepare(schema.parse(data), tmp_path / "cache"))


def criteo_line(label: str = "0", delimiter: str = "\t", fill: str = "3") -> str:
    ids = [f"{i:08x}" for i in range(26)]
    return delimiter.join([label, *[fill] * 13, *ids])


def test_criteo_tsv_csv_and_gzip_of_either_are_found_by_content(tmp_path: Path) -> None:
    header = ",".join(["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
    tsv = "".join(criteo_line(str(i % 2)) + "\n" for i in range(6))
    as_csv = header + "\n" + "".join(criteo_line(str(i % 2), ",") + "\n" for i in range(6))
    contents = {
        "a": tsv.encode(),
        "b": as_csv.encode(),
        "c": gzip.compress(tsv.encode()),
        "d": gzip.compress(as_csv.encode()),
        "e": tsv.replace("\n", "\r\n").encode(),
        "f": tsv.encode().rstrip(b"\n"),
        "g": tsv.encode() + b"\n\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        data = read(tmp_path, {"format": "criteo", "path": str(tmp_path / name), "valid": NO_VALID})
        batch = data.batch(np.arange(6)).check(data.info)
        assert batch.label_B.tolist() == [0, 1, 0, 1, 0, 1], name
        np.testing.assert_allclose(batch.dense_BN.numpy(), np.log1p(3.0), rtol=1e-6)
        assert (batch.sparse_BF == 2).all()


def test_missing_values_of_criteo_are_id_zero_and_number_zero(tmp_path: Path) -> None:
    row = ["1", *[""] * 13, *[""] * 26]
    (tmp_path / "a").write_text("\t".join(row) + "\n" + criteo_line("0", fill="-2") + "\n")
    data = read(tmp_path, {"format": "criteo", "path": str(tmp_path / "a"), "valid": NO_VALID})
    batch = data.batch(np.arange(2))
    assert not batch.dense_BN.any()  # a negative count is 0 before the logarithm
    assert batch.sparse_BF.tolist() == [[0] * 26, [2] * 26]


@needs_shared
@pytest.mark.parametrize(
    ("name", "rows"), [("deepctr_criteo_sample.csv", 200), ("rechub_criteo_sample.csv", 115)]
)
def test_real_criteo_samples(tmp_path: Path, name: str, rows: int) -> None:
    path = SHARED / "criteo_small" / name
    data = read(tmp_path, {"format": "criteo", "path": str(path)})
    assert data.info.rows == rows
    assert len(data.info.fields) == 26
    data.batch(np.arange(rows)).check(data.info)


@needs_shared
def test_real_behaviour_lists_share_the_vocabulary_of_the_target(tmp_path: Path) -> None:
    path = SHARED / "amazon_small" / "paddlerec_din_electronics.txt"
    data = read(
        tmp_path,
        {
            "format": "csv",
            "path": str(path),
            "valid": NO_VALID,
            "schema": {
                "columns": ["hist_items", "hist_cates", "item", "cate", "label"],
                "delimiter": ";",
                "label": "label",
                "sparse": ["item", "cate"],
                "sequence": {"hist_items": {"shares": "item"}, "hist_cates": {"shares": "cate"}},
            },
        },
    )
    assert data.info.rows == 100
    assert [s.table for s in data.info.sequences] == [0, 1]
    lines = [line.split(";") for line in path.read_text().splitlines()]
    batch = data.batch(np.arange(100)).check(data.info)
    assert batch.label_B.tolist() == [float(line[4]) for line in lines]
    lengths = [min(50, len(line[0].split())) for line in lines]
    assert batch.sequences["hist_items"].length_B.tolist() == lengths
    # The same raw id has the same local id in the history and as the target.
    local = {}
    start = 0
    items = batch.sequences["hist_items"].values_L.tolist()
    for line, length, target in zip(lines, lengths, batch.sparse_BF[:, 0].tolist(), strict=True):
        raw = line[0].split()[-50:]
        for value, found in zip(
            [*raw, line[2]], [*items[start : start + length], target], strict=True
        ):
            assert local.setdefault(value, found) == found
        start += length
    assert len(set(local.values())) == len(local)


def test_quoted_fields_may_hold_the_delimiter_and_a_newline(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name,x,y\n"a, b",1,0\n"c\nd",2,1\nplain,3,1\n')
    schema_ = {"label": "y", "sparse": ["name"], "dense": ["x"]}
    data = read(
        tmp_path,
        {"format": "csv", "path": str(tmp_path / "a.csv"), "schema": schema_, "valid": NO_VALID,
         "transform": {"dense": "none"}},
    )  # fmt: skip
    batch = data.batch(np.arange(3))
    assert batch.dense_BN.flatten().tolist() == [1, 2, 3]
    assert sorted(batch.sparse_BF.flatten().tolist()) == [2, 3, 4]


def test_blocks_end_between_rows_and_know_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    lines = [f'{i},"x\ny",{"z" * (i % 40)}' if i % 7 == 0 else f"{i},,b" for i in range(60)]
    (tmp_path / "a").write_text("\n".join(lines) + "\n\n\n")
    whole, line = b"", 1
    for block, first in text.blocks(tmp_path / "a"):
        assert first == line
        assert block.endswith(b"\n")
        assert block.count(b'"') % 2 == 0
        line += block.count(b"\n")
        whole += block
    assert whole.decode() == "\n".join(lines) + "\n"


def test_small_blocks_give_the_same_columns_as_one_large_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{i % 2};{i % 13};w{i % 29};{' '.join(f'i{i * k % 17}' for k in range(i % 5))}\n" for i in range(500))  # fmt: skip
    path.write_text("y;x;word;hist\n" + rows)
    data = {
        "format": "csv",
        "path": str(path),
        "schema": {"label": "y", "dense": ["x"], "sparse": ["word"], "sequence": ["hist"]},
        "transform": {"bins": 4},
    }
    large = cache.prepare(schema.parse(data), tmp_path / "one")
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    monkeypatch.setattr("rmixer.data.build.GROUP_ROWS", 64)
    small = cache.prepare(schema.parse(data), tmp_path / "two")
    for file in large.iterdir():
        assert (small / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_schema_may_name_what_missing_looks_like(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("w,x,y\n?,?,no\nb,5,yes\n,,yes\n")
    schema_ = {"label": "y", "positive": "yes", "sparse": ["w"], "dense": ["x"], "missing": ["?"]}
    data = read(
        tmp_path,
        {"format": "csv", "path": str(tmp_path / "a.csv"), "schema": schema_, "valid": NO_VALID,
         "transform": {"dense": "none", "bins": 2}},
    )  # fmt: skip
    batch = data.batch(np.arange(3))
    assert batch.label_B.tolist() == [0, 1, 1]
    assert batch.sparse_BF[:, 0].tolist() == [0, 2, 0]
    assert batch.sparse_BF[:, 1].tolist()[::2] == [0, 0]
    assert [f.name for f in data.info.fields] == ["w", "x.bin"]


def test_rare_ids_are_unknown_and_the_rest_go_by_frequency(tmp_path: Path) -> None:
    words = ["c"] * 5 + ["b"] * 3 + ["a"] * 3 + ["rare"]
    (tmp_path / "a.csv").write_text(
        "w,y\n" + "".join(f"{w},{i % 2}\n" for i, w in enumerate(words))
    )
    base = {"format": "csv", "path": str(tmp_path / "a.csv"), "valid": NO_VALID,
            "schema": {"label": "y", "sparse": ["w"]}}  # fmt: skip
    data = read(tmp_path, {**base, "transform": {"min_count": 2}})
    ids = data.batch(np.arange(12)).sparse_BF.flatten().tolist()
    assert ids == [2] * 5 + [4] * 3 + [3] * 3 + [1]
    capped = read(tmp_path, {**base, "transform": {"max_ids": 1}})
    assert capped.batch(np.arange(12)).sparse_BF.flatten().tolist() == [2] * 5 + [1] * 7
    assert capped.info.tables[0].rows == 3


def test_the_vocabulary_is_the_training_rows_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("w,y\n" + "".join(f"w{i},{i % 2}\n" for i in range(100)))
    data = read(
        tmp_path,
        {"format": "csv", "path": str(tmp_path / "a.csv"), "valid": {"fraction": 0.2, "by": "tail"},
         "schema": {"label": "y", "sparse": ["w"]}},
    )  # fmt: skip
    assert data.valid_rows.tolist() == list(range(80, 100))
    assert (data.batch(data.valid_rows).sparse_BF == 1).all()
    assert data.info.tables[0].rows == 82
