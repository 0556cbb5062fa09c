"""`Resources`, the value type of all bookkeeping, and the units people write and read."""

from __future__ import annotations

import re
from dataclasses import dataclass

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4

_UNITS = {
    "": 1, "B": 1,
    "K": KIB, "KIB": KIB, "KB": 1000,
    "M": MIB, "MIB": MIB, "MB": 1000**2,
    "G": GIB, "GIB": GIB, "GB": 1000**3,
    "T": TIB, "TIB": TIB, "TB": 1000**4,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|sec|m|min|h|d)?\s*")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of what jobs share: cores' worth of CPU, host memory, memory of one device.

    Attributes:
        cpu: cores' worth, kept to a thousandth so that sums are exact.
        memory: host memory, bytes.
        device_memory: memory of the device the job is placed on, bytes; 0 on the CPU.
    """

    cpu: float = 0.0
    memory: int = 0
    device_memory: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpu", round(self.cpu, 3))

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.device_memory + other.device_memory,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.device_memory - other.device_memory,
        )

    def fits_in(self, room: Resources) -> bool:
        """Whether every component is at most that of `room`."""
        return (
            self.cpu <= room.cpu
            and self.memory <= room.memory
            and self.device_memory <= room.device_memory
        )


def parse_bytes(text: str | int) -> int:
    """Bytes from ``6GiB``, ``512 MB`` or a plain number. GiB and GB are kept apart.

    Raises:
        ValueError: not a size; the message shows the forms that are.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"{text} is negative; a size is at least 0")
        return text
    match = _SIZE.fullmatch(str(text))
    unit = match.group(2).upper() if match else ""
    if not match or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write for example 6GiB, 512MiB or 2GB")
    return int(float(match.group(1)) * _UNITS[unit])


def parse_seconds(text: str | float) -> float:
    """Seconds from ``90``, ``90s``, ``15min``, ``2h``, or ``HH:MM:SS``.

    Raises:
        ValueError: not a duration; the message shows the forms that are.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        if not text > 0:
            raise ValueError(f"{text} is not a duration; it must be above 0")
        return float(text)
    parts = str(text).split(":")
    if len(parts) in (2, 3) and all(part.isdigit() for part in parts):
        seconds = 0.0
        for part in parts:
            seconds = seconds * 60 + int(part)
    else:
        match = _DURATION.fullmatch(str(text))
        if not match:
            raise ValueError(f"{text!r} is not a duration; write 90s, 15min or 01:30:00")
        seconds = float(match.group(1)) * _SECONDS[match.group(2)]
    if not seconds > 0:
        raise ValueError(f"{text!r} is not a duration; it must be above 0")
    return seconds


def format_bytes(count: float) -> str:
    """Bytes for people: ``11.2 GiB``, ``740 MiB``, ``0 B``."""
    for unit, size in (("TiB", TIB), ("GiB", GIB)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    for unit, size in (("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds for people: ``4.2 s``, ``3:07``, ``1:02:09``."""
    if round(seconds, 1) < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
