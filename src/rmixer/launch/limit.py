"""Holds the caching allocator of PyTorch in this process to the memory that was booked on a GPU.

A program that outgrows its booking then runs out of memory itself, and its neighbours do not. What
the program sets itself, in its code or in ``PYTORCH_CUDA_ALLOC_CONF``, is left alone.

Standard library only, Python 3.8 and later; torch is used where the program has imported it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_OWN = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def install(limit: int) -> None:
    """Set the limit as soon as the program first uses CUDA; until then it has no context.

    Args:
        limit: bytes that the allocator may reserve on each GPU that the process sees.
    """
    cuda = sys.modules["torch"].cuda
    if not any("per_process_memory_fraction" in os.environ.get(name, "") for name in _OWN):
        cuda._lazy_call(lambda: hold(cuda, limit))


def hold(cuda: Any, limit: int) -> None:
    """Set it now. Whatever goes wrong here, the program must run."""
    try:
        for index in range(cuda.device_count()):
            total = cuda.get_device_properties(index).total_memory
            if limit < total:
                cuda.set_per_process_memory_fraction(limit / total, index)
    except Exception as error:
        sys.stderr.write("rmixer: memory on the GPU is not limited: %r\n" % (error,))
