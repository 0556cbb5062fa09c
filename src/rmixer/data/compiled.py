"""The compiled loops, where numba is there; without it everything works, only slower.

What was compiled is kept by numba: beside the source where that may be written, else in the user's
cache directory, per version of the source, of numba and of the CPU. Where neither may be written it
is compiled anew in each process that needs it (some seconds).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Kernels:
    """See `rmixer.data.kernels`."""

    scan: Callable[..., int]
    encode: Callable[..., tuple[int, int, int]]
    insert: Callable[..., None]
    count: Callable[..., None]
    put: Callable[..., None]


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The compiled loops; None without numba."""
    try:
        numba: Any = importlib.import_module("numba")
        source = importlib.import_module("rmixer.data.kernels")
    except ImportError:
        return None
    names = Kernels.__dataclass_fields__
    try:
        made = Kernels(**{n: numba.njit(nogil=True, cache=True)(getattr(source, n)) for n in names})
        _try_out(made)
    except (RuntimeError, OSError):  # there is no place to keep it, or it may not be written
        made = Kernels(**{name: numba.njit(nogil=True)(getattr(source, name)) for name in names})
    return made


def _try_out(made: Kernels) -> None:
    """Compile what every use needs, which also writes it."""
    slots = np.zeros(16, np.uint64)
    code, fresh = np.empty(1, np.int32), np.empty(1, np.uint32)
    made.encode(np.zeros(1, np.int64), 0, slots, 60, 0, 8, code, fresh)
