"""What `sitecustomize` arms inside a program: a hook on the import of torch, then on optimizers.

Standard library only, Python 3.8 and later; torch is used where the program has imported it.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
from typing import Any, Callable, Dict, List, Optional

#: Steps that are traced: the peak is reached by the second, a heap may still grow in the third.
TRACED_STEPS = 3
CANNOT_TRACE = 70  # EX_SOFTWARE
_HERE = os.path.dirname(os.path.abspath(__file__))
#: Where the recorder is; its files are loaded by path, since the interpreter need not have rmixer.
_TRACE = os.path.join(os.path.dirname(_HERE), "trace")
_OPTIMIZERS = "torch.optim.optimizer"
#: Contexts that stay open as long as the program runs.
_open: List[Any] = []
_counters: List[Any] = []


def arm(wanted: Dict[str, str]) -> None:
    """Wait for the program to import torch, then do what was asked for.

    Args:
        wanted: ``RMIXER_PROGRESS`` or ``RMIXER_TRACE`` with the file to write;
            ``RMIXER_DEVICE_MEMORY`` with bytes.
    """
    actions: List[Callable[[], None]] = []
    if "RMIXER_PROGRESS" in wanted:
        counter, phases = load("counter", _HERE), load("phases", _HERE)
        page, iterations = load("page", _HERE), load("iterations", _HERE)
        _counters.append(
            counter.Counter(wanted["RMIXER_PROGRESS"], page, iterations.Iterations, phases.Phases)
        )
        actions.append(_counters[-1].install)
    if "RMIXER_TRACE" in wanted:
        atexit.register(_note_end, wanted["RMIXER_TRACE"])
        actions.append(lambda: _trace(wanted["RMIXER_TRACE"]))
    elif "RMIXER_DEVICE_MEMORY" in wanted:
        limit = int(wanted["RMIXER_DEVICE_MEMORY"])
        actions.append(lambda: load("limit", _HERE).install(limit))
    when_imported("torch", actions)


def _trace(path: str) -> None:
    """Trace from here on; where that cannot be, end: the program must not run for real."""
    try:
        Tracer(path).install()
    except BaseException as error:
        sys.stderr.write("rmixer: cannot be traced: %r\n" % (error,))
        sys.stderr.flush()
        os._exit(CANNOT_TRACE)


def writer_of_this_process() -> Any:
    """The page of a counter that is at work here, for a program that reports its steps itself.

    None where there is none, or where another process has the page.
    """
    for counter in _counters:
        if counter.installed:
            return counter.give()
    return None


def when_imported(name: str, actions: List[Callable[[], None]]) -> None:
    """Call the actions once the module of that name has been imported."""
    if name in sys.modules:
        _call(actions)
    else:
        sys.meta_path.insert(0, _Finder(name, actions))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module the usual way, and wraps its loader."""

    def __init__(self, name: str, actions: List[Callable[[], None]]) -> None:
        self.name, self.actions, self.looking = name, actions, False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name or self.looking:
            return None
        self.looking = True  # the others are asked, this one not
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            if self in sys.meta_path:  # a program may look for the module before it imports it
                sys.meta_path.remove(self)
            execute(module)
            _call(self.actions)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _call(actions: List[Callable[[], None]]) -> None:
    """Whatever goes wrong here, the program must run."""
    for action in actions:
        try:
            action()
        except Exception as error:
            sys.stderr.write("rmixer: not instrumented: %r\n" % (error,))


# --- tracing --------------------------------------------------------------------------------------


class Tracer:
    """From `install` on the program runs on fake tensors; after `TRACED_STEPS` steps it ends.

    Args:
        path: where the trace goes.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.logical = os.environ.get("RMIXER_TRACE_DEVICE", "cpu")
        self.steps = self.depth = self.overhead = 0
        self.optimizer: Optional[int] = None
        self.recorder: Any = None

    def install(self) -> None:
        before = memory("VmRSS")
        recorder, surface, cost = load("recorder"), load("surface"), load("cost")
        self.overhead = max(0, memory("VmRSS") - before)
        self.write = recorder.write_document
        self.recorder = recorder.Recorder(
            self.logical, all_on_device=False, cost=cost.operator_cost
        )
        contexts = [self.recorder.recording(), surface.Surface(self.recorder)]
        if self.logical != "cpu":
            contexts.insert(0, surface.as_if_gpu())
        for context in contexts:
            context.__enter__()
        _open.extend(contexts)
        hooks = importlib.import_module(_OPTIMIZERS)
        hooks.register_optimizer_step_pre_hook(self.before)
        hooks.register_optimizer_step_post_hook(self.after)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.depth += 1

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.depth -= 1
        if self.depth or self.optimizer not in (None, id(optimizer)):
            return
        self.optimizer = id(optimizer)
        self.steps += 1
        if self.steps >= TRACED_STEPS:
            self.finish()
        self.recorder.mark("step")
        self.recorder.clear_costs()

    def finish(self) -> None:
        """Write the trace, and end the program without letting it go on in any way."""
        document = self.recorder.document()
        document["host"] = {
            "peak_bytes": memory("VmHWM"),
            "file_bytes": memory("RssFile"),
            "overhead_bytes": self.overhead,
            "pid": os.getpid(),
        }
        self.write(self.path, document)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _note_end(path: str) -> None:
    """The program ended before it had made its steps: say so."""
    with open(path + ".ended", "w") as file:
        json.dump({"torch": "torch" in sys.modules}, file)


def memory(name: str) -> int:
    """A figure of this process in ``/proc/self/status``, bytes; 0 where there is none."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def load(name: str, folder: str = _TRACE) -> Any:
    """A module of ours by its file."""
    full = "rmixer_" + name
    spec = importlib.util.spec_from_file_location(full, os.path.join(folder, name + ".py"))
    if spec is None or spec.loader is None:
        raise ImportError("no file %s.py in %s" % (name, folder))
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module
