"""What the launcher counts in a process: iterations, samples, seconds per phase, CUDA's peak.

Standard library only, Python 3.8 and later; torch is used where the program has imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import warnings
import weakref
import zlib
from threading import get_ident
from time import time
from typing import Any, Callable, Dict, Iterator, List, Optional

#: How often what costs more than a step may is asked: the allocators of CUDA, the process group.
ASK_SECONDS = 0.05
#: Batches are looked at in the first steps, then in one step every so often: a hook that sees every
#: module costs some microseconds for each of them.
FIRST_STEPS, LOOK_SECONDS = 8, 2.0
#: An evaluation is shown as a phase if the last one took this long: many short ones are training.
LONG_EVALUATION_SECONDS = 1.0
#: What torch says of hooks such as ours where a module is compiled; they bear it.
_COMPILED = r"Using `torch\.compile\(module\)` when there are global hooks"
#: How deep tensors are looked for in what a model takes and gives.
_DEPTH = 3


class Counter:
    """Publishes how far a process is, in every step.

    One process of a job has the page of that name: the first that steps; before any has stepped,
    the first that has imported torch. The others have pages of their own beside it.

    Args:
        path: of the progress page.
        page: the module `page`.
        iterations: makes what turns steps into iterations.
        phases: makes the clock, of what to call at the model's ``eval()``.
    """

    def __init__(
        self, path: str, page: Any, iterations: Callable[[], Any], phases: Callable[..., Any]
    ) -> None:
        self.path, self.page, self.new_iterations = path, page, iterations
        self.iterations = iterations()
        self.phases = phases(self.evaluating)
        self.samples = Samples(self.phases.call)
        self.writer: Any = None
        self.mine = self.stepped = False  # whether this process has the page, and has stepped
        self.failed = self.installed = self.given = False
        self.training = page.TRAINING
        self.depths: Dict[int, int] = {}  # per thread: how many optimizers step, one in another
        self.asked = self.eval_at = 0.0
        self.evaluations_are_long = True

    def give(self) -> Any:
        """The page of this process; what it says from here on is not counted but told."""
        if not self.stepped:
            self.begin()
        self.given = True
        return self.writer

    def install(self) -> None:
        """Put the hooks into torch, which the program has just imported."""
        self.installed = True
        if not os.path.exists(self.path):  # so that a reader sees a program that may step
            self.open(self.path, self.page.STARTING)  # which may be all that it does
        hooks = importlib.import_module("torch.optim.optimizer")
        hooks.register_optimizer_step_pre_hook(self.before)
        hooks.register_optimizer_step_post_hook(self.after)
        with _said("its phases are not measured"):
            self.phases.install(sys.modules["torch"])
        warnings.filterwarnings("ignore", _COMPILED)
        self.samples.look()
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self.forked)

    # --- what the hooks call ---------------------------------------------------------------------

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        thread = get_ident()
        depth = self.depths.get(thread, 0)
        if depth:  # one is inside of another, or the last one has raised
            depth = _nesting(sys._getframe(1)) - 1
        self.depths[thread] = depth + 1
        if depth == 0 and thread == self.phases.thread:
            self.phases.before_step()

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        thread = get_ident()
        depth = self.depths[thread] = self.depths.get(thread, 1) - 1
        if depth <= 0:
            if thread == self.phases.thread:
                self.phases.after_step()
            self.step(optimizer)

    def evaluating(self) -> None:
        self.eval_at = time()
        if self.writer is not None and self.stepped and self.evaluations_are_long:
            self.writer.phase = self.page.EVALUATING
            self.publish()

    # --- counting --------------------------------------------------------------------------------

    def step(self, optimizer: Any) -> None:
        """An outermost step is done."""
        now = time()
        if not self.stepped:
            self.begin()
        writer, phases, samples = self.writer, self.phases, self.samples
        if phases.fetched:
            self.iterations.on_new_batch, phases.fetched = True, False
        steps = self.iterations.step(optimizer)
        if steps and (samples.hooks or now > samples.next_look):
            samples.next(now)
        if writer is None:
            return
        if steps and not self.given:
            writer.step += steps
            writer.samples += steps * samples.batch
        writer.publish_step(now, phases.input, phases.forward, phases.backward, phases.optimizer)
        if writer.phase != self.training or now - self.asked > ASK_SECONDS:
            self.seldom(now)

    def seldom(self, now: float) -> None:
        """What costs more than a step may, and what changes seldom."""
        writer, self.asked = self.writer, now
        if not writer.first_step_at:
            writer.first_step_at = now
        if self.eval_at:
            self.evaluations_are_long = now - self.eval_at > LONG_EVALUATION_SECONDS
            self.eval_at = 0.0
        writer.phase = self.training
        self.ask()
        self.publish()

    def publish(self) -> None:
        writer, phases = self.writer, self.phases
        writer.input_seconds, writer.forward_seconds = phases.input, phases.forward
        writer.backward_seconds, writer.optimizer_seconds = phases.backward, phases.optimizer
        writer.publish()

    def forked(self) -> None:
        """This is a child now; what it has inherited is its parent's."""
        self.mine = self.stepped = self.given = False
        self.iterations = self.new_iterations()
        self.depths.clear()
        self.phases.reset()
        self.samples.again()

    def begin(self) -> None:
        """The first step of this process: have the page, or one beside it."""
        self.stepped, self.writer = True, None
        self.phases.thread = get_ident()
        self.open(self.page.claim(self.path), self.page.LOADING)
        _at_exit_of_a_child(self.end)

    def open(self, path: str, phase: int) -> None:
        """Make a page; a program whose page cannot be made runs without."""
        self.mine = True
        try:
            self.writer = self.page.ProgressWriter(path)
        except OSError as error:
            if not self.failed:
                sys.stderr.write("rmixer: its steps are not counted: %s\n" % (error,))
            self.failed = True
            return
        self.writer.phase = phase
        self.writer.publish()

    def end(self) -> None:
        """The program ends."""
        if self.writer is None or not self.mine:
            return  # a forked child that has not stepped: the page is its parent's
        if not self.stepped:
            if not os.path.exists(self.path + self.page.CLAIM_SUFFIX):  # no other has stepped
                self.ask()
                self.writer.publish()
            return
        rest = 0 if self.given else self.iterations.rest()
        self.writer.step += rest
        self.writer.samples += rest * self.samples.batch
        self.writer.phase = self.page.DONE
        self.ask()
        self.publish()

    def ask(self) -> None:
        with contextlib.suppress(Exception):  # statistics are not worth a program's end
            self.note_device()
            if not self.writer.group:
                self.writer.group = process_group()

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


