"""A jobs file as plain values, with the line of every key. YAML 1.2, through ruamel.yaml.

YAML 1.2, because in it ``1e-3`` is a number and ``on`` is text.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import numbers
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarbool import ScalarBoolean

from rmixer.errors import SpecError, nearest
from rmixer.resources import MIB, format_bytes

#: Where a value stands: the keys and positions that lead to it.
KeyPath = tuple[str | int, ...]

MAX_BYTES = 16 * MIB
MAX_VALUES = 300_000
EXAMPLE = "write for example `jobs: [{name: a, command: python train.py}]`"


@dataclass(frozen=True, slots=True)
class Document:
    """A jobs file that has been read.

    Attributes:
        file: its path, or what stands for it in messages.
        tree: dicts, lists, str, int, float, bool and None.
        text: as it was read.
        lines: line number, from 1, of each key and list item.
        in_jobs: whether jobs stand in a list ``jobs``; not so for one job from the command line.
    """

    file: str
    tree: dict[str, Any]
    text: str = ""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    in_jobs: bool = True

    def line(self, path: KeyPath) -> int | None:
        """The line of a value, or of the nearest one around it that has a line."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1 if self.lines else None

    def job_path(self, index: int) -> KeyPath:
        """Where the job of that index stands."""
        return ("jobs", index) if self.in_jobs else ()

    @property
    def digest(self) -> str:
        """SHA-256 of the content; comments, layout and the order of keys do not count."""
        text = json.dumps(self.tree, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def dotted(path: KeyPath) -> str:
    """A path as people write it: ``jobs[2].optimizer.lr``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read_document(path: Path) -> Document:
    """Read and parse a jobs file.

    Raises:
        SpecError: it cannot be read, is not YAML, or is no mapping.
    """
    text = _read_text(path)
    tree, lines = parse_text(text, str(path))
    return Document(str(path), tree, text, lines)


def parse_text(text: str, file: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The plain values of a YAML text, and the lines of its keys.

    Raises:
        SpecError: not YAML, empty, or no mapping.
    """
    try:
        return _parse(text, file)
    except MarkedYAMLError as error:
        raise _parse_error(error, file) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"not text: {error.reason}", file=file, line=line) from error
    except RecursionError as error:
        raise SpecError("nested too deeply, or without end", file=file) from error
    except (YAMLError, ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        # The parser's own slips on odd input are as much a file that does not parse.
        raise SpecError(f"does not parse as YAML: {error}", file=file) from error


def _parse(text: str, file: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    root = YAML(typ="rt").load(text)
    if root is None:
        raise SpecError(f"is empty; {EXAMPLE}", file=file)
    if not isinstance(root, CommentedMap):
        what = "a list" if isinstance(root, CommentedSeq) else "a single value"
        raise SpecError(f"is {what}, not a mapping with a key `jobs`; {EXAMPLE}", file=file, line=1)
    converter = _Converter(file)
    return converter.mapping(root, ()), converter.lines


def plain(value: Any, path: KeyPath, file: str) -> Any:
    """A value from Python as JSON would have it: paths as text, tuples as lists.

    Raises:
        SpecError: a value that a jobs file could not hold.
    """
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, (*path, str(key)), file) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, (*path, index), file) for index, item in enumerate(value)]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    message = f"a value of type {type(value).__name__} does not belong here"
    raise SpecError(message, file=file, key=dotted(path))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SpecError(_absent(path), file=path) from error
    except IsADirectoryError as error:
        raise SpecError("is a directory; name the jobs file in it", file=path) from error
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=path) from error
    if len(raw) > MAX_BYTES:
        raise SpecError(f"is larger than {format_bytes(MAX_BYTES)}: no jobs file", file=path)
    if b"\0" in raw:
        raise SpecError("is a binary file; a jobs file is YAML in UTF-8", file=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; a jobs file is YAML in UTF-8"
        raise SpecError(message, file=path, line=line) from error


def _absent(path: Path) -> str:
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_file()]
    except OSError:
        return "no such file, and its directory does not exist either"
    close = nearest(path.name, names)
    return f"no such file; did you mean {str(path.parent / close)!r}?" if close else "no such file"


def _parse_error(error: MarkedYAMLError, file: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    problem = str(error.problem or error.context or "not YAML")
    duplicate = re.match(r'found duplicate key "(.*?)"', problem)
    if duplicate:  # the parser's own words repeat the value, which may be a secret
        first = error.context_mark.line + 1 if error.context_mark else None
        within = f" in the mapping that begins in line {first}" if first else ""
        return SpecError(f"the key is there twice{within}", file=file, line=line, key=duplicate[1])
    column = f" (column {mark.column + 1})" if mark else ""
    context = f"{error.context}: " if error.context and error.problem else ""
    message = f"does not parse as YAML: {context}{problem}{column}"
    return SpecError(message, file=file, line=line)


class _Converter:
    """Turns the parser's nodes into plain values and collects lines."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self._count = 0

    def mapping(self, node: CommentedMap, path: KeyPath) -> dict[str, Any]:
        positions = node.lc.data or {}
        result = {}
        for key, item in node.items():
            here = (*path, str(key))
            if key in positions:
                self.lines[here] = positions[key][0] + 1
            if not isinstance(key, str):
                raise self._error("the key is not text; put it in quotes", here)
            result[str(key)] = self._value(item, here)
        return result

    def _sequence(self, node: CommentedSeq, path: KeyPath) -> list[Any]:
        positions = node.lc.data or {}
        result = []
        for index, item in enumerate(node):
            if index in positions:
                self.lines[*path, index] = positions[index][0] + 1
            result.append(self._value(item, (*path, index)))
        return result

    def _value(self, node: Any, path: KeyPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._error(f"more than {MAX_VALUES} values", path)
        if isinstance(node, CommentedMap):
            return self.mapping(node, path)
        if isinstance(node, CommentedSeq):
            return self._sequence(node, path)
        if isinstance(node, bool | ScalarBoolean):
            return bool(node)
        if isinstance(node, float) and not math.isfinite(node):
            raise self._error(f"{node} is not a finite number", path)
        for kind in (int, float, str):
            if isinstance(node, kind):
                return kind(node)
        if node is None:
            return None
        if isinstance(node, dt.date) and not isinstance(node, dt.datetime):
            return node.isoformat()
        raise self._error("a tagged value or a time does not belong here; put it in quotes", path)

    def _error(self, message: str, path: KeyPath) -> SpecError:
        line = Document(self.file, {}, lines=self.lines).line(path)
        return SpecError(message, file=self.file, line=line, key=dotted(path))
