"""What every data format of the table does. A new format gets these tests by being listed."""

from pathlib import Path

import numpy as np
import pytest

from data_examples import EXAMPLES
from rmixer.data import FORMATS, cache, generate, schema
from rmixer.data.dataset import Dataset, in_order
from rmixer.data.encode import Encoder
from rmixer.data.format import load_format
from rmixer.data.generated import shape, sizes_of

SMALL = {"max_table_rows": 60, "items": 90, "categories": 7, "history": 5}
TRANSFORM = {"bins": 4, "min_count": 2}
every_format = pytest.mark.parametrize("name", sorted(FORMATS))


def example(name: str, folder: Path) -> dict:
    """Data of that format, 700 rows."""
    if name in EXAMPLES:
        return {**EXAMPLES[name](folder), "transform": TRANSFORM, "valid": {"seed": 1}}
    if name == "generated":
        return {"format": name, "like": "criteo", **small("criteo"), "transform": TRANSFORM}
    if name == "recbole":
        return {**atomic_files(folder / "some"), "transform": TRANSFORM}
    like = {"csv": "behaviour"}.get(name, name)
    path = folder / f"{name}.txt"
    generate.write(like, small(like), path)
    return {**shape(like).data, "path": str(path), "transform": TRANSFORM, "valid": {"seed": 1}}


def small(like: str) -> dict[str, int]:
    """Sizes for 700 rows."""
    sizes = sizes_of(like, rows=700)
    return {key: SMALL.get(key, value) for key, value in sizes.items()}


def atomic_files(place: Path) -> dict:
    """Interactions, users and items in RecBole's form."""
    generator = np.random.default_rng(0)
    place.mkdir(exist_ok=True)
    rows = [
        f"{user}\t{item}\t{rating}\t{time}\n"
        for user, item, rating, time in generator.integers((0, 0, 1, 0), (40, 90, 6, 999), (700, 4))
    ]
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (place / "some.inter").write_text(head + "".join(rows))
    users = "".join(f"{user}\t{'fm'[user % 2]}\n" for user in range(30))
    (place / "some.user").write_text("user_id:token\tgender:token\n" + users)
    items = "".join(f"{item}\tk{item % 7} k{item % 5}\n" for item in range(90))
    (place / "some.item").write_text("item_id:token\tclass:token_seq\n" + items)
    schema_ = {
        "label": "rating",
        "sparse": ["user_id", "item_id", "gender"],
        "dense": ["timestamp"],
        "sequence": {"class": {}},
    }
    return {"format": "recbole", "path": str(place), "threshold": 4, "schema": schema_}


@pytest.fixture
def built(name: str, tmp_path: Path) -> Dataset:
    return Dataset(cache.prepare(schema.parse(example(name, tmp_path)), tmp_path / "cache"))


@every_format
def test_batches_have_the_shapes_and_ids_that_the_info_says(built: Dataset) -> None:
    info = built.info
    assert info.rows == 700
    assert info.train_rows + info.valid_rows == 700
    assert 30 < info.valid_rows < 120
    for rows in in_order(np.arange(700), 256):
        batch = built.batch(rows).check(info)
        assert np.isfinite(batch.dense_BN.numpy()).all()
        assert set(batch.label_B.tolist()) == {0.0, 1.0}


@every_format
def test_every_row_is_in_one_part(built: Dataset) -> None:
    rows = np.concatenate([built.train_rows, built.valid_rows])
    np.testing.assert_array_equal(np.sort(rows), np.arange(700))


@every_format
def test_rows_do_not_depend_on_their_companions(built: Dataset) -> None:
    whole, one = built.batch(np.arange(10)), built.batch(np.array([7]))
    assert (one.sparse_BF[0] == whole.sparse_BF[7]).all()
    assert (one.dense_BN[0] == whole.dense_BN[7]).all()
    for name, lists in one.sequences.items():
        among = whole.sequences[name]
        assert lists.values_L.tolist() == among.values_L[among.owner_L == 7].tolist()


@every_format
def test_the_kept_encoder_gives_the_columns_of_the_data_set(
    name: str, built: Dataset, tmp_path: Path
) -> None:
    spec = schema.parse(example(name, tmp_path))
    source = load_format(name)(spec)
    encoder = Encoder.load(built.folder, source.schema)
    start = 0
    for chunk in source.chunks():
        encoded = encoder.encode(chunk)
        batch = built.batch(np.arange(start, start + len(chunk)))
        np.testing.assert_array_equal(encoded.dense_BN, batch.dense_BN)
        np.testing.assert_array_equal(encoded.sparse_BF, batch.sparse_BF)
        for lists, (values, lengths) in zip(
            batch.sequences.values(), encoded.sequences, strict=True
        ):
            np.testing.assert_array_equal(lists.values_L, values)
            np.testing.assert_array_equal(lists.length_B, lengths)
        start += len(chunk)
    assert start == 700
    assert encoder.info().tables == built.info.tables


@every_format
def test_a_second_build_is_equal(name: str, built: Dataset, tmp_path: Path) -> None:
    spec = schema.parse(example(name, tmp_path))
    again = cache.prepare(spec, tmp_path / "other")
    assert again.name == built.folder.name
    for file in again.iterdir():
        assert file.read_bytes() == (built.folder / file.name).read_bytes(), file.name


@every_format
def test_its_own_keys_are_checked(name: str, tmp_path: Path) -> None:
    data = example(name, tmp_path)
    assert schema.validate(data) == []
    assert [key for key, _ in schema.validate({**data, "pathh": 1})] == ["pathh"]
