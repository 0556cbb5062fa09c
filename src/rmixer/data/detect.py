"""The format of data by their content: ``format: auto``, or no format at all.

Every format of the table that can be told by its first lines, its first bytes or the names in its
folder says so itself: ``looks(sample)`` returns None, or the options that the content settles (a
``form``, a feature map). What is found is an ordinary `DataSpec`, as if a jobs file had said it.

A checked jobs file may leave the format open; it is looked for where the file is first read, in the
process that estimates or trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.data import FORMATS
from rmixer.data.format import Format, load_format
from rmixer.data.schema import AUTO, DataSpec, parse, validate
from rmixer.data.text import open_bytes
from rmixer.errors import DataError

if TYPE_CHECKING:
    from rmixer.data.info import DataInfo

_HEAD_BYTES = 1 << 18
_LINES = 20
_SHOWN = 60
#: What any table of text looks like counts where nothing else does.
_GENERIC = ("csv",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The beginning of some data.

    Attributes:
        path: of the file or folder.
        head: its first bytes, decompressed; empty for a folder.
        lines: its first whole lines; none if it is no text.
        names: what is in the folder.
    """

    path: Path
    head: bytes = b""
    lines: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def fields(self, delimiter: str) -> list[list[str]]:
        """Each line between delimiters."""
        return [line.split(delimiter) for line in self.lines]


def sample_of(path: Path) -> Sample:
    """The beginning of a file, or the names in a folder.

    Raises:
        DataError: it cannot be read.
    """
    if path.is_dir():
        return Sample(path=path, names=tuple(sorted(p.name for p in path.iterdir())))
    with open_bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    try:
        text = head.decode("utf-8-sig") if len(head) < _HEAD_BYTES else _whole(head)
    except UnicodeDecodeError:
        return Sample(path=path, head=head)
    if "\0" in text:
        return Sample(path=path, head=head)
    return Sample(path=path, head=head, lines=tuple(text.splitlines()[:_LINES]))


def found_in(sample: Sample) -> dict[str, Mapping[str, Any]]:
    """The formats that a sample looks like, and the options that it settles for each."""
    found = {}
    for name in FORMATS:
        options = looks_like(name, sample)
        if options is not None:
            found[name] = options
    return found


def looks_like(name: str, sample: Sample) -> Mapping[str, Any] | None:
    """What the content settles if it looks like that format; None if it does not."""
    looks = getattr(load_format(name), "looks", None)
    if looks is None:
        return None
    options: Mapping[str, Any] | None = looks(sample)
    return options


def resolve(spec: DataSpec) -> DataSpec:
    """The data with their format named, and with the options that their content settles.

    Raises:
        DataError: the format is open, and the content looks like none or like several.
        UsageError: what else is said of the data does not go with the format that was found.
    """
    path = spec.options.get("path")
    if spec.format == AUTO:
        return _detected(spec)
    if path is None:
        return spec
    try:
        settled = looks_like(spec.format, sample_of(Path(path)))
    except DataError:
        return spec  # the format says better what is wrong
    known = {key: value for key, value in (settled or {}).items() if key not in spec.options}
    return replace(spec, options={**spec.options, **known}) if known else spec


def opened(spec: DataSpec) -> Format:
    """The format of a resolved spec, ready to read.

    Raises:
        DataError: what it needs is not there.
    """
    try:
        return load_format(spec.format)(spec)
    except DataError as error:
        raise explained(error, spec) from error


def header_info(spec: DataSpec) -> DataInfo | None:
    """Names and sizes of data that are not parsed; None if that takes their rows.

    Raises:
        DataError: what there is to see is not right.
    """
    spec = resolve(spec)
    tell = getattr(opened(spec), "header_info", None)
    if tell is None:
        return None
    info: DataInfo | None = tell()
    return info


def explained(error: DataError, spec: DataSpec) -> DataError:
    """The same error; with what the content looks like, if that is another format than was said."""
    path = spec.options.get("path")
    if path is None or "the content looks like" in str(error):
        return error
    try:
        found = found_in(sample_of(Path(path)))
    except DataError:
        return error
    others = [name for name in found if name not in _GENERIC]
    if others and spec.format not in found and spec.format in FORMATS:
        names = " or ".join(f"`format: {name}`" for name in others)
        error.args = (f"{error}; the content looks like {names}",)
    return error


def _detected(spec: DataSpec) -> DataSpec:
    data: Mapping[str, Any] = spec.options["data"]
    path = Path(data["path"])
    sample = sample_of(path)
    seen = found_in(sample)
    has_schema = data.get("schema") is not None
    found = {name: options for name, options in seen.items() if _takes(name, schema=has_schema)}
    found = {n: o for n, o in found.items() if n not in _GENERIC} or found
    if len(found) != 1:
        raise DataError(_neither(sample, seen, found), path=path)
    ((name, options),) = found.items()
    named = {**options, **data, "format": name}
    if problems := validate(named):
        told = "; ".join(f"data.{key}: {message}" for key, message in problems)
        raise DataError(f"looks like `format: {name}`, but {told}", path=path)
    return parse(named)


def _takes(name: str, *, schema: bool) -> bool:
    """Whether a format goes with a schema, or without one."""
    format_class = load_format(name)
    if schema:
        return "schema" in format_class.options
    return not _needs_schema(name)


def _needs_schema(name: str) -> bool:
    format_class = load_format(name)
    return "schema" in format_class.options and not getattr(format_class, "schema_optional", False)


def _neither(sample: Sample, seen: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Why the format is not clear, and what would be right."""
    if found:
        names = " and ".join(f"`format: {name}`" for name in found)
        return f"looks like {names}; name one of them"
    if seen:
        names = " or ".join(f"`format: {name}`" for name in seen)
        with_schema = any(map(_needs_schema, seen))
        what = "needs a `schema` that names its columns" if with_schema else "takes no `schema`"
        return f"looks like {names}, which {what}"
    told = [name for name in sorted(FORMATS) if hasattr(load_format(name), "looks")]
    shown = f"begins with {sample.lines[0][:_SHOWN]!r}" if sample.lines else _what(sample)
    return f"{shown}, which is none of {', '.join(told)}; name the format"


def _what(sample: Sample) -> str:
    if sample.names:
        return f"is a folder with {', '.join(sample.names[:3])}"
    return "is empty" if not sample.head else f"begins with the bytes {sample.head[:8]!r}"


def _whole(head: bytes) -> str:
    """The whole lines of bytes that were cut anywhere."""
    return head[: head.rfind(b"\n") + 1].decode("utf-8-sig")
