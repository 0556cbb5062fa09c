"""How much of the time work stood still for lack of something: the kernel's pressure figures (PSI).

Source: ``Documentation/accounting/psi.rst`` of the kernel. "some": at least one task waited.
"""

from __future__ import annotations

from rmixer.monitor.processes import PROC, read_file

RESOURCES = ("cpu", "memory", "io")
_MICROSECOND = 1e-6


class PressureMeter:
    """Looks at pressure again and again.

    Args:
        proc: where ``/proc`` is.
    """

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._last: tuple[float, dict[str, float | None]] | None = None

    def sample(self, at: float) -> dict[str, float | None]:
        """Per resource the share of time since the last look in which a task waited for it.

        None at the first look, and where the kernel does not tell.

        Args:
            at: seconds, of any clock that only grows.
        """
        now = {name: stalled_seconds(name, self._proc) for name in RESOURCES}
        before, self._last = self._last, (at, now)
        if before is None or at <= before[0]:
            return dict.fromkeys(RESOURCES)
        return {name: _share(before[1][name], now[name], at - before[0]) for name in RESOURCES}


def stalled_seconds(resource: str, proc: str = PROC) -> float | None:
    """Seconds since boot in which at least one task waited for it; None where not told."""
    text = read_file(f"{proc}/pressure/{resource}") or b""
    line = next((line for line in text.splitlines() if line.startswith(b"some ")), b"")
    total = line.rpartition(b"total=")[2]
    return int(total) * _MICROSECOND if total.isdigit() else None


def _share(before: float | None, now: float | None, seconds: float) -> float | None:
    if before is None or now is None:
        return None
    return round(min(1.0, max(0.0, (now - before) / seconds)), 3)
