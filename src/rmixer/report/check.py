"""One thing that ``rmixer doctor`` has looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "missing", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        state: ``ok``; ``missing``: jobs do without; ``problem``: some jobs cannot run like that.
        found: what there is.
        follows: what that means for jobs.
        mend: what to do about it; empty where nothing is to be done.
    """

    name: str
    state: State
    found: str
    follows: str = ""
    mend: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
