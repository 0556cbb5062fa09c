"""The formats of tables on real samples, on ids that are ready, and on what is not right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data_examples import columns, feature_map, fuxictr, parquet, torchrec
from rmixer.data import arrays, cache, detect, schema
from rmixer.data import parquet as parquet_format
from rmixer.data.dataset import Dataset
from rmixer.data.format import Chunk, load_format
from rmixer.errors import DataError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs {SHARED}")
NO_VALID = {"fraction": 0.0}


def read(data: dict, folder: Path) -> Dataset:
    return Dataset(cache.prepare(schema.parse(data), folder / "cache"))


def chunks(data: dict) -> list[Chunk]:
    return list(load_format(data["format"])(schema.parse(data)).chunks())


def fault(data: dict, folder: Path) -> str:
    """The message, after it was made sure that nothing half-built is left."""
    with pytest.raises(DataError) as caught:
        cache.prepare(schema.parse(data), folder / "cache")
    assert not list((folder / "cache").glob("*.building"))
    return str(caught.value)


@needs_shared
@pytest.mark.parametrize("name", ["tiny_parquet", "tiny_npz", "tiny_seq"])
def test_ids_of_fuxictr_are_kept_and_sizes_are_those_of_the_map(name: str, tmp_path: Path) -> None:
    """Every id of the real samples, in every row; and the same shape from headers alone."""
    place = SHARED / "fuxictr_tiny" / name
    data = {"format": "fuxictr", "path": str(place), "valid": NO_VALID}
    built = read(data, tmp_path)
    if name == "tiny_parquet":
        raw = pl.read_parquet(place / "train.parquet").to_dict(as_series=False)
    else:
        raw = dict(np.load(place / "train.npz"))
    batch = built.batch(np.arange(100)).check(built.info)
    for i, field in enumerate(built.info.fields):
        assert batch.sparse_BF[:, i].tolist() == list(raw[field.name])
    sizes = json.loads((place / "feature_map.json").read_text())["features"]
    wanted = {name: about["vocab_size"] for some in sizes for name, about in some.items()}
    assert {t.name: t.rows for t in built.info.tables} == {
        t.name: wanted[t.name] for t in built.info.tables
    }
    assert detect.header_info(schema.parse(data)) == built.info
    if name == "tiny_seq":
        lists = batch.sequences["click_sequence"]
        assert lists.length_B.tolist() == (raw["click_sequence"] != 0).sum(axis=1).tolist()
        assert lists.values_L.tolist() == [i for row in raw["click_sequence"] for i in row if i]


def test_parquet_npz_and_parts_of_the_same_rows_are_the_same_data(tmp_path: Path) -> None:
    found = [
        read({**fuxictr(tmp_path, e), "valid": NO_VALID}, tmp_path) for e in ("npz", "parquet")
    ]
    parts = tmp_path / "fuxictr_parts"
    (parts / "train").mkdir(parents=True)
    (parts / "feature_map.json").write_text(json.dumps(feature_map()))
    frame = pl.read_parquet(tmp_path / "fuxictr_parquet" / "train.parquet")
    for i, start in ((2, 0), (10, 300)):  # 2 comes before 10
        frame[start : 300 if start == 0 else 700].write_parquet(parts / f"train/part_{i}.parquet")
    found.append(read({"format": "fuxictr", "path": str(parts), "valid": NO_VALID}, tmp_path))
    first, *others = (data.batch(np.arange(700)) for data in found)
    for other in others:
        np.testing.assert_array_equal(first.sparse_BF, other.sparse_BF)
        np.testing.assert_array_equal(first.dense_BN, other.dense_BN)
        np.testing.assert_array_equal(first.label_B, other.label_B)
        np.testing.assert_array_equal(
            first.sequences["hist"].values_L, other.sequences["hist"].values_L
        )


def test_words_of_fuxictr_get_a_vocabulary(tmp_path: Path) -> None:
    """csv is what FuxiCTR reads, not what it wrote: no id in it is one of the map's."""
    data = {**fuxictr(tmp_path, "csv"), "valid": NO_VALID}
    built = read(data, tmp_path)
    raw = columns()
    assert detect.header_info(schema.parse(data)) is None
    distinct = len(np.unique(raw["user"]))
    assert built.info.tables[0].rows == distinct + 2
    lengths = built.batch(np.arange(700)).sequences["hist"].length_B
    np.testing.assert_array_equal(lengths, (raw["hist"] != 0).sum(axis=1))