class Samples:
    """The samples of an iteration: those of the model's batches, seen by hooks on all modules.

    The model is the outermost module that trains; of several (generator and discriminator) the one
    that is called first. Its batches between two iterations add up, as where gradients are
    accumulated; one batch that is passed twice counts once.

    Args:
        on_call: is told of each call of an outermost module that trains.

    Attributes:
        batch: samples of the newest iteration that was looked at.
    """

    def __init__(self, on_call: Callable[[Any], None]) -> None:
        self.on_call = on_call
        self.batch = self.seen = 0
        self.hooks: List[Any] = []
        self.looks, self.next_look = FIRST_STEPS, 0.0
        self.depth = 0
        self.model: Any = None
        self.inside: Any = None  # the model, while it is called and its batch is not known
        self.tensor: Callable[[], Any] = _nothing

    def look(self) -> None:
        """See the batches of the next steps."""
        modules = importlib.import_module("torch.nn.modules.module")
        self.hooks = [
            modules.register_module_forward_pre_hook(self.enter),
            modules.register_module_forward_hook(self.leave),
        ]

    def again(self) -> None:
        """Look as at the beginning."""
        self.looks = FIRST_STEPS
        if not self.hooks:
            self.look()

    def next(self, now: float) -> None:
        """An iteration is done: enough was seen, or it is time to look again."""
        self.depth = 0  # a forward pass that raised has left no trace of its end
        if not self.hooks:
            self.look()
            return
        self.batch, self.seen = self.seen, 0
        self.model = self.inside = None
        self.looks -= 1
        if self.looks <= 0:
            for hook in self.hooks:
                hook.remove()
            self.hooks, self.looks = [], 1
            self.next_look = now + LOOK_SECONDS

    def enter(self, module: Any, inputs: Any) -> None:
        if self.depth == 0 and module.training:
            self.on_call(module)
            if self.model is None:
                self.model = module
            if self.model is module and not self.take(inputs):
                self.inside = module
        self.depth += 1

    def leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.inside is module and self.depth == 0:
            self.inside = None
            self.take(output)

    def take(self, values: Any) -> bool:
        """Whether there is a tensor with samples among the values."""
        tensor = first_tensor(values)
        if tensor is None:
            return False
        if self.tensor() is not tensor:
            self.tensor = weakref.ref(tensor)
            self.seen += len(tensor)
        return True


def _nesting(frame: Any) -> int:
    """How many of the frames below run the same code: torch's wrapper of an optimizer's step."""
    code, depth = frame.f_code, 0
    while frame is not None:
        depth += frame.f_code is code
        frame = frame.f_back
    return depth


def first_tensor(values: Any, depth: int = _DEPTH) -> Any:
    """The first tensor with a dimension, also inside of lists, dicts and objects; None if none."""
    if hasattr(values, "dim"):
        return values if values.dim() > 0 else None
    if depth:
        for value in _parts(values):
            found = first_tensor(value, depth - 1)
            if found is not None:
                return found
    return None


def _parts(values: Any) -> Iterator[Any]:
    if isinstance(values, (list, tuple)):
        return iter(values)
    if hasattr(values, "values") and callable(values.values):
        with contextlib.suppress(Exception):  # it is no dict
            return iter(list(values.values()))
    return iter(list(getattr(values, "__dict__", {}).values()))


def process_group() -> int:
    """A number that the processes of one distributed training share; 0 outside of one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    if distributed.get_world_size() == 1:
        return 0
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return zlib.crc32(":".join(os.environ.get(name, "") for name in names).encode()) + 1


def _at_exit_of_a_child(function: Callable[[], None]) -> None:
    """Children of ``multiprocessing`` end without `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, function, exitpriority=0)


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """A version of torch that is built otherwise costs what is said, not the program."""
    try:
        yield
    except Exception as error:
        sys.stderr.write("rmixer: %s: %r\n" % (what, error))


def _nothing() -> Optional[Any]:
    """The tensor before there is one."""
    return None
