"""``python -m rmixer.data.generate NAME --rows N --out FILE[.gz]``: text of that shape.

NAME is criteo, behaviour, or a published data set that the format of that name reads: alimama,
amazon, avazu, beauty, kdd2012.

The rows are those of the format ``generated`` with the same options. They are streamed: a file of
any size needs the memory of one chunk.

``criteo`` writes tab-separated lines without a header, as Criteo does. ``behaviour`` writes a
header and five fields between semicolons: ``hist_items;hist_cates;item;cate;label``; read it with

    format: csv
    schema:
      label: label
      sparse: [item, cate]
      sequence: {hist_items: {shares: item}, hist_cates: {shares: cate}}
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from rmixer.data.generated import DEFAULTS, LIKE, behaviour_rows, criteo_rows
from rmixer.data.published import PUBLISHED

BEHAVIOUR_HEADER = "hist_items;hist_cates;item;cate;label\n"


def text(like: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """The file, some thousand lines at a time."""
    if like in PUBLISHED:
        yield from PUBLISHED[like].text(sizes)
    elif like == "criteo":
        yield from _criteo_text(sizes)
    else:
        yield BEHAVIOUR_HEADER
        yield from _behaviour_text(sizes)


def write(like: str, sizes: Mapping[str, int], path: Path) -> None:
    """Write the file, gzip if its name ends so; it appears when it is whole."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(
                    filename="", fileobj=raw, mode="wb", compresslevel=4, mtime=0
                ) as f:
                    _write_all(like, sizes, cast("IO[bytes]", f))
            else:
                _write_all(like, sizes, raw)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rmixer.data.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("like", choices=LIKE)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    for key, value in DEFAULTS.items():
        if key != "rows":
            parser.add_argument(f"--{key.replace('_', '-')}", type=int, default=value)
    options = vars(parser.parse_args(arguments))
    for key in DEFAULTS:
        if options[key] < (0 if key == "seed" else 1):
            parser.error(f"--{key.replace('_', '-')} must be at least {0 if key == 'seed' else 1}")
    write(options["like"], {key: options[key] for key in DEFAULTS}, options["out"])


def _write_all(like: str, sizes: Mapping[str, int], file: IO[bytes]) -> None:
    for piece in text(like, sizes):
        file.write(piece.encode())


def _criteo_text(sizes: Mapping[str, int]) -> Iterator[str]:
    for rows in criteo_rows(sizes):
        lines = []
        dense, ids = rows.dense_BN.tolist(), rows.id_BF.tolist()
        for label, numbers, row in zip(rows.label_B.tolist(), dense, ids, strict=True):
            fields = [str(label)]
            fields += ["" if number != number else str(int(number)) for number in numbers]  # noqa: PLR0124
            fields += ["" if value < 0 else f"{value:08x}" for value in row]
            lines.append("\t".join(fields))
        yield "\n".join(lines) + "\n"


def _behaviour_text(sizes: Mapping[str, int]) -> Iterator[str]:
    for rows in behaviour_rows(sizes):
        items = rows.history.astype(str).tolist()
        categories = rows.history_categories.astype(str).tolist()
        lines, start = [], 0
        columns = (rows.length_B, rows.item_B, rows.category_B, rows.label_B)
        for length, item, category, label in zip(*(c.tolist() for c in columns), strict=True):
            stop = start + length
            past = f"{' '.join(items[start:stop])};{' '.join(categories[start:stop])}"
            lines.append(f"{past};{item};{category};{label}")
            start = stop
        yield "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
