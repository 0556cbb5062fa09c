"""The published data sets' forms: real samples, and what is not right in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmixer.data import schema
from rmixer.data.beauty import Beauty
from rmixer.data.format import Chunk, load_format
from rmixer.errors import DataError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def chunks(name: str, path: Path) -> list[Chunk]:
    source = load_format(name)(schema.parse({"format": name, "path": str(path)}))
    return list(source.chunks())


def sample(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


@pytest.mark.parametrize(
    ("name", "parts", "rows", "positive", "lists"),
    [
        ("amazon", ("amazon_small", "paddlerec_din_electronics.txt"), 100, 48, 2),
        ("kdd2012", ("kdd_dpin_small", "paddlerec_dpin_sample.txt"), 256, 47, 3),
        ("alimama", ("alimama_small", "paddlerec_dmr_alimama.csv"), 500, 210, 3),
    ],
)
def test_real_samples(
    name: str, parts: tuple[str, str], rows: int, positive: int, lists: int
) -> None:
    """All rows, their labels, and lists of equal length."""
    found = chunks(name, sample(*parts))
    assert sum(map(len, found)) == rows
    assert sum(int(chunk.label_B.sum()) for chunk in found) == positive
    for chunk in found:
        lengths = [lengths for _, lengths in chunk.sequences]
        assert len(lengths) == lists
        assert all((lengths[0] == other).all() for other in lengths)


def test_cells_that_are_not_filled_are_no_history() -> None:
    """Four rows of Alimama's sample have fewer than 50 behaviours."""
    (chunk,) = chunks("alimama", sample("alimama_small", "paddlerec_dmr_alimama.csv"))
    lengths = chunk.sequences[0][1]
    assert sorted(lengths[lengths < 50].tolist()) == [1, 2, 28, 48]


AVAZU = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
ROW = "1,0,14102123,1005,0,a,b,c,d,e,f,g,h,i,1,2,3,4,5,6,7,8,9,10"


def test_the_hour_is_taken_apart(tmp_path: Path) -> None:
    """2014-10-21 was a Tuesday."""
    path = tmp_path / "train.csv"
    path.write_text(f"{AVAZU}\n{ROW}\n")
    (chunk,) = chunks("avazu", path)
    assert (chunk.sparse[0].to_list(), chunk.sparse[1].to_list()) == (["23"], ["1"])


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("avazu", f"{ROW}\n", "has no header"),
        ("avazu", f"{AVAZU.replace('C14', 'C41')}\n{ROW}\n", "column 'C14'"),
        ("avazu", f"{AVAZU}\n{ROW}\n{ROW.replace('14102123', '14102125')}\n", "data.txt:3: column hour: '14102125' is no hour"),
        ("avazu", f"{AVAZU}\n{ROW}\n{ROW},1\n", "25 columns; 24 are needed"),
        ("amazon", "1 2;3 4;5;6;1\n1 2;3 4;5;6\n", "data.txt:2: 4 columns; 5 are needed"),
        ("amazon", "1 2;3 4;5;6;2\n", "column label: '2' is no label"),
        ("kdd2012", "1;2;3;4;5;6\n", "6 columns; 7 are needed"),
        ("alimama", "1,2,3\n", "3 columns; 267 are needed"),
        ("beauty", "1 2\n1 x\n", "data.txt:2: '1 x' is no user and item"),
        ("beauty", "1 2\n1 0\n", "data.txt:2: '1 0' is no user and item"),
        ("beauty", "1 2\n2 3\n", "no user has two items"),
        ("beauty", "1 2\n2 3\n1 4\n", "not one after the other"),
        ("beauty", "", "is empty"),
    ],
)  # fmt: skip
def test_what_is_not_right(tmp_path: Path, name: str, text: str, part: str) -> None:
    """With the file, the line, the column, the value, and what would be right."""
    path = tmp_path / "data.txt"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        chunks(name, path)
    assert part in str(caught.value)
    assert str(path) in str(caught.value)


def test_leave_one_out(tmp_path: Path) -> None:
    """The last item with label 1, another one with label 0, the same past for both."""
    path = tmp_path / "beauty.txt"
    path.write_text("1 5\n1 7\n1 9\n2 9\n3 7\n3 5\n")
    (chunk,) = chunks("beauty", path)
    items = chunk.sparse[0].to_list()
    assert chunk.label_B.tolist() == [1, 0, 1, 0]
    assert (items[0], items[2]) == (9, 5)
    assert items[1] in (5, 7)
    assert items[3] in (7, 9)
    values, lengths = chunk.sequences[0]
    assert (values.to_list(), lengths.tolist()) == ([5, 7, 5, 7, 7, 7], [2, 2, 1, 1])
    again = Beauty(schema.parse({"format": "beauty", "path": str(path)}))
    assert [c.sparse[0].to_list() for c in again.chunks()] == [items]
