"""A trace of storages played through an allocator: peaks, what they consist of, where they are.

The trace is the document of ``rmixer.trace.recorder``: operators, storages, and in order the
operators that ran and the storages that were born and died. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rmixer.errors import UsageError
from rmixer.estimate.allocator import CachingAllocator
from rmixer.estimate.blocks import AllocatorSettings, OutOfMemory
from rmixer.estimate.heap import Heap, HeapSettings
from rmixer.estimate.temporaries import PRODUCTS, temporary_bytes

SCHEMA_VERSION = 1
CATEGORIES = (
    "parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries",
)  # fmt: skip
LARGEST = 5


@dataclass(frozen=True, slots=True)
class Tensor:
    """A living storage at the peak."""

    name: str
    category: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest that a trace reached.

    Attributes:
        allocated: sum of the living blocks at most, bytes.
        reserved: what the allocator held at most (GPU: reserved segments; CPU: resident heap).
        by_category: the living storages at the moment of ``allocated``, by what they are for.
        operator: that ran then.
        phase: forward, backward, optimizer or evaluation.
        largest: the five largest living storages then.
    """

    allocated: int
    reserved: int
    by_category: Mapping[str, int] = field(default_factory=dict)
    operator: str = ""
    phase: str = ""
    largest: Sequence[Tensor] = ()


@dataclass(frozen=True)
class _Layout:
    """Small objects that torch makes on the host, bytes each, of the order of their classes' sizes.

    They lie between the tensors and keep holes apart. Which of them fills which gap decides what
    fits later, so a heap is chaotic: the same program ends up to 7 % apart from run to run.

    Attributes:
        nodes: before a result of the forward pass, until the graph is dropped, which is when the
            next one is complete (Node, its edges, saved variables).
        around: after a tensor's memory, as long as it lives (StorageImpl, TensorImpl, sizes).
        meanwhile: while an operator runs.
    """

    nodes: Sequence[int]
    around: Sequence[int]
    meanwhile: Sequence[int] = (24, 40, 80, 88, 200)


#: Plausible layouts; the largest peak of them counts. How near that comes: docs/memory.md.
_LAYOUTS = (
    _Layout(nodes=(300, 24, 40, 112, 80), around=(24, 40, 80, 88, 100, 200)),
    _Layout(nodes=(300, 24, 40, 112), around=(24, 40, 80, 100, 200)),
    _Layout(nodes=(300, 24, 40, 80), around=(40, 104, 200)),
)


#: The holes that a heap may have, as a multiple of what the layouts show. The same training ends
#: with different ones: five runs of DMR 590 to 673 MiB, of DIEN 414 or 450 (2-core x86 VM). With
#: 1.5 no configuration of docs/memory.md takes 5 % more than was estimated, and the mean error is
#: 2.7 %; with 1 four of 68 do, and it is 1.7 %.
HOLES = 1.5


class _Host:
    """A heap whose tensors come with their small objects."""

    def __init__(self, heap: Heap, layout: _Layout) -> None:
        self._heap, self._layout = heap, layout
        self._around: dict[int, list[int]] = {}
        self._nodes: list[int] = []  # of the graph that is being built
        self._graph: list[int] = []  # of the last one that was complete
        self._phase = "forward"

    def alloc(self, requested: int) -> int:
        if self._phase == "forward":
            self._nodes += [self._heap.small(size) for size in self._layout.nodes]
        handle = self._heap.alloc(requested)
        self._around[handle] = [self._heap.small(size) for size in self._layout.around]
        return handle

    def free(self, handle: int) -> None:
        self._heap.free(handle)
        for small in self._around.pop(handle):
            self._heap.free(small)

    def operator(self, phase: str) -> None:
        if phase == "backward" and self._phase != "backward":
            for small in self._graph:
                self._heap.free(small)
            self._graph, self._nodes = self._nodes, []
        self._phase = phase
        if self._heap.keeps_small:  # else all merges again with what it came from
            for handle in [self._heap.small(size) for size in self._layout.meanwhile]:
                self._heap.free(handle)


class _Allocator(Protocol):
    def alloc(self, requested: int, /) -> int: ...
    def free(self, address: int, /) -> None: ...


