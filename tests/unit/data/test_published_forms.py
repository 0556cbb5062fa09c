"""The other forms in which the published sequence data sets are found, and leaving one out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rmixer.data import cache, leave_one_out, schema
from rmixer.data.dataset import Dataset
from rmixer.data.format import Chunk, load_format
from rmixer.data.leave_one_out import Interactions
from rmixer.errors import DataError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
Lists = list[list[str]]
RAW = [str(10 * i) for i in range(1, 11)]  # the ids of a line of training.txt


def alimama(cell: int = 1, value: str = "1") -> str:
    """A line with one of its 267 cells, counted from the right, as it is said."""
    cells = ["1"] * 267
    cells[266 - cell] = value
    return ",".join(cells) + "\n"


def chunks(data: dict) -> list[Chunk]:
    return list(load_format(data["format"])(schema.parse(data)).chunks())


def lists(chunk: Chunk, which: int) -> Lists:
    """The lists of a sequence column, row by row."""
    values, lengths = chunk.sequences[which]
    words = [str(value) for value in values.to_list()]
    ends = np.cumsum(lengths)
    return [words[end - n : end] for end, n in zip(ends, lengths, strict=True)]


def column(chunk: Chunk, which: int) -> list[str | None]:
    return chunk.sparse[which].cast(pl.String).to_list()


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "data.txt").write_text(text)
        return str(tmp_path / "data.txt")

    return write


def test_slots_of_bst_are_the_rows_of_din(file: Callable[[str], str]) -> None:
    path = file(
        "userid:1 history:3 history:5 cate:7 cate:9 position:2 position:1 target:8 target_cate:4 "
        "target_position:0 label:1 \nuserid:2 target:5 target_cate:9 label:0\n"
    )
    (chunk,) = chunks({"format": "amazon", "path": path})
    assert chunk.label_B is not None
    assert chunk.label_B.tolist() == [1, 0]
    assert (column(chunk, 0), column(chunk, 1)) == (["8", "5"], ["4", "9"])
    assert (lists(chunk, 0), lists(chunk, 1)) == ([["3", "5"], []], [["7", "9"], []])


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs {SHARED}")
def test_the_real_slots_of_bst() -> None:
    path = SHARED / "amazon_small" / "paddlerec_bst_electronics.txt"
    (chunk,) = chunks({"format": "amazon", "path": str(path), "max_length": 1000})
    assert chunk.label_B is not None
    for line, label, past in zip(
        path.read_text().splitlines(), chunk.label_B.tolist(), lists(chunk, 0), strict=True
    ):
        words = line.split()
        assert past == [word[8:] for word in words if word.startswith("history:")]
        assert f"label:{label}" in words


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs {SHARED}")
@pytest.mark.parametrize("name", ["electronics", "beauty", "books"])
def test_real_reviews_become_pasts_and_a_next_item(name: str) -> None:
    """Every user with two reviews; the newest one is in question."""
    path = SHARED / "amazon_small" / f"rechub_amazon_{name}.csv"
    (chunk,) = chunks({"format": "amazon", "path": str(path)})
    frame = pl.read_csv(path).sort("user_id", "time", maintain_order=True)
    walks = {
        str(walk[-1]): [str(item) for item in walk[:-1]]
        for _, some in frame.group_by("user_id", maintain_order=True)
        if len(walk := some["item_id"].to_list()) > 1
    }
    assert chunk.label_B is not None
    assert chunk.label_B.tolist() == [1, 0] * len(walks)
    found = dict(zip(column(chunk, 0)[::2], lists(chunk, 0)[::2], strict=True))
    assert found == walks
    assert lists(chunk, 0)[::2] == lists(chunk, 0)[1::2]
    assert (column(chunk, 1)[0] is not None) == (name == "electronics")


def test_reviews_are_put_in_the_order_of_time_and_keep_their_categories(
    file: Callable[[str], str],
) -> None:
    path = file("user_id,item_id,time,cate_id\n1,a,30,x\n1,b,10,y\n2,c,5,z\n1,c,20,z\n2,d,6,\n")
    (chunk,) = chunks({"format": "amazon", "path": path, "negatives": 2, "max_length": 1})
    assert lists(chunk, 0) == [["c"]] * 6
    items = column(chunk, 0)
    assert (items[0], items[3]) == ("a", "d")
    assert "a" not in items[1:3]
    assert set(items[4:]) <= {"a", "b"}  # what user 2 has not
    of = {"a": "x", "b": "y", "c": "z", "d": None}
    assert column(chunk, 1) == [of[str(item)] for item in items]


def test_the_masked_items_of_bert4rec_are_put_back(file: Callable[[str], str]) -> None:
    path = file(
        "1; 5, 99, 7, 99, 0, 0; 1, 1, 1, 1, 0, 0; 0, 1, 2, 3, 0, 0; 1, 3; 6, 8\n"
        "1; 99, 2, 0; 1, 1, 0; 0, 1, 0; 0; 1\n"
    )
    (chunk,) = chunks({"format": "beauty", "path": path})
    assert lists(chunk, 0)[::2] == [["5", "6", "7"], ["1"]]
    assert column(chunk, 0)[::2] == ["8", "2"]
    assert "99" not in column(chunk, 0)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs {SHARED}")
@pytest.mark.parametrize(("name", "users", "items"), [("train", 10, 9), ("test", 1, 10)])
def test_the_real_sequences_of_bert4rec(name: str, users: int, items: int, tmp_path: Path) -> None:
    """All lines are the walk 1, 2, 3, ..., masked in different places."""
    path = SHARED / "amazon_small" / f"paddlerec_bert4rec_beauty_{name}.txt"
    data = {"format": "beauty", "path": str(path), "valid": {"fraction": 0.0}}
    (chunk,) = chunks(data)
    assert column(chunk, 0)[::2] == [str(items)] * users
    assert lists(chunk, 0)[0] == [str(i) for i in range(1, items)]
    info = Dataset(cache.prepare(schema.parse(data), tmp_path / "cache")).info
    assert info.rows == 2 * users
    assert (info.tables[0].rows, info.sequences[0].shares) == (items + 2, "item")


def test_a_line_of_several_impressions_is_as_many_rows(file: Callable[[str], str]) -> None:
    ids = "\t".join(RAW)
    path = file(f"1\t3\t{ids}\n0\t1\t{ids}\n2\t2\t{ids}\n")
    data = {"format": "kdd2012", "form": "raw", "path": path}
    (chunk,) = chunks(data)
    assert chunk.label_B is not None
    assert chunk.label_B.tolist() == [1, 0, 0, 0, 1, 1]
    assert [column(chunk, i) for i in range(10)] == [[value] * 6 for value in RAW]
    source = load_format("kdd2012")(schema.parse(data))
    Path(path).write_text(f"{ids}\n{ids}\n")
    (unlabelled,) = source.chunks_of(path)
    assert unlabelled.label_B is None
    assert len(unlabelled) == 2


@pytest.mark.parametrize(
    ("data", "text", "parts"),
    [
        ({"format": "amazon"}, "history:1 cate:2 target:3 target_cate:4 label:1\nhistory:1 target:3 target_cate:4 label:1\n", [":2", "1 words history: and 0 cate:"]),
        ({"format": "amazon"}, "target:3 target_cate:4 label:1\ntarget:3 target_cate:4 target:5 label:1\n", [":2", "target", "2 words", "one is needed"]),
        ({"format": "amazon"}, "target:3 target_cate:4 label:1\ntarget:3 target_cate:4 label:2\n", [":2", "label", "'2'", "0 or 1"]),
        ({"format": "amazon"}, "target:3 target_cate:4\n", [":1", "label", "one is needed"]),
        ({"format": "amazon"}, "user,item_id,time\n1,2,3\n", [":1", "no 'user_id'", "item_id,time"]),
        ({"format": "amazon"}, "user_id,item_id,time\n1,2,3\n1,2,x\n", [":3", "time", "'x'", "no number"]),
        ({"format": "amazon"}, "user_id,item_id,time\n1,2,3\n1,,4\n", [":3", "item_id", "empty"]),
        ({"format": "amazon"}, "user_id,item_id,time\n1,2,3\n2,3,3\n", ["no user has two items"]),
        ({"format": "amazon"}, "user_id,item_id,time\n1,2,3\n1,2,4\n", ["only one item"]),
        ({"format": "alimama"}, alimama() + alimama(cell=67, value="2"), [":2", "mask_49", "'2'", "0 or 1"]) ,
        ({"format": "alimama"}, alimama() + alimama(cell=67, value=""), [":2", "mask_49", "''", "0 or 1"]),
        ({"format": "alimama"}, alimama() + alimama(cell=2, value="x"), [":2", "price", "'x'", "no number"]),
        ({"format": "alimama"}, alimama() + alimama(cell=0, value="2"), [":2", "clk", "'2'", "0 or 1"]),
        ({"format": "beauty"}, "1; 2, 3; 1, 1; 0, 1; 1; 4; 5\n", [":1", "7 fields; 6 are needed"]),
        ({"format": "beauty"}, "1; 2; 1; 0; 0; 4\n1; 2, x; 1, 1; 0, 1; 1; 4\n", [":2", "'x'", "whole"]),
        ({"format": "beauty"}, "1; 2, 3; 1, 1; 0, 1; 2; 4\n", [":1", "position 2", "last item, 1"]),
        ({"format": "beauty"}, "1; 2, 3; 1; 0, 1; 1; 4\n", [":1", "equally long", "2, 1, 1 and 1"]),
        ({"format": "beauty"}, "1 2\n1 99999999999999999999\n", [":2", "whole numbers from 1"]),
        ({"format": "kdd2012"}, "\t".join(["0", "1", *RAW]) + "\n", [":1", "write form: raw"]),
        ({"format": "kdd2012", "form": "raw"}, "1;1;1;2;2;1;0\n", [":1", "write form: dpin"]),
        ({"format": "kdd2012", "form": "raw"}, "\t".join(["0", "1", *RAW]) + "\n" + "\t".join(["2", "1", *RAW]) + "\n", [":2", "impression", "2 clicks of 1"]),
        ({"format": "kdd2012", "form": "raw"}, "\t".join(["0", "0", *RAW]) + "\n", [":1", "impression", "0 clicks of 0"]),
        ({"format": "kdd2012", "form": "raw"}, "\t".join(["0", "x", *RAW]) + "\n", [":1", "impression", "'x'", "whole number"]),
        ({"format": "kdd2012", "form": "raw"}, "\t".join(["0", "99999999999", *RAW]) + "\n", ["more than 16777216 impressions"]),
        ({"format": "kdd2012", "form": "raw"}, "\t".join(["0", "1", *RAW[1:]]) + "\n", [":1", "11 columns; 12 are needed"]),
    ],
)  # fmt: skip
def test_a_fault_says_where_and_what(
    file: Callable[[str], str], data: dict, text: str, parts: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        chunks({**data, "path": file(text)})
    message = str(caught.value)
    assert "data.txt" in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"format": "amazon", "negatives": 0}, ("negatives", "at least 1")),
        ({"format": "beauty", "max_length": "5"}, ("max_length", "at least 1")),
        ({"format": "kdd2012", "form": "row"}, ("form", "did you mean 'raw'")),
    ],
)
def test_options_are_checked(data: dict, problem: tuple[str, str]) -> None:
    ((key, message),) = schema.validate({**data, "path": "x"})
    assert key == problem[0]
    assert problem[1] in message


def some_taken(users: int = 500, items: int = 40) -> Interactions:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 12, users)
    user_N = np.repeat(np.arange(users), lengths)
    return Interactions(
        user_N=user_N, item_N=generator.integers(0, items, len(user_N)), items=items
    )


def test_what_is_drawn_is_nothing_that_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it does not depend on how many users are handled at once."""
    taken = some_taken()
    (whole,) = leave_one_out.rows(taken, negatives=3)
    users = np.unique(taken.user_N)
    long = [u for u in users if (taken.user_N == u).sum() > 1]
    for i, user in enumerate(long):
        has = taken.item_N[taken.user_N == user]
        right, *wrong = whole.item_B[4 * i : 4 * i + 4]
        assert right == has[-1]
        assert not set(wrong) & set(has)
    assert len(whole.item_B) == 4 * len(long)
    monkeypatch.setattr(leave_one_out, "USERS_AT_ONCE", 7)
    parts = list(leave_one_out.rows(taken, negatives=3))
    np.testing.assert_array_equal(np.concatenate([p.item_B for p in parts]), whole.item_B)
    np.testing.assert_array_equal(np.concatenate([p.past_L for p in parts]), whole.past_L)


