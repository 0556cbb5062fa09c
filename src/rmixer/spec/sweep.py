"""Sweeps: a grid of values, and the ``{name}`` templates that they fill.

A text that is exactly ``{lr}`` becomes the value itself, a number stays a number. Within a longer
text the value is written out. A pair ``{{ ... }}`` stands for literal braces; single braces around
anything but a name are text, so JSON and ``{print $1}`` survive.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: More jobs than this are a mistake in a sweep.
MAX_JOBS = 10_000

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_TOKEN = re.compile(r"\{\{|\}\}|\{(" + _NAME + r")\}")
_WHOLE = re.compile(r"\{(" + _NAME + r")\}")
_SCALAR = (str, int, float, bool)


class UnknownTemplateError(KeyError):
    """A text has a ``{name}`` that no sweep has; ``args[0]`` is the name."""


def template_names(text: str) -> list[str]:
    """The names in a text's templates, in their order."""
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return ""

    _scan(text, note)
    return names


def has_template(value: Any) -> bool:
    """Whether a value has a text with a template, at any depth."""
    if isinstance(value, str):
        return bool(template_names(value))
    if isinstance(value, dict):
        return any(has_template(item) for item in value.values())
    return isinstance(value, list) and any(has_template(item) for item in value)


def fill(text: str, values: Mapping[str, Any], *, lenient: bool = False) -> Any:
    """A text with its templates filled, or the value itself if the text is nothing else.

    Args:
        text: what to fill.
        values: the values of one combination, by name.
        lenient: leave unknown names as they are, as in commands.

    Raises:
        UnknownTemplateError: a name is not in ``values``.
    """
    whole = _WHOLE.fullmatch(text)
    if whole and whole[1] in values:
        return values[whole[1]]

    def replace(name: str) -> str:
        if name in values:
            return format_value(values[name])
        if lenient:
            return f"{{{name}}}"
        raise UnknownTemplateError(name)

    return _scan(text, replace)


def format_value(value: Any) -> str:
    """A value within a text: ``0.1``, ``true``, ``512-256`` for a list as DLRM writes layers."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, _SCALAR) for item in value):
        return "-".join(format_value(item) for item in value)
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    return "null" if value is None else str(value)


def combinations(sweep: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the last key the fastest."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def count(sweep: Mapping[str, list[Any]]) -> int:
    """How many combinations there are."""
    return math.prod(len(values) for values in sweep.values())


def sweep_problems(sweep: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong with a ``sweep``: paths within it, and what would be right."""
    if not isinstance(sweep, dict):
        return [((), "a sweep is a mapping of lists; write for example {lr: [0.1, 0.01]}")]
    if not sweep:
        return [((), "the sweep has no key; write for example {lr: [0.1, 0.01]}")]
    problems: list[tuple[tuple[str | int, ...], str]] = []
    for key, values in sweep.items():
        if not re.fullmatch(_NAME, key):
            problems.append(((key,), "a key of a sweep is a name of letters, digits and _"))
        if not isinstance(values, list):
            hint = f"write [{format_value(values)}]" if isinstance(values, _SCALAR) else "a list"
            problems.append(((key,), f"the values of a sweep are a list; {hint}"))
        elif not values:
            problems.append(((key,), "the sweep has no value for it; write for example [0.1]"))
        else:
            texts = [format_value(value) for value in values]
            twice = sorted({text for text in texts if texts.count(text) > 1})
            problems += [((key,), f"the value {text} is there twice") for text in twice]
    if not problems and count(sweep) > MAX_JOBS:
        problems.append(((), f"the sweep makes {count(sweep)} jobs; at most {MAX_JOBS} are taken"))
    return problems


def _scan(text: str, replace: Any) -> str:
    """Replace templates; of the doubled braces those that pair up become single ones."""
    out: list[str] = []
    opened: list[int] = []
    position = 0
    for match in _TOKEN.finditer(text):
        out.append(text[position : match.start()])
        position = match.end()
        if match[1]:
            out.append(replace(match[1]))
        elif match[0] == "}}" and opened:
            out[opened.pop()] = "{"
            out.append("}")
        else:
            if match[0] == "{{":
                opened.append(len(out))
            out.append(match[0])
    return "".join([*out, text[position:]])
