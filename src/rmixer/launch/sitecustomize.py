"""Imported by every Python program of a job, before the program: arms what was asked for.

The directory of this file stands first on ``PYTHONPATH``; another ``sitecustomize`` further down
the path is run first, as if this one were not there. Nothing happens unless the environment asks:

    RMIXER_PROGRESS=FILE   count optimizer steps and samples into the page FILE, and note the peak
    RMIXER_TRACE=FILE      run on fake tensors for a few steps, write the trace to FILE, and end
    RMIXER_DEVICE_MEMORY=N hold the allocator of each GPU to N bytes

All wait for the program to import torch. Programs started with ``-I``, ``-S`` or ``-E``, frozen
ones, and other interpreters escape this; they are then watched from outside alone.

Standard library only, Python 3.8 and later, nothing of rmixer.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    import importlib.machinery
    import importlib.util

    others = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arm() -> None:
    names = ("RMIXER_PROGRESS", "RMIXER_TRACE", "RMIXER_DEVICE_MEMORY")
    wanted = {name: os.environ[name] for name in names if os.environ.get(name)}
    if not wanted:
        return
    sys.path.insert(0, _HERE)
    try:
        import rmixer_launcher  # type: ignore[import-not-found]
    finally:
        sys.path.remove(_HERE)
    rmixer_launcher.arm(wanted)


try:
    _chain()
finally:
    try:
        _arm()
    except Exception as error:  # the program must run all the same
        sys.stderr.write("rmixer: not instrumented: %r\n" % (error,))
