"""What `sitecustomize` arms inside a program: a hook on the import of torch, then on optimizers.

Standard library only, Python 3.8 and later; torch is used where the program has imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional

#: Steps that are traced: the peak is reached by the second, a heap may still grow in the third.
TRACED_STEPS = 3
PUBLISH_SECONDS = 0.05
#: Batches are looked at in the first steps, then in one step every so often: a hook that sees every
#: module costs some microseconds for each of them.
FIRST_STEPS, LOOK_SECONDS = 8, 2.0
CANNOT_TRACE = 70  # EX_SOFTWARE
_HERE = os.path.dirname(os.path.abspath(__file__))
#: Where the recorder is; its files are loaded by path, since the interpreter need not have rmixer.
_TRACE = os.path.join(os.path.dirname(_HERE), "trace")
_OPTIMIZERS = "torch.optim.optimizer"
#: Contexts that stay open as long as the program runs.
_open: List[Any] = []
_counters: "List[Counter]" = []


def arm(wanted: Dict[str, str]) -> None:
    """Wait for the program to import torch, then do what was asked for.

    Args:
        wanted: ``RMIXER_PROGRESS`` or ``RMIXER_TRACE`` with the file to write.
    """
    actions: List[Callable[[], None]] = []
    if "RMIXER_PROGRESS" in wanted:
        _counters.append(Counter(wanted["RMIXER_PROGRESS"]))
        actions.append(_counters[-1].install)
    if "RMIXER_TRACE" in wanted:
        atexit.register(_note_end, wanted["RMIXER_TRACE"])
        actions.append(lambda: _trace(wanted["RMIXER_TRACE"]))
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


# --- counting -------------------------------------------------------------------------------------


class Counter:
    """Publishes steps, samples, and the peak of CUDA's caching allocator.

    Steps are those of the first optimizer that steps, samples the batch of the outermost module.
    One process of a program has the page: the first that steps; before any has stepped, the first
    that has imported torch. The others have pages of their own beside it.

    Args:
        path: of the progress page. Another process that steps has one with its pid behind.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.page = load("page", _HERE)
        self.writer: Any = None
        self.pid = self.stepped = 0  # the processes that have the page and have stepped
        self.failed = False
        self.hooks: List[Any] = []
        self.looks = FIRST_STEPS
        self.looked = 0.0
        self.optimizer: Any = None
        self.depth = self.modules = self.batch = 0
        self.published = 0.0
        self.installed = self.given = False

    def give(self) -> Any:
        """The page of this process; what it says from here on is not counted but told."""
        if self.stepped != os.getpid():
            self.begin()
        self.given = True
        return self.writer

    def install(self) -> None:
        self.installed = True
        if not os.path.exists(self.path):  # so that a reader sees a program that may step
            self.open(self.path, self.page.STARTING)  # which may be all that it does
        hooks = importlib.import_module(_OPTIMIZERS)
        hooks.register_optimizer_step_pre_hook(self.before)
        hooks.register_optimizer_step_post_hook(self.after)
        self.look()
        atexit.register(self.publish)

    def look(self) -> None:
        """See the batches of the next steps."""
        modules = importlib.import_module("torch.nn.modules.module")
        self.hooks = [
            modules.register_module_forward_pre_hook(self.enter),
            modules.register_module_forward_hook(self.leave),
        ]

    def look_away(self, now: float) -> None:
        """After a step: enough was seen, or it is time to look again."""
        if self.hooks:
            self.looks -= 1
            if self.looks <= 0:
                for hook in self.hooks:
                    hook.remove()
                self.hooks, self.looked, self.looks = [], now, 1
        elif now - self.looked > LOOK_SECONDS:
            self.look()

    def enter(self, module: Any, inputs: Any) -> None:
        if self.modules == 0 and module.training:
            sizes = [len(x) for x in inputs if hasattr(x, "dim") and x.dim() > 0]
            self.batch = sizes[0] if sizes else 0
        self.modules += 1

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.modules = max(0, self.modules - 1)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.depth += 1

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.depth -= 1
        self.modules = 0  # a forward pass that raised has left no trace of its end
        if self.depth == 0 and self.optimizer in (None, id(optimizer)):
            self.optimizer = id(optimizer)
            self.step()

    def step(self) -> None:
        now = time.time()
        self.look_away(now)
        if self.stepped != os.getpid():
            self.begin()
        if self.writer is None:
            return
        if not self.given:
            self.count(now)
        if now - self.published > PUBLISH_SECONDS:
            self.published = now
            self.publish()

    def count(self, now: float) -> None:
        if not self.writer.step:
            self.writer.phase = self.page.TRAINING
            self.writer.first_step_at = now
        self.writer.step += 1
        self.writer.samples += self.batch

    def begin(self) -> None:
        """The first step of this process: have the page, or one beside it."""
        self.stepped, self.writer = os.getpid(), None
        first = _claim(self.path + ".claim")
        self.open(self.path if first else "%s.%d" % (self.path, self.stepped), self.page.LOADING)

    def open(self, path: str, phase: int) -> None:
        """Make a page; a program whose page cannot be made runs without."""
        self.pid = os.getpid()
        try:
            self.writer = self.page.ProgressWriter(path)
        except OSError as error:
            if not self.failed:
                sys.stderr.write("rmixer: its steps are not counted: %s\n" % (error,))
            self.failed = True
            return
        self.writer.phase = phase
        self.publish()

    def publish(self) -> None:
        if self.writer is None or self.pid != os.getpid():
            return  # a forked child that has not stepped: the page is its parent's
        if self.stepped != self.pid and os.path.exists(self.path + ".claim"):
            return  # another process has stepped first
        with contextlib.suppress(Exception):  # statistics are not worth a program's end
            self.note_device()
        self.writer.publish()

    def note_device(self) -> None:
        """What the allocators of CUDA hold, and their peaks, whoever resets them meanwhile."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return
        now = reserved = allocated = 0
        for index in range(cuda.device_count()):
            stats = cuda.memory_stats(index)
            now += stats.get("reserved_bytes.all.current", 0)
            reserved += stats.get("reserved_bytes.all.peak", 0)
            allocated += stats.get("allocated_bytes.all.peak", 0)
        writer = self.writer
        writer.device_reserved_bytes = now
        writer.device_reserved_peak_bytes = max(writer.device_reserved_peak_bytes, reserved)
        writer.device_allocated_peak_bytes = max(writer.device_allocated_peak_bytes, allocated)


def _claim(path: str) -> bool:
    """Whether this process is the first to ask; also where nobody can ask."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


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
        self.recorder.costs.clear()

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
