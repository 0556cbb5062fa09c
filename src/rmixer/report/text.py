"""Text from outside (job names, log lines) made safe to show, and numbers made readable."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "unknown"

# Terminal control as in ECMA-48: CSI, OSC and its kin up to their terminator, single escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?", re.MULTILINE
)
_SURROGATES: dict[int, str | None] = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_UNWANTED = _SURROGATES | {
    code: None
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if code not in (0x09, 0x0A)
}
_FAR = 1e12  # a wall time beyond this is damage, not a date


def clean(text: str) -> str:
    """The text without terminal escapes, control characters, direction overrides and surrogates.

    Of a line that was rewritten with carriage returns (a progress bar) the last form is kept.
    """
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines).translate(_UNWANTED)


def one_line(text: str) -> str:
    """`clean` text with all its white space folded into single spaces."""
    return " ".join(clean(text).split())


def last_lines(text: str, count: int = 20) -> str:
    """The last `count` lines of the cleaned text, without empty ones at the end."""
    return "\n".join(clean(text).rstrip().split("\n")[-count:])


def clip(text: str, width: int) -> str:
    """The text, or its first part and an ellipsis where it is longer than `width` characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Rows as aligned lines; ``sides`` has ``<`` or ``>`` per column."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(sides))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def rfc3339(wall: float | None) -> str | None:
    """Unix time as RFC 3339 in UTC with milliseconds; None where there is none."""
    if wall is None or not math.isfinite(wall) or abs(wall) > _FAR:
        return None
    stamp = datetime.fromtimestamp(wall, UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_safe(value: Any) -> Any:
    """The value as JSON has it: no NaN or infinity (null instead), no surrogate, string keys."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {json_safe(str(key)): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return str(value).translate(_SURROGATES)


def finite(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def format_number(value: float) -> str:
    """A rate or count for people: ``41,280``, ``37.2``, ``0.0125``."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def format_metric(value: Any) -> str:
    """A metric for people: four decimals where it is small, an empty text where there is none."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else format_number(value)  # noqa: PLR2004
    return one_line(str(value))