def test_ready_ids_are_counted_where_rare_ones_are_to_go(tmp_path: Path) -> None:
    """Then sizes are not known before, and the most frequent id is the first."""
    data = {**fuxictr(tmp_path), "valid": NO_VALID, "transform": {"max_ids": 3}}
    built = read(data, tmp_path)
    assert detect.header_info(schema.parse(data)) is None
    assert [table.rows for table in built.info.tables] == [5, 5]
    users = columns()["user"]
    local = built.batch(np.arange(700)).sparse_BF[:, 0].numpy()
    assert set(users[local == 2]) == {np.bincount(users).argmax()}


def test_small_chunks_of_arrays_and_parquet_are_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [fuxictr(tmp_path), parquet(tmp_path), torchrec(tmp_path)]
    large = [cache.prepare(schema.parse(data), tmp_path / "one") for data in made]
    monkeypatch.setattr("rmixer.data.fuxictr.CHUNK_ROWS", 64)
    monkeypatch.setattr("rmixer.data.torchrec.CHUNK_ROWS", 64)
    monkeypatch.setattr(parquet_format, "CHUNK_ROWS", 64)
    monkeypatch.setattr("rmixer.data.build.GROUP_ROWS", 90)
    for data, whole in zip(made, large, strict=True):
        assert len(chunks(data)) > 8
        small = cache.prepare(schema.parse(data), tmp_path / "two")
        for file in whole.iterdir():
            assert (small / file.name).read_bytes() == file.read_bytes(), file.name


def test_ids_of_torchrec_are_taken_modulo(tmp_path: Path) -> None:
    data = {**torchrec(tmp_path), "table_rows": 11, "valid": NO_VALID}
    built = read(data, tmp_path)
    assert detect.header_info(schema.parse(data)) == built.info
    raw = [np.load(tmp_path / "torchrec" / f"day_{day}_sparse.npy") for day in (0, 1)]
    wanted = np.concatenate(raw).astype(np.int64) % 11
    np.testing.assert_array_equal(built.batch(np.arange(700)).sparse_BF, wanted)
    assert {table.rows for table in built.info.tables} == {11}


def test_several_ids_a_row_of_torchrec_are_lists(tmp_path: Path) -> None:
    """The days' arrays of DLRM v2; the format itself finds that they are such."""
    place = Path(torchrec(tmp_path, rows=(9,))["path"])
    (place / "day_0_sparse.npy").unlink()
    ids = {str(i): np.arange(1, 28).reshape(9, 3) * (i + 1) for i in range(26)}
    np.savez(place / "day_0_sparse_multi_hot.npz", **ids)
    data = {"format": "torchrec", "path": str(place), "table_rows": 1000, "valid": NO_VALID}
    built = read(data, tmp_path)
    lists = built.batch(np.arange(9)).sequences["C2"]
    assert lists.values_L.tolist() == ids["1"].ravel().tolist()
    assert lists.length_B.tolist() == [3] * 9


@needs_shared
@pytest.mark.parametrize(
    ("file", "rows", "clicks"),
    [
        ("criteo_small/paddlerec_slots_sample.txt", 80, 23),
        ("criteo_small/paddlerec_autoint_sample.txt", 100, 21),
        ("criteo_small/paddlerec_featidx_sample.txt", 100, 22),
        ("criteo_small/paddlerec_slotdnn_demo10.txt", 10, 4),
        ("avazu_small/rechub_avazu_train.csv", 70, 15),
        ("avazu_small/paddlerec_flen_sample.csv", 90, 10),
    ],
)
def test_real_samples_are_found_by_content_and_read(
    file: str, rows: int, clicks: int, tmp_path: Path
) -> None:
    built = read({"path": str(SHARED / file), "valid": NO_VALID}, tmp_path)
    batch = built.batch(np.arange(rows)).check(built.info)
    assert (built.info.rows, int(batch.label_B.sum())) == (rows, clicks)


