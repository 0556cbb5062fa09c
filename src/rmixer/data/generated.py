"""The format ``generated``: synthetic rows straight into the cache, without a text file between.

The columns are equal to those of the file that `rmixer.data.generate` writes with the same options.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from rmixer.data import schema
from rmixer.data.checks import Problem
from rmixer.data.format import Chunk, load_format
from rmixer.data.schema import DataSpec, Schema
from rmixer.data.shapes import Drawn, Shape, check_sizes
from rmixer.errors import unknown_name

#: What ``like`` may name -> ``module:Class`` (see `rmixer.data.shapes.Shape`).
LIKE: dict[str, str] = {
    "alimama": "rmixer.data.synthetic_alimama:AlimamaShape",
    "amazon": "rmixer.data.synthetic_amazon:AmazonShape",
    "avazu": "rmixer.data.synthetic_avazu:AvazuShape",
    "beauty": "rmixer.data.synthetic_beauty:BeautyShape",
    "behaviour": "rmixer.data.synthetic_behaviour:BehaviourShape",
    "criteo": "rmixer.data.synthetic_criteo:CriteoShape",
    "kdd2012": "rmixer.data.synthetic_kdd2012:KDD2012Shape",
}


def shape(like: str) -> Shape:
    """What makes the rows like a data set of `LIKE`."""
    module, _, name = LIKE[like].partition(":")
    return cast("Shape", getattr(importlib.import_module(module), name)())


def sizes_of(like: str, **options: int) -> dict[str, int]:
    """All sizes of a shape: its defaults, seed 0, and what is given."""
    return {"seed": 0, **shape(like).defaults, **options}


class Generated:
    """The format ``generated``: ``{format: generated, like: criteo, rows: 1000000, seed: 0}``.

    Options that only other shapes have are allowed, since jobs share their defaults, and not used.
    """

    options: tuple[str, ...] = (
        "like",
        "rows",
        "seed",
        *sorted({key for like in LIKE for key in shape(like).defaults}),
    )
    default_dense = "log1p"

    def __init__(self, spec: DataSpec) -> None:
        options = dict(spec.options)
        self.like: str = options.pop("like")
        self.shape = shape(self.like)
        self.sizes = sizes_of(self.like, **options)
        self.schema: Schema = self.shape.schema
        self.together: int = getattr(self.shape, "together", 1)
        self.sources: tuple[Path, ...] = ()

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        like = data.get("like")
        if like is None:
            problem = f"is missing; one of {', '.join(sorted(LIKE))}"
        elif not isinstance(like, str) or like not in LIKE:
            problem = unknown_name("shape", str(like), LIKE)
        else:
            return check_sizes(shape(like), data)
        return [("like", problem)]

    def rows(self) -> Iterator[Drawn]:
        """All rows, with the probabilities that their labels were drawn from."""
        yield from self.shape.rows(self.sizes)

    def chunks(self) -> Iterator[Chunk]:
        """All rows."""
        for rows in self.rows():
            yield rows.chunk(self.schema)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of a file of this shape, or of a frame."""
        spec = schema.parse({**self.shape.data, "path": "-"})
        yield from load_format(spec.format)(spec).chunks_of(source)