def test_what_is_drawn_is_uniform() -> None:
    """Over 20,000 users with nothing but item 0 and 1 of 12: each other item about 2,000 times."""
    taken = Interactions(
        user_N=np.repeat(np.arange(20_000), 2), item_N=np.tile([0, 1], 20_000), items=12
    )
    drawn = np.concatenate([rows.item_B[1::2] for rows in leave_one_out.rows(taken)])
    counts = np.bincount(drawn, minlength=12)
    assert counts[:2].tolist() == [0, 0]
    assert (abs(counts[2:] - 2000) < 5 * 2000**0.5).all()


@pytest.mark.parametrize("by", ["hash", "tail"])
@pytest.mark.parametrize("name", ["amazon", "beauty", "generated"])
def test_the_rows_of_a_user_are_held_out_together(name: str, by: str, tmp_path: Path) -> None:
    """With the same past on both sides, the label of one row would tell that of the other."""
    path = tmp_path / "reviews.txt"
    lines = [(user, (user * 7 + i) % 50 + 1, i) for user in range(1, 301) for i in range(3)]
    header, separator = ("user_id,item_id,time\n", ",") if name == "amazon" else ("", " ")
    rows = [separator.join(map(str, line[: 2 + (name == "amazon")])) for line in lines]
    path.write_text(header + "\n".join(rows) + "\n")
    own = {"path": str(path), "negatives": 2}
    if name == "generated":
        own = {"like": "beauty", "rows": 900, "items": 100, "categories": 10}
    data = {"format": name, **own, "valid": {"fraction": 0.2, "by": by}}
    dataset = Dataset(cache.prepare(schema.parse(data), tmp_path / "cache"))
    together = 2 if name == "generated" else 3
    train, valid = np.asarray(dataset.train_rows), np.asarray(dataset.valid_rows)
    assert not set(train // together) & set(valid // together)
    assert 0.1 < len(valid) / 900 < 0.3
