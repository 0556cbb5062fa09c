"""Lines of words, a name and a value in each with a colon between: the words of each name.

Lines that all have the names of the first one, in its order, are taken apart as a table; others
word by word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rmixer.errors import DataError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one slot in some lines: the line of each, from 0, and the values as text."""

    line_W: NDArray[np.int64]
    value_W: pl.Series


def words_of(
    block: bytes, path: Path, first: int, known: Sequence[str], *, value_first: bool = False
) -> dict[str, Words]:
    """The words of each name.

    Args:
        block: whole lines.
        path: for messages.
        first: the number of the first line.
        known: the names; words of others are left out.
        value_first: whether a word is ``value:name``.

    Raises:
        DataError: a word is no name and value.
    """
    import polars as pl  # noqa: PLC0415 - not needed where the cache is built

    even = None if value_first else _even_words(block)
    if even is not None:
        return {slot: _joined(even, slot) for slot in known}
    try:
        lines = block.decode().split("\n")[:-1]
    except UnicodeDecodeError as error:
        line = first + block.count(b"\n", 0, error.start)
        raise DataError(f"is not UTF-8 text: {error.reason}", path=path, line=line) from error
    word = pl.col("word").str.splitn(":", 2).struct
    name, value = ("field_1", "field_0") if value_first else ("field_0", "field_1")
    frame = (
        pl.DataFrame({"word": pl.Series(lines, dtype=pl.String)})
        .with_columns(pl.col("word").str.split(" "), line=pl.int_range(pl.len(), dtype=pl.Int64))
        .explode("word")
        .filter(pl.col("word") != "")
        .with_columns(name=word.field(name), value=word.field(value))
    )
    wrong = (frame["name"].fill_null("") == "") | (frame["value"].fill_null("") == "")
    if wrong.any():
        line, shown = frame.filter(wrong).select("line", "word").row(0)
        form = "VALUE:SLOT" if value_first else "SLOT:VALUE"
        message = f"{shown[:_SHOWN]!r} is no {form}; one space between words"
        raise DataError(message, path=path, line=first + line)
    codes = pl.col("name").replace_strict(
        list(known), list(range(len(known))), default=-1, return_dtype=pl.Int32
    )
    frame = frame.with_columns(code=codes).sort("code", maintain_order=True)
    starts = frame["code"].to_numpy().searchsorted(np.arange(len(known) + 1))
    found = {}
    for i, slot in enumerate(known):
        part = frame[starts[i] : starts[i + 1]]
        found[slot] = Words(part["line"].to_numpy(), part["value"])
    return found


def _even_words(block: bytes) -> list[tuple[str, pl.Series]] | None:
    """Slots and values of lines that all have the slots of the first one, in its order.

    Returns:
        A slot and the value of each line, word by word; None if the lines are not so.
    """
    import polars as pl  # noqa: PLC0415

    line, _, _ = block.partition(b"\n")
    slots = [word.partition(b":")[0].decode(errors="replace") for word in line.split(b" ")]
    rows, width = block.count(b"\n"), len(slots)
    if b'"' in block or block.count(b" ") != rows * (width - 1):
        return None
    columns = {str(i): pl.String for i in range(width)}
    try:
        frame = pl.read_csv(block, has_header=False, separator=" ", schema=columns, quote_char=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return None
    found = []
    for slot, words in zip(slots, frame, strict=True):
        values = words.str.strip_prefix(f"{slot}:")
        lengths = words.str.len_bytes() - values.str.len_bytes()
        if not (lengths == len(slot.encode()) + 1).all() or (values == "").any():
            return None
        found.append((slot, values))
    return found if frame.height == rows and not frame.null_count().sum_horizontal()[0] else None


def _joined(words: list[tuple[str, pl.Series]], slot: str) -> Words:
    """The words of one slot, line by line."""
    import polars as pl  # noqa: PLC0415

    columns = [values for name, values in words if name == slot]
    if not columns:
        return Words(np.empty(0, np.int64), pl.Series(dtype=pl.String))
    lines = np.repeat(np.arange(len(columns[0])), len(columns))
    if len(columns) == 1:
        return Words(lines, columns[0])
    named = [values.alias(str(i)) for i, values in enumerate(columns)]
    return Words(lines, pl.select(pl.concat_list(named)).to_series().explode(empty_as_null=False))