def gpu_peak(
    trace: Mapping[str, Any],
    *,
    workspace: int = 0,
    settings: AllocatorSettings | None = None,
    limit_bytes: int | None = None,
) -> Peak:
    """The peak on a GPU with PyTorch's caching allocator.

    Args:
        trace: of the program.
        workspace: bytes of cuBLAS's workspace; taken once by the forward and once by the backward
            pass, which run in threads of their own.
        settings: of the allocator.
        limit_bytes: what the device has; cached memory is given back before it is exceeded.

    Raises:
        OutOfMemory: the limit is too small.
        UsageError: not a trace.
    """
    allocator = CachingAllocator(settings, limit_bytes=limit_bytes)
    run = _Run(trace, allocator, gpu=True, workspace=workspace)
    run.play(lambda: allocator.allocated_bytes)
    return run.peak(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def sum_costs(costs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """``flops``, ``moved_bytes`` and ``kernels`` of all operators of a trace."""
    names = ("flops", "moved_bytes", "kernels")
    return {name: sum(row[i + 1] for row in costs.values()) for i, name in enumerate(names)}


def why_not(
    trace: Mapping[str, Any],
    workspace: int,
    limit: int | None,
    settings: AllocatorSettings | None = None,
) -> str | None:
    """Why a GPU is too small, also after cached memory is given back; None if it is not."""
    if limit is None:
        return None
    try:
        gpu_peak(trace, workspace=workspace, settings=settings, limit_bytes=limit)
    except OutOfMemory as error:
        return str(error)
    return None


def host_peak(trace: Mapping[str, Any], settings: HeapSettings | None = None) -> Peak:
    """The peak on the host with glibc's allocator. ``reserved`` is what is resident.

    Raises:
        UsageError: not a trace.
    """
    played = [_play_on_host(trace, settings, layout) for layout in _LAYOUTS]
    run, heap = max(played, key=lambda both: both[1].peak_resident_bytes)
    live = heap.peak_live_bytes
    return run.peak(live, live + int(HOLES * (heap.peak_resident_bytes - live)))


def _play_on_host(
    trace: Mapping[str, Any], settings: HeapSettings | None, layout: _Layout
) -> tuple[_Run, Heap]:
    heap = Heap(settings)
    host = _Host(heap, layout)
    run = _Run(trace, host, gpu=False, workspace=0, on_operator=host.operator)
    run.play(lambda: heap.live_bytes)
    return run, heap


class _Run:
    """One trace going through one allocator."""

    def __init__(
        self,
        trace: Mapping[str, Any],
        allocator: _Allocator,
        *,
        gpu: bool,
        workspace: int,
        on_operator: Callable[[str], None] = lambda _: None,
    ) -> None:
        if trace.get("schema_version") != SCHEMA_VERSION:
            found = trace.get("schema_version")
            raise UsageError(f"a trace of version {SCHEMA_VERSION} is needed, not {found!r}")
        self.trace, self.allocator, self.gpu, self.workspace = trace, allocator, gpu, workspace
        self.on_operator = on_operator
        self.addresses: dict[int, int] = {}
        self.operator = self.phase = ""
        self.highest = -1
        self.moment: tuple[int, str, str, int, int] = (0, "", "", 0, 0)
        self.warm: set[str] = set()

    def play(self, allocated: Any) -> None:
        """Everything in order; remembers when most was allocated."""
        operators, storages = self.trace["operators"], self.trace["storages"]
        workspaces = 0
        for at, event in enumerate(self.trace["events"]):
            kind = event[0]
            if kind == "a":
                if self.elsewhere(event[1]) or not storages[event[1]][0]:
                    continue
                self.addresses[event[1]] = self.allocator.alloc(storages[event[1]][0])
                extra = 0
            elif kind == "f":
                if event[1] in self.addresses:
                    self.allocator.free(self.addresses.pop(event[1]))
                continue
            else:
                self.operator, self.phase = operators[event[1]], event[2]
                self.on_operator(self.phase)
                workspaces += self._workspace()
                extra = temporary_bytes(self.operator, event[3], gpu=self.gpu)
                if not extra:
                    continue
                address = self.allocator.alloc(extra)
            now = allocated()
            if now > self.highest:
                self.highest = now
                self.moment = (at, self.operator, self.phase, extra, workspaces)
            if extra:
                self.allocator.free(address)

    def elsewhere(self, number: int) -> bool:
        """Whether a storage of a program for a GPU is on the other side: host or device."""
        if self.trace["logical"] == "cpu":
            return False
        return bool(self.trace["storages"][number][3]) == self.gpu

    def _workspace(self) -> int:
        """CuBLAS takes its workspace with the first product of a thread, and keeps it."""
        thread = "backward" if self.phase == "backward" else "main"
        if not self.workspace or self.operator not in PRODUCTS or thread in self.warm:
            return 0
        self.warm.add(thread)
        self.allocator.alloc(self.workspace)
        return self.workspace

    def peak(self, allocated: int, reserved: int) -> Peak:
        """What was alive when most was."""
        last, operator, phase, extra, workspaces = self.moment
        storages = self.trace["storages"]
        alive: dict[int, None] = {}
        for event in self.trace["events"][: last + 1]:
            if event[0] == "a" and not self.elsewhere(event[1]):
                alive[event[1]] = None
            elif event[0] == "f":
                alive.pop(event[1], None)
        sums = dict.fromkeys(CATEGORIES, 0)
        for number in alive:
            sums[storages[number][1]] += storages[number][0]
        sums["temporaries"] += extra + workspaces
        order = sorted(alive, key=lambda number: (-storages[number][0], number))[:LARGEST]
        largest = tuple(Tensor(storages[n][2], storages[n][1], storages[n][0]) for n in order)
        return Peak(
            allocated=allocated,
            reserved=reserved,
            by_category=sums,
            operator=operator,
            phase=phase,
            largest=largest,
        )
