"""FuxiCTR's data sets: ``feature_map.json`` and the rows that it describes.

    data:
      format: fuxictr
      path: taobao_x1              # the folder; or one of its files, as taobao_x1/train.parquet
      label: clk                   # only where the map names several

The map stands beside the rows, or in the folder above. Of a folder that holds it, the rows are
``train.parquet``, ``train.npz``, ``train.csv`` or the parts in ``train``; of another folder, all of
its parts. Columns are what the map says: numeric, categorical, sequence; ``meta`` is left out.

Parquet and npz hold the ids that FuxiCTR gave, from 0 (padding) to below ``vocab_size``; they are
kept, so sizes are known from the map and the headers alone. csv holds words, as FuxiCTR reads them:
they get a vocabulary of the training rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data import arrays, parquet
from rmixer.data.checks import Problem, check_path
from rmixer.data.delimited import Delimited
from rmixer.data.format import Chunk
from rmixer.data.frames import Columns
from rmixer.data.ready import known_info
from rmixer.data.schema import DataSpec, Schema, SequenceColumn
from rmixer.errors import DataError, unknown_name

if TYPE_CHECKING:
    from rmixer.data.detect import Sample
    from rmixer.data.info import DataInfo

MAP = "feature_map.json"
ENDINGS = (".parquet", ".npz", ".csv")
CHUNK_ROWS = 1 << 17
_LONGEST = 50  # of a list where the map does not say


class FuxiCTR:
    """The format ``fuxictr``."""

    options: tuple[str, ...] = ("path", "label", "separator", "feature_map")
    default_dense = "none"  # numeric columns have been normalized
    takes_folder = True
    schema_in_files = True

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        path = spec.options.get("path")
        known = spec.options.get("feature_map")
        found = None if path is None else map_of(Path(path))
        self.rows: tuple[Path, ...] = () if path is None else rows_of(Path(path))
        place = found or Path(MAP)
        described = known or read_map(place)
        self.schema = schema_of(described, place, spec.options)
        if self.rows and self.rows[0].suffix == ".csv":
            self.schema = replace(self.schema, table_rows={})
        self.sources = (*self.rows, *(() if known or found is None else (found,)))

    @staticmethod
    def looks(sample: Sample) -> Mapping[str, Any] | None:
        """See `rmixer.data.detect`."""
        try:
            rows_of(sample.path)
            return {"feature_map": read_map(map_of(sample.path))}
        except DataError:
            return None

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        problems = check_path(data)
        for key in ("label", "separator"):
            if key in data and not (isinstance(data[key], str) and data[key]):
                problems.append((key, f"{data[key]!r} is no text of at least one letter"))
        known = data.get("feature_map")
        if known is not None and not (isinstance(known, Mapping) and "features" in known):
            message = f"{known!r} is no content of a {MAP}; leave it out, the file is found by path"
            problems.append(("feature_map", message))
        return problems

    def chunks(self) -> Iterator[Chunk]:
        """All rows."""
        yield from self._read(self.rows, label_needed=True)

    def chunks_of(self, source: Any) -> Iterator[Chunk]:
        """The rows of another file or folder of this map, or of a frame; the label may lack."""
        if isinstance(source, str | Path):
            yield from self._read(rows_of(Path(source)), label_needed=False)
        else:
            yield parquet.of_frame(source, self.schema)

    def header_info(self) -> DataInfo | None:
        """Names and sizes, from the map and the headers alone."""
        if not self.schema.table_rows:
            return None
        if self.rows[0].suffix == ".parquet":
            return known_info(self.schema, self.spec, sum(map(parquet.row_count, self.rows)))
        count = 0
        for path in self.rows:
            with arrays.Archive(path) as archive:
                shapes = {name: archive.header(name).shape for name in self.schema.used}
                count += arrays.same_rows(shapes, path)
        return known_info(self.schema, self.spec, count)

    def _read(self, paths: tuple[Path, ...], *, label_needed: bool) -> Iterator[Chunk]:
        if paths[0].suffix == ".parquet":
            yield from parquet.read(paths, self.schema, label_needed=label_needed)
        elif paths[0].suffix == ".npz":
            for path in paths:
                yield from self._npz(path, label_needed=label_needed)
        else:
            for path in paths:
                text = Delimited(self._as_csv(path))
                yield from text.chunks() if label_needed else text.chunks_of(path)

    def _npz(self, path: Path, *, label_needed: bool) -> Iterator[Chunk]:
        import polars as pl  # noqa: PLC0415 - not needed where the cache is built

        with arrays.Archive(path) as archive:
            labelled = label_needed or self.schema.label in archive.names
            columns = Columns(schema=self.schema, path=path, labelled=labelled)
            columns.check(archive.names)
            for sequence in self.schema.sequences:
                shape = archive.header(sequence.name).shape
                if len(shape) != 2:  # noqa: PLR2004
                    message = f"has shape {shape}; a list is an array (rows, length)"
                    raise DataError(message, path=path, column=sequence.name)
            first = 0
            for block in archive.blocks(columns.used, CHUNK_ROWS):
                frame = pl.DataFrame(block)
                yield columns.chunk(frame, first)
                first += frame.height

    def _as_csv(self, path: Path) -> DataSpec:
        """What a jobs file would say of csv with these columns."""
        schema = self.schema
        sequences = {
            s.name: {"separator": s.separator, "shares": s.shares, "max_length": s.max_length}
            for s in schema.sequences
        }
        columns = {
            "label": schema.label,
            "dense": list(schema.dense),
            "sparse": list(schema.sparse),
            "sequence": sequences,
            "missing": list(schema.missing),
        }
        return replace(self.spec, format="csv", options={"schema": columns, "path": path})


def map_of(path: Path) -> Path:
    """The feature map of a file or a folder of rows.

    Raises:
        DataError: there is none.
    """
    if not path.exists():
        raise DataError("no such file or folder", path=path)
    if path.name == MAP:
        path = path.parent
    places = [path / MAP] if path.is_dir() else []
    places.append(path.parent / MAP)
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(place) for place in places)
    raise DataError(f"there is no {MAP} (looked at {looked})", path=path)


def rows_of(path: Path) -> tuple[Path, ...]:
    """The files of the rows.

    Raises:
        DataError: there are none, or of a kind that is not read.
    """
    if path.name == MAP:
        path = path.parent
    if path.is_dir() and (path / MAP).exists():
        named = (path / f"train{ending}" for ending in ("", *ENDINGS))
        path = next((place for place in named if place.exists()), path)
    if not path.is_dir():
        if path.suffix not in ENDINGS:
            message = f"is none of {', '.join(ENDINGS)}, which are what is read beside a {MAP}"
            raise DataError(message, path=path)
        return (path,)
    for ending in ENDINGS:
        if any(p.name.endswith(ending) for p in path.iterdir()):
            return parquet.parts(path, ending)
    message = f"the folder has neither train.* nor parts of rows ({', '.join(ENDINGS)})"
    raise DataError(message, path=path)


def read_map(path: Path) -> dict[str, Any]:
    """The content of a feature map: labels and features alone.

    Raises:
        DataError: it cannot be read, or has none.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 text: {error.reason}", path=path) from error
    except json.JSONDecodeError as error:
        raise DataError(f"is no JSON: {error.msg}", path=path, line=error.lineno) from error
    for key in ("labels", "features"):
        if not isinstance(content, dict) or not content.get(key):
            raise DataError(f"has no {key!r}; a feature map names labels and features", path=path)
    return {"labels": content["labels"], "features": content["features"]}


