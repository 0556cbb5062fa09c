"""Whether data have the columns that a model cannot do without. Neither torch nor polars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rmixer.data import FORMATS
from rmixer.data.format import load_format
from rmixer.data.schema import Schema, parse

Problem = tuple[str, str]


def validate(model: str, data: Mapping[str, Any]) -> list[Problem]:
    """Check that a right ``data`` mapping suits a model; no file is read.

    Returns:
        One ``(key, message)`` per problem, the key relative to ``data``; empty if all is well, or
        if the model or the format is somebody else's, or the columns are known to the files alone.
    """
    need = _NEEDS.get(model)
    name = data.get("format")
    if need is None or name not in FORMATS:
        return []
    if getattr(load_format(name), "schema_in_files", False):
        return []
    spec = parse(data)
    options = {key: value for key, value in spec.options.items() if key != "path"}
    spec = replace(spec, options=options)
    message = need(load_format(spec.format)(spec).schema)
    if message is None:
        return []
    key = next(key for key in ("schema", "like", "format") if key in data)
    return [(key, message if key == "schema" else f"{data[key]}: {message}")]


def _pairs(columns: Schema) -> str | None:
    """DLRM sees embeddings in its dot products only, and one vector has no product."""
    if columns.dense or len(columns.sparse) + len(columns.sequences) > 1:
        return None
    return "dlrm needs a dense column, or two that are sparse or sequence, to have a product of two"


def _history(model: str, columns: Schema) -> str | None:
    """The models of a history look at the past of a field."""
    if any(sequence.shares is not None for sequence in columns.sequences):
        return None
    return (
        f"{model} needs a behaviour sequence: a sequence column that shares the table of a sparse "
        "one, as in sequence: {hist: {shares: item}}; generated rows have it with like: behaviour"
    )


#: The models of a user's history.
HISTORY_MODELS = ("bert4rec", "bst", "dien", "din", "dmr", "dpin")
_NEEDS: Mapping[str, Callable[[Schema], str | None]] = {
    "dlrm": _pairs,
    **{model: partial(_history, model) for model in HISTORY_MODELS},
}