@needs_shared
def test_real_slots_keep_every_word() -> None:
    """Of slots with one word and of feasigns of 64 bits."""
    path = SHARED / "criteo_small" / "paddlerec_slots_sample.txt"
    (chunk,) = chunks({"format": "paddlerec_slots", "path": str(path)})
    lines = [[w.split(":") for w in line.split()] for line in path.read_text().splitlines()]
    for i, slot in enumerate(range(1, 27)):
        assert chunk.sparse[i].to_list() == [int(dict(line)[str(slot)]) for line in lines]
    dense = [[float(v) for name, v in line if name == "dense_feature"] for line in lines]
    np.testing.assert_array_equal(chunk.dense_BN, dense)
    path = SHARED / "criteo_small" / "paddlerec_slotdnn_demo10.txt"
    (chunk,) = chunks({"format": "paddlerec_slotdnn", "path": str(path)})
    lines = [[w.split(":") for w in line.split()] for line in path.read_text().splitlines()]
    for slot, (values, lengths) in zip(range(2, 302), chunk.sequences, strict=True):
        kept = [[int(v) for v, name in line if name == str(slot)] for line in lines]
        assert values.reinterpret(signed=False).to_list() == [v for row in kept for v in row]
        assert lengths.tolist() == [len(row) for row in kept]


@needs_shared
def test_both_forms_of_factorization_machines(tmp_path: Path) -> None:
    """The value counts of a number, the id of the others; what is missing is missing."""
    for name in ("autoint", "featidx"):
        path = SHARED / "criteo_small" / f"paddlerec_{name}_sample.txt"
        (chunk,) = chunks({"format": "paddlerec_fm", "path": str(path)})
        for row, line in enumerate(path.read_text().splitlines()):
            words = [word.rpartition(":")[2] for word in line.split()]
            words = words[1:] if name == "autoint" else words[:-1]
            ids, values = [int(w) for w in words[:39]], [float(w) for w in words[39:]]
            for i in range(13):
                found = chunk.dense_BN[row, i]
                assert np.isnan(found) if ids[i] == 0 else found == values[i]
            for i in range(26):
                gone = ids[13 + i] == 0 or values[13 + i] == 0
                assert chunk.sparse[i][row] == (None if gone else ids[13 + i])


@needs_shared
@pytest.mark.parametrize(
    ("file", "label", "sparse", "dense"),
    [
        ("rechub_aliccp_train.csv", "click", ["101", "205"], ["D508"]),
        ("rechub_aliccp_train.csv", "purchase", ["101", "205"], ["D508"]),
        ("rechub_aliexpress_train.csv", "click", ["categorical_1"], ["numerical_1"]),
        ("rechub_aliexpress_train.csv", "conversion", ["categorical_1"], ["numerical_1"]),
    ],
)
def test_one_label_of_several_is_chosen_and_the_others_are_not_read(
    file: str, label: str, sparse: list, dense: list, tmp_path: Path
) -> None:
    path = SHARED / "multitask_small" / file
    schema_ = {"label": label, "sparse": sparse, "dense": dense}
    built = read({"path": str(path), "schema": schema_, "valid": NO_VALID}, tmp_path)
    truth = pl.read_csv(path)
    batch = built.batch(np.arange(built.info.rows))
    assert batch.label_B.tolist() == truth[label].to_list()
    assert [f.name for f in built.info.fields] == sparse
    assert built.info.dense == tuple(dense)


@needs_shared
def test_a_table_without_a_header_has_its_columns_declared(tmp_path: Path) -> None:
    """The census rows of mmoe: two labels, then one number, then marks of 0 and 1."""
    path = SHARED / "multitask_small" / "paddlerec_mmoe_census.csv"
    names = ["income", "marital", *(f"x{i}" for i in range(499))]
    schema_ = {"columns": names, "label": "marital", "dense": names[2:]}
    built = read({"format": "csv", "path": str(path), "schema": schema_, "valid": NO_VALID,
                  "transform": {"dense": "none"}}, tmp_path)  # fmt: skip
    truth = np.loadtxt(path, delimiter=",")
    batch = built.batch(np.arange(30))
    np.testing.assert_array_equal(batch.label_B, truth[:, 1])
    np.testing.assert_allclose(batch.dense_BN, truth[:, 2:], rtol=1e-6)


