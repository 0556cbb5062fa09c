"""The end of a log."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rmixer.execute.logtail import collapse, read_tail


def test_no_log_and_empty_log(tmp_path: Path) -> None:
    """A log that is not there, or empty, has no lines."""
    assert read_tail(tmp_path / "none") == []
    (tmp_path / "empty").touch()
    assert read_tail(tmp_path / "empty") == []


def test_last_line_without_its_end(tmp_path: Path) -> None:
    """What a job was writing when it died counts as a line."""
    (tmp_path / "log").write_bytes(b"one\ntwo")
    assert read_tail(tmp_path / "log") == ["one", "two"]


def test_progress_bars_are_collapsed() -> None:
    """Of a line that was written over, the last form is kept."""
    assert collapse("a\rb\rc\nd\r\n\x1b[32mgreen\x1b[0m\n\n") == ["c", "d", "green"]
    assert collapse("train:  10%|#  | 1/9\rtrain: 100%|###| 9/9\r\nend") == [
        "train: 100%|###| 9/9",
        "end",
    ]


def test_binary_is_replaced(tmp_path: Path) -> None:
    """Bytes that are no text harm nothing."""
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00ok\n\x1b[2K\x07bell")
    assert read_tail(tmp_path / "log") == ["\ufffd\ufffdok", "bell"]


def test_only_the_end_is_read(tmp_path: Path) -> None:
    """A sparse log of 100 GB is answered from its last bytes; a cut line is left out."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(100 * 1024**3)
        file.seek(0, 2)
        file.write(b"cut\nlast\n")
    assert read_tail(path, 16) == ["last"]


def test_one_endless_line(tmp_path: Path) -> None:
    """A log without any line end is shown by its end."""
    (tmp_path / "log").write_bytes(b"x" * 1000 + b"end")
    assert read_tail(tmp_path / "log", 10) == ["xxxxxxxend"]


@given(st.text())
def test_any_text_becomes_printable_lines(text: str) -> None:
    """No control character but the tab is left, whatever was written."""
    for line in collapse(text):
        assert not set(line) & {chr(n) for n in range(32) if chr(n) != "\t"}
