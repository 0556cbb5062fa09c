"""RecBole's atomic files: joined, typed, labelled; what is not right is named."""

import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rmixer.data import cache, schema
from rmixer.data.dataset import Dataset
from rmixer.data.encode import Encoder
from rmixer.data.format import load_format
from rmixer.errors import DataError

INTER = """user_id:token\titem_id:token\trating:float\ttimestamp:float
u1\ti1\t5\t10
u2\ti1\t3\t20
u1\ti2\t4\t30
u3\ti9\t1\t40
"""
USER = "user_id:token\tage:token\tgender:token\nu2\t31\tF\nu1\t24\tM\n"
ITEM = "item_id:token\tclass:token_seq\tvector:float_seq\ni1\tDrama War\t0.1 0.2\ni2\t\t0.3\n"
SCHEMA = {
    "label": "rating",
    "sparse": ["user_id", "item_id", "gender"],
    "dense": ["age"],
    "sequence": {"class": {}},
}


def write(folder: Path, inter: str = INTER, user: str | None = USER, item: str = ITEM) -> dict:
    """The files of a data set, and what a jobs file says of it."""
    place = folder / "toys"
    place.mkdir(exist_ok=True)
    for kind, content in (("inter", inter), ("user", user), ("item", item)):
        if content is not None:
            (place / f"toys.{kind}").write_text(content)
    return {
        "format": "recbole", "path": str(place), "schema": SCHEMA, "threshold": 4,
        "transform": {"dense": "none"}, "valid": {"fraction": 0.0},
    }  # fmt: skip


def read(data: dict, folder: Path) -> Dataset:
    return Dataset(cache.prepare(schema.parse(data), folder / "cache"))


def fault(data: dict) -> str:
    spec = schema.parse(data)
    with pytest.raises(DataError) as caught:
        list(load_format("recbole")(spec).chunks())
    return str(caught.value)


def test_users_and_items_are_joined_and_ratings_become_labels(tmp_path: Path) -> None:
    data = read(write(tmp_path), tmp_path)
    batch = data.batch(np.arange(4)).check(data.info)
    assert batch.label_B.tolist() == [1, 0, 1, 0]
    assert batch.dense_BN[:, 0].tolist() == [24, 31, 24, 0]  # of u3 nothing is known
    assert batch.sparse_BF[:, 2].tolist() == [2, 3, 2, 0]
    assert batch.sequences["class"].length_B.tolist() == [2, 2, 0, 0]
    a, b = batch.sequences["class"].values_L.tolist()[:2]
    assert a != b


def test_a_folder_and_its_file_are_the_same_and_every_file_counts_as_content(
    tmp_path: Path,
) -> None:
    data = write(tmp_path)
    file = {**data, "path": f"{data['path']}/toys.inter"}
    folder = cache.prepare(schema.parse(data), tmp_path / "cache")
    assert cache.prepare(schema.parse(file), tmp_path / "cache") == folder
    write(tmp_path, user=USER.replace("31", "32"))
    assert cache.prepare(schema.parse(data), tmp_path / "cache") != folder


def test_a_label_of_0_and_1_needs_no_threshold_and_no_other_file(tmp_path: Path) -> None:
    data = write(tmp_path, inter="user_id:token\tliked:float\nu1\t1\nu1\t0\n", user=None)
    (tmp_path / "toys" / "toys.item").unlink()
    data["schema"] = {"label": "liked", "sparse": ["user_id"]}
    del data["threshold"]
    assert read(data, tmp_path).labels(np.arange(2)).tolist() == [1, 0]


def test_other_interactions_and_joined_frames_are_read_without_a_label(tmp_path: Path) -> None:
    data = write(tmp_path)
    folder = cache.prepare(schema.parse(data), tmp_path / "cache")
    source = load_format("recbole")(schema.parse({**data, "path": "-"}))
    encoder = Encoder.load(folder, source.schema)
    kept = [line.split("\t") for line in INTER.splitlines()]
    lines = ["\t".join(row[:2]) for row in kept]
    other = write(tmp_path, inter="\n".join(lines) + "\n")
    (chunk,) = source.chunks_of(other["path"])
    assert chunk.label_B is None
    expected = Dataset(folder).batch(np.arange(4)).sparse_BF
    np.testing.assert_array_equal(encoder.encode(chunk).sparse_BF, expected)
    frame = pl.DataFrame(
        {"user_id": ["u1"], "item_id": ["i1"], "gender": ["M"], "age": [24],
         "class": ["Drama War"], "rating": [3.5]}
    )  # fmt: skip
    (joined,) = source.chunks_of(frame)
    assert joined.label_B is not None
    assert joined.label_B.tolist() == [0]
    np.testing.assert_array_equal(encoder.encode(joined).sparse_BF[0], expected[0])


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"inter": INTER.replace("\t3\t", "\tx\t")}, ["inter:3", "rating", "'x'", "no number"]),
        ({"inter": INTER.replace("\t3\t", "\t\t")}, ["inter:3", "rating", "no label"]),
        ({"inter": INTER + "u1\ti1\t5\n"}, ["inter:6", "3 columns; 4 are needed"]),
        ({"inter": INTER.replace("rating:float", "rating")}, ["inter:1", "'rating'", "NAME:TYPE"]),
        ({"inter": INTER.replace("rating:", "item_id:")}, ["inter:1", "'item_id' twice"]),
        ({"inter": INTER.splitlines()[0] + "\n"}, ["inter", "only a header"]),
        ({"user": USER.replace("31", "old")}, ["user:2", "age", "'old'", "no number"]),
        ({"user": USER + "u2\t1\tM\n"}, ["user:4", "user_id", "'u2'", "twice"]),
        ({"user": USER.replace("user_id", "id")}, ["user:1", "no column in common", "user_id"]),
        ({"user": USER.replace("age:", "agee:")}, ["inter:1", "did you mean 'agee'"]),
        ({"user": USER.replace("age:token", "age:float_seq")}, ["age", "float_seq", "list"]),
        ({"item": ITEM.replace("class:token_seq", "class:token")}, ["class", "token_seq"]),
        ({"item": ITEM.replace("vector:", "gender:")}, ["item:1", "'gender' is in two files"]),
    ],
)  # fmt: skip
def test_a_fault_says_where_and_what(tmp_path: Path, changed: dict, parts: list[str]) -> None:
    message = fault(write(tmp_path, **changed))
    assert all(part in message for part in parts), message


def test_a_threshold_is_a_number(tmp_path: Path) -> None:
    data = {**write(tmp_path), "threshold": "4"}
    assert schema.validate(data) == [("threshold", "'4' is no number, such as 4")]


@pytest.mark.skipif(importlib.util.find_spec("recbole") is None, reason="needs recbole's ml-100k")
def test_movielens_of_an_installed_recbole(tmp_path: Path) -> None:
    found = importlib.util.find_spec("recbole")
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / "dataset_example" / "ml-100k"
    columns = {**SCHEMA, "sparse": [*SCHEMA["sparse"], "occupation"]}
    data = {**write(tmp_path), "path": str(path), "schema": columns}
    info = read(data, tmp_path).info
    assert info.rows == 100_000
    assert [table.rows for table in info.tables][:3] == [943 + 2, 1682 + 2, 2 + 2]