def slot_line(**changed: str) -> str:
    words = {"click": "0", **{str(i): str(i) for i in range(1, 27)}, **changed}
    numbers = " ".join(f"dense_feature:{i / 10}" for i in range(13))
    return (
        " ".join([numbers, *(f"{name}:{value}" for name, value in words.items() if value)]) + "\n"
    )


def test_slots_that_a_line_lacks_are_missing_values(tmp_path: Path) -> None:
    """Whether lines are all alike or not."""
    path = tmp_path / "a.txt"
    schema_ = {"label": "click", "dense": {"dense_feature": 2}, "sparse": [1], "sequence": {2: {}}}
    path.write_text("click:1 1:5\nclick:0 dense_feature:3 dense_feature:4 2:7 9:9 2:8\n")
    (chunk,) = chunks({"format": "paddlerec_slots", "path": str(path), "schema": schema_})
    assert chunk.sparse[0].to_list() == [5, None]
    np.testing.assert_array_equal(chunk.dense_BN, [[np.nan, np.nan], [3, 4]])
    values, lengths = chunk.sequences[0]
    assert (values.to_list(), lengths.tolist()) == ([7, 8], [0, 2])


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("paddlerec_slots", slot_line() + slot_line(click=""), [":2", "column click", "no label"]),
        ("paddlerec_slots", slot_line() + slot_line(click="2"), [":2", "column click", "'2'", "0 or 1"]),
        ("paddlerec_slots", slot_line() + slot_line(**{"7": "x7"}), [":2", "column 7", "'x7'", "whole number"]),
        ("paddlerec_slots", slot_line().replace("0.5", "half"), [":1", "dense_feature", "'half'", "no number"]),
        ("paddlerec_slots", slot_line() + slot_line().replace("dense_feature:0.5 ", ""), [":2", "12 words", "13 or none"]),
        ("paddlerec_slots", slot_line() + slot_line().replace(" 4:4", " 4:4 4:5"), [":2", "column 4", "2 words", "sequence"]),
        ("paddlerec_slots", slot_line() + "click\n", [":2", "'click'", "SLOT:VALUE"]),
        ("paddlerec_slots", "", ["empty"]),
        ("paddlerec_slotdnn", "0:1 5:2\n0:1 18446744073709551616:2\n", [":2", "column 2", "below 2**64"]),
        ("paddlerec_slotdnn", "0:1 5:2\n0:1 5\n", [":2", "'5'", "VALUE:SLOT"]),
        ("paddlerec_fm", "feat_idx:1 label:0\n", [":1", "2 words", "39 words feat_idx:"]),
        ("paddlerec_fm", " ".join(["0", *["1"] * 78]) + "\n" + " ".join(["0", *["1"] * 77]), [":2", "78 words", "a label, 39 ids"]),
        ("paddlerec_fm", " ".join(["0", "a", *["1"] * 77]) + "\n", [":1", "column I1", "'a'", "whole number"]),
        ("paddlerec_fm", " ".join(["0", *["1"] * 77, "b"]) + "\n", [":1", "column C26", "'b'", "no number"]),
        ("paddlerec_fm", " ".join(["3", *["1"] * 78]) + "\n", [":1", "column label", "'3'", "0 or 1"]),
    ],
)  # fmt: skip
def test_a_fault_of_text_says_where_and_what(
    name: str, text: str, parts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "data.txt"
    path.write_text(text)
    message = fault({"format": name, "path": str(path)}, tmp_path)
    assert str(path) in message
    assert all(part in message for part in parts), message


def frame_with(**changed: object) -> pl.DataFrame:
    frame = pl.DataFrame(columns()).with_columns(pl.col("hist").arr.to_list())
    return frame.with_columns(**changed)  # type: ignore[arg-type]


AT_5 = pl.int_range(pl.len()) == 5
PARQUET_FAULTS: list[tuple[Callable[[], pl.DataFrame], list[str]]] = [
    (lambda: frame_with().drop("price"), ["unknown column 'price'", "known:"]),
    (lambda: frame_with(price=pl.when(AT_5).then(pl.lit("x")).otherwise(pl.lit("1"))),
     ["column price", "row 6", "'x'", "no number"]),
    (lambda: frame_with(price=pl.col("hist")), ["column price", "List", "not a number"]),
    (lambda: frame_with(click=pl.when(AT_5).then(2.0).otherwise(1.0)),
     ["column click", "row 6", "2.0", "0 or 1"]),
    (lambda: frame_with(click=pl.when(AT_5).then(None).otherwise(1)),
     ["column click", "row 6", "empty", "every row needs one"]),
    (lambda: frame_with(user=pl.when(AT_5).then(1.5).otherwise(1.0)),
     ["column user", "row 6", "1.5", "whole number"]),
    (lambda: frame_with()[:0], ["no rows"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "parts"), PARQUET_FAULTS)
def test_a_fault_of_parquet_says_where_and_what(
    make: Callable[[], pl.DataFrame], parts: list[str], tmp_path: Path
) -> None:
    data = parquet(tmp_path)
    make().write_parquet(data["path"])
    message = fault(data, tmp_path)
    assert data["path"] in message
    assert all(part in message for part in parts), message


def test_parquet_that_is_cut_off_or_something_else(tmp_path: Path) -> None:
    data = parquet(tmp_path)
    path = Path(data["path"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged or cut off" in fault(data, tmp_path)
    path.write_text("click,price\n1,2\n")
    assert "begins with PAR1" in fault(data, tmp_path)
    path.unlink()
    assert "no such file" in fault(data, tmp_path)


def test_parts_whose_columns_are_of_other_kinds(tmp_path: Path) -> None:
    data = parquet(tmp_path)
    place = tmp_path / "parts"
    place.mkdir()
    frame_with().write_parquet(place / "a.parquet")
    frame_with(user=pl.col("user").cast(pl.String)).write_parquet(place / "b.parquet")
    message = fault({**data, "path": str(place)}, tmp_path)
    assert "b.parquet: column user: is text here and whole numbers in a.parquet" in message


def changed_map(change: Callable[[dict], object]) -> str:
    content = feature_map()
    change(content)
    return json.dumps(content)


FUXICTR_FAULTS: list[tuple[str, list[str]]] = [
    ("{", ["is no JSON"]),
    ("{}", ["has no 'labels'"]),
    (changed_map(lambda m: m["labels"].append("buy")), ["2 labels", "write `label:`"]),
    (changed_map(lambda m: m["features"][2]["user"].update(vocab_size=10)),
     ["column user", "row ", "not among the 10 ids", "0 to 9"]),
    (changed_map(lambda m: m["features"][2]["user"].pop("vocab_size")),
     ["column user", "vocab_size None"]),
    (changed_map(lambda m: m["features"][2]["user"].update(padding_idx=3)),
     ["column user", "padding_idx 3", "only 0"]),
    (changed_map(lambda m: m["features"].append({"vector": {"type": "embedding"}})),
     ["column vector", "'embedding'", "numeric, categorical, sequence and meta"]),
    (changed_map(lambda m: m["features"].append({"gone": {"type": "numeric"}})),
     ["unknown column 'gone'"]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "parts"), FUXICTR_FAULTS)
def test_a_fault_of_a_feature_map_or_its_rows(
    content: str, parts: list[str], tmp_path: Path
) -> None:
    data = fuxictr(tmp_path)
    (Path(data["path"]) / "feature_map.json").write_text(content)
    message = fault(data, tmp_path)
    assert data["path"] in message
    assert all(part in message for part in parts), message


def test_fuxictr_files_that_are_not_there(tmp_path: Path) -> None:
    data = fuxictr(tmp_path)
    place = Path(data["path"])
    (place / "train.npz").unlink()
    assert "has neither train.* nor parts of rows" in fault(data, tmp_path)
    (place / "train.h5").write_bytes(b"x")
    message = fault({**data, "path": str(place / "train.h5")}, tmp_path)
    assert "is none of .parquet, .npz, .csv" in message
    (place / "feature_map.json").unlink()
    assert "there is no feature_map.json (looked at" in fault(data, tmp_path)


def save(name: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda place: np.save(place / name, array, allow_pickle=True)


def cut(place: Path) -> None:
    path = place / "day_0_sparse.npy"
    path.write_bytes(path.read_bytes()[:-100])


TORCHREC_FAULTS: list[tuple[Callable[[Path], None], list[str]]] = [
    (save("day_0_dense.npy", np.zeros((500, 12), np.float32)),
     ["day_0_dense.npy", "(500, 12)", "(rows, 13)", "`dense: 12`"]),
    (save("day_0_sparse.npy", np.zeros((499, 26), np.int32)),
     ["day_0_sparse.npy", "499 rows", "day_0_dense.npy has 500"]),
    (save("day_0_sparse.npy", np.zeros((500, 26), np.float32)),
     ["day_0_sparse.npy", "float32", "whole numbers"]),
    (save("day_0_sparse.npy", np.zeros(500, np.int32)), ["day_0_sparse.npy", "(500,)"]),
    (save("day_0_dense.npy", np.full((500, 13), "x")), ["day_0_dense.npy", "<U1", "numbers"]),
    (save("day_0_dense.npy", np.full((500, 13), None)), ["day_0_dense.npy", "Python objects"]),
    (save("day_0_dense.npy", np.full((500, 13), np.inf, np.float32)), ["column I1", "row 1", "inf"]),
    (save("day_0_labels.npy", np.full((500, 1), 2)), ["column label", "row 1", "2", "0 or 1"]),
    (lambda place: (place / "day_1_sparse.npy").unlink(), ["day_1_sparse.npy", "no such file"]),
    (lambda place: (place / "day_1_dense.npy").write_bytes(b"hello"), ["day_1_dense.npy", "no .npy"]),
    (cut, ["day_0_sparse.npy", "shorter than its header says"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "parts"), TORCHREC_FAULTS)
def test_a_fault_of_arrays_says_where_and_what(
    change: Callable[[Path], None], parts: list[str], tmp_path: Path
) -> None:
    data = {**torchrec(tmp_path), "dense": 13, "sparse": 26}
    change(Path(data["path"]))
    message = fault(data, tmp_path)
    assert data["path"] in message
    assert all(part in message for part in parts), message


def test_arrays_of_an_archive_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(1000), b=np.arange(10))
    with arrays.Archive(path) as archive:
        with pytest.raises(DataError, match=r"column b: has 10 rows, but a has 1000"):
            list(archive.blocks(["a", "b"], 100))
        with pytest.raises(DataError, match=r"unknown array 'c'"):
            archive.header("c")
    damaged = bytearray(path.read_bytes())
    damaged[4000] ^= 0xFF
    path.write_bytes(damaged)
    with arrays.Archive(path) as archive, pytest.raises(DataError, match="is damaged"):
        list(archive.blocks(["a"], 100))
    path.write_bytes(damaged[:500])
    with pytest.raises(DataError, match=r"no .npz file, or is cut off"):
        arrays.Archive(path)


def test_options_are_checked_without_a_file() -> None:
    for data, key, part in [
        ({"format": "torchrec", "path": "x", "table_rows": [1, 2]}, "table_rows", "2 sizes"),
        ({"format": "torchrec", "path": "x", "dense": 0}, "dense", "at least 1"),
        ({"format": "fuxictr", "path": "x", "label": 3}, "label", "no text"),
        ({"format": "fuxictr", "path": "x", "feature_map": "m"}, "feature_map", "leave it out"),
        ({"format": "avazu", "path": "x", "form": "flem"}, "form", "did you mean 'flen'"),
        ({"format": "parquet", "path": "x", "schema": {"label": "y", "dense": ["x"], "delimiter": ","}}, "schema.delimiter", "is for text"),
        ({"format": "paddlerec_slots", "path": "x", "schema": {"label": "y", "dense": {"a": 0}}}, "schema.dense", "at least 1"),
    ]:  # fmt: skip
        ((found, message),) = schema.validate(data)
        assert found == key
        assert part in message