def schema_of(described: Mapping[str, Any], path: Path, options: Mapping[str, Any]) -> Schema:
    """The columns of a feature map.

    Args:
        described: the map.
        path: of the map, for messages.
        options: ``label`` where the map has several, ``separator`` of lists in text (``^``).

    Raises:
        DataError: it has something that cannot be read, or names several labels and none is chosen.
    """
    labels = [str(name) for name in described["labels"]]
    label = options.get("label")
    if label is None and len(labels) > 1:
        raise DataError(f"has {len(labels)} labels; write `label:` with one of {labels}", path=path)
    if label is not None and label not in labels:
        raise DataError(unknown_name("label", label, labels), path=path)
    dense: list[str] = []
    sparse: list[tuple[str, Mapping[str, Any]]] = []
    lists: list[tuple[str, Mapping[str, Any]]] = []
    rows: dict[str, int] = {}
    for name, about in _features(described["features"], path):
        kind = about.get("type")
        if kind == "numeric":
            dense.append(name)
        elif kind in ("categorical", "sequence"):
            (sparse if kind == "categorical" else lists).append((name, about))
            rows[name] = _size(about, path, name)
        elif kind != "meta":
            message = f"has type {kind!r}; numeric, categorical, sequence and meta are read"
            raise DataError(message, path=path, column=name)
    names = tuple(name for name, _ in sparse)
    separator = options.get("separator", "^")
    sequences = tuple(
        SequenceColumn(
            name=name,
            separator=separator,
            shares=shares if (shares := about.get("share_embedding")) in names else None,
            max_length=int(about.get("max_len") or _LONGEST),
        )
        for name, about in lists
    )
    for sequence in sequences:
        if sequence.shares is not None:
            rows[sequence.shares] = max(rows[sequence.shares], rows.pop(sequence.name))
    return Schema(
        label=label or labels[0],
        dense=tuple(dense),
        sparse=names,
        sequences=sequences,
        missing=("",),
        table_rows=rows,
    )


def _features(features: Any, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and what the map says of them; a list of mappings, or one mapping."""
    for some in features if isinstance(features, list) else [features]:
        if not isinstance(some, Mapping) or not all(isinstance(v, Mapping) for v in some.values()):
            raise DataError(f"{some!r} is no feature; write {{name: {{type: ..}}}}", path=path)
        yield from some.items()


def _size(about: Mapping[str, Any], path: Path, name: str) -> int:
    rows = about.get("vocab_size")
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        message = f"has vocab_size {rows!r}; it must be a whole number of at least 1"
        raise DataError(message, path=path, column=name)
    if about.get("padding_idx", 0) != 0:
        message = f"has padding_idx {about['padding_idx']!r}; only 0 is read"
        raise DataError(message, path=path, column=name)
    return rows
