"""``python -m rmixer.data.generate NAME --rows N --out FILE[.gz]``: text of that shape.

NAME is one of `rmixer.data.generated.LIKE`; ``NAME --help`` shows its options.

The rows are those of the format ``generated`` with the same options. They are streamed: a file of
any size needs the memory of one chunk.

The published forms are read by the format of their name. ``behaviour`` writes a header and five
fields between semicolons: ``hist_items;hist_cates;item;cate;label``; read it with

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
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from rmixer.data.generated import LIKE, shape, sizes_of
from rmixer.data.shapes import check_sizes, published


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
    names = parser.add_subparsers(dest="like", required=True, metavar="NAME")
    for like in LIKE:
        own = names.add_parser(like)
        help_ = f"how many{published(shape(like))}"
        own.add_argument("--rows", type=int, required=True, help=help_)
        own.add_argument("--out", type=Path, required=True)
        for key, value in sizes_of(like).items():
            name = f"--{key.replace('_', '-')}"
            own.add_argument(name, type=int, default=value, help=f"default {value}")
    options = vars(parser.parse_args(arguments))
    like, out = options.pop("like"), options.pop("out")
    for key, message in check_sizes(shape(like), options):
        parser.error(f"--{key.replace('_', '-')}: {message}")
    write(like, options, out)


def _write_all(like: str, sizes: Mapping[str, int], file: IO[bytes]) -> None:
    for piece in shape(like).text(sizes):
        file.write(piece.encode())


if __name__ == "__main__":
    main()
