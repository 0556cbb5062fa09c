"""Bad input is answered with path, line, column, value, and what would be right."""

import gzip
from pathlib import Path

import pytest

from rmixer.data import cache, schema, text
from rmixer.errors import DataError


def prepare(tmp_path: Path, content: bytes, **data: object) -> str:
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    spec = schema.parse({"format": "criteo", "path": str(path), **data})
    with pytest.raises(DataError) as caught:
        cache.prepare(spec, tmp_path / "cache")
    left = [p.name for p in (tmp_path / "cache").glob("*") if p.suffix == ".building"]
    assert left == []
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


def line(label: str = "0", third: str = "7", hexadecimal: str = "05db9164") -> str:
    return "\t".join([label, "1", "2", third, *["4"] * 10, hexadecimal, *["0000000a"] * 25])


GOOD = line() + "\n" + line("1") + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + line() + "\t1\n", ":3: 41 columns; 40 are needed, a tab between them"),
        (GOOD + line()[:-9] + "\n" + GOOD, ":3: 39 columns; 40 are needed"),
        (line()[:-9] + "\n" + line() + "\t0000000a\n", ":1: 39 columns"),
        (GOOD + "\n" + GOOD, ":3: 1 columns"),
        (GOOD + line(third="12x"), ":3: column I3: '12x' is no whole number"),
        (GOOD + line(third="1.5"), ":3: column I3: '1.5' is no whole number"),
        (GOOD + line(third="inf"), ":3: column I3: 'inf' is no whole number"),
        (GOOD + line(hexadecimal="0xyz"), ":3: column C1: '0xyz' is no id; it must be a hex"),
        (GOOD + line(hexadecimal="123456789"), ":3: column C1: '123456789' is no id"),
        (GOOD + line(hexadecimal="-1"), ":3: column C1: '-1' is no id"),
        (GOOD + line(label="2"), ":3: column label: '2' is no label; it must be 0 or 1"),
        (GOOD + line(label=""), ":3: column label: '' is no label"),
        ("", ":1: the file is empty"),
        ("\n\n", ":1: the file is empty"),
        ("hello", ":1: 1 column; 40 are needed, a tab between them"),
        ("label,I1,I2\n0,1,2\n", ":1: the header lacks I3"),
    ],
)  # fmt: skip
def test_criteo(tmp_path: Path, content: str, message: str) -> None:
    assert message in prepare(tmp_path, content.encode())


def test_a_bad_line_far_into_the_file_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 5000)
    content = (line() + "\n") * 400 + line(third="oops") + "\n" + (line() + "\n") * 9
    assert ":401: column I3: 'oops'" in prepare(tmp_path, content.encode())


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    broken = line(hexadecimal="05db9164").encode().replace(b"05db9164", b"05\xff\xfe9164")
    assert ":3: is not UTF-8 text" in prepare(tmp_path, GOOD.encode() + broken)


def test_a_cut_gzip_stream(tmp_path: Path) -> None:
    whole = gzip.compress((GOOD * 2000).encode())
    message = prepare(tmp_path, whole[: len(whole) // 2])
    assert "the gzip stream ends too early; the file is cut off" in message


def test_a_damaged_gzip_stream(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress((GOOD * 2000).encode()))
    whole[-6] ^= 0xFF  # the checksum at the end
    assert "gzip stream is damaged" in prepare(tmp_path, bytes(whole))


SCHEMA = {"label": "y", "positive": "yes", "dense": ["x"], "sparse": ["w"]}


@pytest.mark.parametrize(
    ("content", "changed", "message"),
    [
        ("x,w,y\n1,a,yes\nz,b,no\n", {}, ":3: column x: 'z' is no number"),
        ("x,w,y\n1,a,yes\n1,b\n", {}, ":3: 2 columns; 3 are needed, a comma between them"),
        ("x,w,y\n1,a,yes\n1,b,\n", {}, ":3: column y: '' is no label; every row needs one"),
        ("x,w,y\n1,a,7\n", {"positive": None}, ":2: column y: '7' is no label; it must be 0 or 1"),
        ("x,w,y\n", {}, ": the file has only a header"),
        ("x,word,y\n1,a,yes\n", {}, ":1: unknown column 'w'"),
        ("x,w,w,y\n1,a,b,yes\n", {}, ":1: the header has twice: w"),
        ('x,w,y\n1,"a,yes\n2,b,no\n', {}, ":2: 2 columns; 3 are needed"),
        ('x,w,y\n1,"a",yes\nq,"b,c",no\n', {}, ":3: column x: 'q' is no number"),
    ],
)  # fmt: skip
def test_csv(tmp_path: Path, content: str, changed: dict, message: str) -> None:
    wanted = {key: value for key, value in {**SCHEMA, **changed}.items() if value is not None}
    assert message in prepare(tmp_path, content.encode(), format="csv", schema=wanted)


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(DataError, match=message):
            cache.prepare(schema.parse({"format": "criteo", "path": str(path)}), tmp_path / "cache")


def test_all_rows_held_out_is_said(tmp_path: Path) -> None:
    message = prepare(tmp_path, GOOD.encode(), valid={"fraction": 0.999, "seed": 1})
    assert "all 2 rows are held out" in message
