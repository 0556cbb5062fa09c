"""Run a PyTorch program with its large tensors fake, and note the life of every storage.

Small tensors that the program makes on the host (ids, labels, counters) stay real, so that what
looks at their values works; parameters, everything at or above a size, and everything computed from
a fake tensor is fake: it has a shape but no memory. A program for a GPU runs with fake *CPU*
tensors that count as the GPU's (``logical``), since fake CUDA tensors need a driver.

Only torch and the standard library, Python 3.8 and later: this file is also loaded by path into
the interpreters of other people's programs, which need not have rmixer.
"""

import contextlib
import functools
import gzip
import importlib
import json
import os
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

SCHEMA_VERSION = 1
#: Host tensors from this size on are fake.
LARGE_BYTES = 1 << 20
#: Integers are ids, which say how many rows are touched: they stay real up to this size.
LARGE_INTEGERS = 1 << 26

FORWARD, BACKWARD, OPTIMIZER, EVALUATION = "forward", "backward", "optimizer", "evaluation"
PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer_state"
ACTIVATIONS, INPUTS, TEMPORARIES = "activations", "inputs", "temporaries"

#: What asks a sparse tensor for its parts, and which of the two.
_SPARSE_PARTS = {"_indices": 0, "indices": 0, "_values": 1, "values": 1}
_ABOUT_SPARSE = frozenset({*_SPARSE_PARTS, "is_coalesced", "_coalesce"})
_DEVICE = torch.ops.prim.device.default
#: In-place kernels without a rule for shapes in some versions; they allocate nothing.
_SILENT = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes tensors fake and writes down births and deaths of storages, in order.

    Args:
        logical: what fake tensors count as: ``cpu`` or ``cuda``.
        all_on_device: real tensors count as the device's too (inputs that a trainer would move).
        cost: called with (operator, arguments, result), returns (FLOPs, bytes moved, kernels).

    Attributes:
        events: ``["o", operator, phase, sizes]``, ``["a", storage]``, ``["f", storage]`` in order.
        costs: of each operator: calls, FLOPs, bytes moved, kernels.
        calls: how often a call of so many FLOPs, bytes moved and kernels was made.
        storages: by number: bytes, category, name, phase of birth, whether it is the host's.
    """

    def __init__(
        self,
        logical: str = "cpu",
        *,
        all_on_device: bool = True,
        large_bytes: int = LARGE_BYTES,
        cost: Optional[Callable[..., Tuple[float, float, int]]] = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.logical, self.all_on_device, self.large_bytes = logical, all_on_device, large_bytes
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.fake.static_shapes = True
        self.cost = cost
        self.events: List[List[Any]] = []
        self.storages: List[Dict[str, Any]] = []
        self.operators: Dict[str, int] = {}
        self.costs: Dict[str, List[float]] = {}
        self.calls: Dict[Tuple[float, float, int], int] = {}
        self.marks: List[List[Any]] = []
        self._live: Dict[int, Tuple[int, Any]] = {}  # by address of the C++ storage
        #: Whether fake tensors may be the host's.
        self._host = logical != "cpu" and not all_on_device
        self._on_host = False
        self._sparse: Any = WeakIdKeyDictionary()  # fake sparse tensor: its indices and values
        self._coalesced: Any = WeakIdKeyDictionary()
        self._denied: Any = WeakIdKeyDictionary()
        self._in_optimizer = 0
        self._last_phase = FORWARD
        self._modules: List[Any] = []
        self._roots: Dict[int, Any] = {}
        self._wanted = 0

    # --- every operator --------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # the backward pass asks for it at every turn
        packet = func.overloadpacket.__name__
        fakes = _has_fake(args, kwargs)
        if fakes and packet in ("_local_scalar_dense", "equal", "is_nonzero"):
            return True if packet == "equal" else self._answer(args[0])
        if packet in _SILENT:
            self._note(packet, args)
            return None if func._schema.returns == [] else args[0]
        self._note(packet, args)
        if fakes and packet in _ABOUT_SPARSE and args[0] in self._sparse:
            return self._of_sparse(packet, args[0])
        if fakes or self._wants_fake(func, args, kwargs):
            with self.fake:
                out = func(*args, **kwargs)
                self._follow_sparse(packet, args, kwargs, out)
            self._follow_truth(packet, args, out)
        else:
            out = func(*args, **kwargs)
        self._on_host = self._host and not self._wanted and self._all_host(args, kwargs)
        self._see(out, packet)
        self._on_host = False
        if packet in ("resize_", "set_", "resize_storage_bytes_"):
            self._see(args[0], packet)
        if self.cost is not None:
            self._add_cost(packet, func, args, kwargs, out)
        return out

    def _of_sparse(self, packet: str, tensor: torch.Tensor) -> Any:
        """What a sparse tensor whose parts are known answers; torch would say that it is empty."""
        if packet == "is_coalesced":
            return tensor in self._coalesced
        if packet == "_coalesce":
            return self._coalesce(tensor)
        part = self._sparse[tensor][_SPARSE_PARTS[packet]]
        return part.detach() if isinstance(part, FakeTensor) else part

    def _follow_sparse(self, packet: str, args: Any, kwargs: Any, out: Any) -> None:
        """Remember what a fake sparse tensor consists of; itself it says that it is empty."""
        if not isinstance(out, torch.Tensor) or out.layout != torch.sparse_coo:
            return
        if packet.startswith("_sparse_coo_tensor"):
            parts = [arg for arg in args if isinstance(arg, torch.Tensor)]
            if len(parts) == 2:
                self._sparse[out] = tuple(parts)
            if kwargs.get("is_coalesced"):
                self._coalesced[out] = True
            return
        known = [arg for arg in args if isinstance(arg, torch.Tensor) and arg in self._sparse]
        if len(known) == 2 and packet in ("add", "add_", "sub", "sub_"):
            pairs = zip(self._sparse[known[0]], self._sparse[known[1]])
            indices, values = (
                _keeping_real(functools.partial(torch.cat, pair, dim), *pair)
                for dim, pair in zip((1, 0), pairs)
            )
            self._sparse[out] = (indices, values)
            self._coalesced.pop(out, None)
        elif known and out not in self._sparse:
            indices, values = self._sparse[known[0]]
            if packet not in ("detach", "alias", "view_as", "_coalesced_"):
                indices, values = (_keeping_real(p.clone, p) for p in (indices, values))
            self._sparse[out] = (indices, values)
            if known[0] in self._coalesced:
                self._coalesced[out] = True
        elif out not in self._sparse:
            self._sparse[out] = self._rows_of(args, out)

    def _rows_of(self, args: Any, out: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """The parts of a gradient that an operator made whole: a row per index of its operands."""
        found = [
            arg for arg in args
            if isinstance(arg, torch.Tensor) and not arg.dtype.is_floating_point
        ]  # fmt: skip
        indices = max(found, key=lambda arg: arg.numel(), default=torch.empty(0, dtype=torch.int64))
        values = torch.empty((indices.numel(), *out.shape[1:]), dtype=out.dtype)
        if isinstance(indices, FakeTensor):
            return torch.empty((1, indices.numel()), dtype=torch.int64), values
        with _disable_current_modes():
            return indices.reshape(1, -1).to(torch.int64, copy=True), values

    def _coalesce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each row once: exactly where the indices are real, else as many as there were."""
        indices, values = self._sparse[tensor]
        with self.fake:
            if isinstance(indices, FakeTensor):
                indices, values = indices.clone(), values.clone()
            else:
                with _disable_current_modes():
                    indices = torch.unique(indices, dim=1)
                values = values.new_empty((indices.shape[1], *values.shape[1:]))
            out = torch.sparse_coo_tensor(
                indices, values, tensor.shape, is_coalesced=True, check_invariants=False
            )
        self._sparse[out] = (indices, values)
        self._coalesced[out] = True
        self._see(out, "_coalesce")
        return out

    def _follow_truth(self, packet: str, args: Any, out: Any) -> None:
        """Remember which questions are answered with no: whether something is NaN or infinite."""
        if not isinstance(out, FakeTensor) or out.dtype != torch.bool or not args:
            return
        others = [a for a in args[1:] if not isinstance(a, torch.Tensor)]
        extreme = any(isinstance(a, float) and not abs(a) < float("inf") for a in others)
        itself = len(args) > 1 and args[1] is args[0]
        denied = [a for a in args if isinstance(a, torch.Tensor) and a in self._denied]
        asked = packet in ("isnan", "isinf", "isposinf", "isneginf")
        asked = asked or (packet == "ne" and itself) or (packet == "eq" and extreme)
        if asked or (denied and packet not in ("logical_not", "bitwise_not")):
            self._denied[out] = True

    def _answer(self, tensor: torch.Tensor) -> Any:
        """A number of the right type in place of a value that nobody knows."""
        if tensor.dtype == torch.bool:
            return tensor not in self._denied
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _parts(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        """The dense tensors of which a tensor is made."""
        if tensor.layout == torch.sparse_coo:
            if tensor in self._sparse:
                return list(self._sparse[tensor])
            with torch.no_grad():
                return [tensor._indices(), tensor._values()]
        return [tensor] if tensor.layout == torch.strided else []

    def _wants_fake(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether something made of no fake tensor is too large to be real."""
        if any(isinstance(arg, torch.Tensor) for arg in pytree.tree_leaves((args, kwargs))):
            return False
        if self._wanted:
            return True
        size = _factory_bytes(func, args, kwargs)
        limit = self.large_bytes
        if _makes_numbers(func, kwargs):  # ids: what looks at them must find them
            limit = max(limit, LARGE_INTEGERS)
        return size >= limit

    def _all_host(self, args: Any, kwargs: Any) -> bool:
        """Whether no operand is the device's: then the result is the host's too."""
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, FakeTensor):
                for part in self._parts(leaf):
                    known = self._live.get(part.untyped_storage()._cdata)
                    if known is not None and not self.storages[known[0]]["host"]:
                        return False
        return True

    def _note(self, packet: str, args: Any) -> None:
        number = self.operators.setdefault(packet, len(self.operators))
        sizes = [
            [arg.numel(), arg.element_size()]
            for arg in args
            if isinstance(arg, torch.Tensor) and arg.layout == torch.strided
        ]
        phase = self.phase
        if phase == BACKWARD and self._last_phase == FORWARD:
            self.keep_activations()
        self._last_phase = phase
        self.events.append(["o", number, phase, sizes])

    @property
    def phase(self) -> str:
        """Which part of a step runs now."""
        if self._in_optimizer:
            return OPTIMIZER
        if torch._C._current_graph_task_id() != -1:
            return BACKWARD
        return FORWARD if not self._modules or self._modules[0].training else EVALUATION

    def _add_cost(self, packet: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        flops, moved, kernels = self.cost(func, args, kwargs, out)  # type: ignore[misc]
        total = self.costs.setdefault(packet, [0, 0.0, 0.0, 0])
        total[0] += 1
        total[1] += flops
        total[2] += moved
        total[3] += kernels
        if kernels:
            call = (flops, moved, kernels)
            self.calls[call] = self.calls.get(call, 0) + 1

    def clear_costs(self) -> None:
        """Count anew, so that the costs are those of one step."""
        self.costs.clear()
        self.calls.clear()

    # --- storages --------------------------------------------------------------------------------

    def _see(self, out: Any, packet: str) -> None:
        for tensor in pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                for part in self._parts(tensor):
                    self._storage(part, packet)

    def _storage(self, tensor: torch.Tensor, packet: str = "") -> Optional[int]:
        """The number of a tensor's storage; a new one is born here."""
        if not (self.all_on_device or isinstance(tensor, FakeTensor)):
            return None
        storage = tensor.untyped_storage()
        key, size = storage._cdata, int(storage.nbytes())
        known = self._live.get(key)
        if known is not None:
            if self.storages[known[0]]["bytes"] == size:
                return known[0]
            self._die(key)  # resized: the old memory goes once the new one is there
        number = len(self.storages)
        self.storages.append({
            "bytes": size, "category": "", "name": self._name(packet, tensor),
            "phase": self.phase, "host": self._on_host,
        })  # fmt: skip
        self._live[key] = (number, weakref.ref(storage, functools.partial(self._gone, key)))
        self.events.append(["a", number])
        return number

    def _gone(self, key: int, _: Any) -> None:
        self._die(key)

    def _die(self, key: int) -> None:
        number, _ = self._live.pop(key, (None, None))
        if number is not None:
            self.events.append(["f", number])

    def _name(self, packet: str, tensor: torch.Tensor) -> str:
        where = self._modules[-1] if self._modules and not self._in_optimizer else ""
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        return "\0%s\0%s [%s]" % (id(where) if where else "", packet, shape)

    def label(self, tensor: Any, category: str, name: str = "") -> None:
        """Say what a tensor is for."""
        if not isinstance(tensor, torch.Tensor):
            return
        for i, part in enumerate(self._parts(tensor)):
            number = self._storage(part, "")
            if number is None:
                continue
            kept = self.storages[number]
            if kept["category"] in ("", ACTIVATIONS):
                kept["category"] = category
                if name:
                    shape = "x".join(map(str, part.shape))
                    suffix = ("", " (values)")[i] if tensor.layout != torch.strided else ""
                    kept["name"] = "%s%s [%s]" % (name, suffix, shape)

    def label_all(self, tree: Any, category: str, name: str = "") -> None:
        """Say what all tensors of a container are for."""
        for tensor in _tensors(tree):
            self.label(tensor, category, name)

    def label_model(self, module: torch.nn.Module) -> None:
        """Its parameters and buffers, by their names."""
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            self.label(tensor, PARAMETERS, name)

    def label_optimizer(self, optimizer: Any, names: Dict[int, str]) -> None:
        """Its state, by the names of the parameters."""
        for param, state in optimizer.state.items():
            owner = names.get(id(param), "parameter")
            for key, value in state.items() if isinstance(state, dict) else ():
                self.label(value, STATE, "%s.%s" % (owner, key))

    def label_gradients(self, optimizer: Any, names: Dict[int, str]) -> None:
        """Gradients that wait for the optimizer."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                self.label(param, PARAMETERS, names.get(id(param), ""))
                if param.grad is not None:
                    owner = names.get(id(param), "parameter")
                    self.label(param.grad, GRADIENTS, owner + ".grad")

    def keep_activations(self) -> None:
        """What was born in the forward pass and is there when the backward pass begins."""
        for number, _ in self._live.values():
            storage = self.storages[number]
            if not storage["category"] and storage["phase"] == FORWARD:
                storage["category"] = ACTIVATIONS

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor counts as the device's."""
        if not isinstance(tensor, FakeTensor):
            return False
        number = self._storage(tensor)
        return number is not None and not self.storages[number]["host"]

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor that counts as a copy on the device."""
        with self.on_device():
            fake = torch.empty(tuple(tensor.shape), dtype=tensor.dtype)
        fake.requires_grad_(tensor.requires_grad)
        self.label(fake, INPUTS, "input")
        return fake

    def adopt_parameter(self, data: torch.Tensor) -> torch.Tensor:
        """What a parameter is made of: fake, and on the device, wherever it was filled."""
        if not isinstance(data, FakeTensor):
            data = self.fake.from_tensor(data)
        number = self._storage(data, "parameter")
        if number is not None:
            self.storages[number]["host"] = False
        return data

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """What is made within is fake, whatever its size."""
        self._wanted += 1
        try:
            yield
        finally:
            self._wanted -= 1

    def set_default_device(self, gpu: bool) -> None:
        """From here on what is made without a device is on the GPU, or on the host again."""
        self._wanted = 1 if gpu else 0

    def temporary(self, operator: str, elements: int, itemsize: int = 8) -> None:
        """Note an operator that torch does not see; ``estimate.temporaries`` has its memory."""
        number = self.operators.setdefault(operator, len(self.operators))
        self.events.append(["o", number, self.phase, [[0, 0], [elements, itemsize]]])

    def mark(self, what: str) -> None:
        """Note where in the events something begins."""
        self.marks.append([what, len(self.events)])

    def names(self) -> Dict[int, str]:
        """Names of the parameters of all modules that were called."""
        found: Dict[int, str] = {}
        for root in self._roots.values():
            for name, param in root.named_parameters():
                found.setdefault(id(param), name)
        return found

    # --- what the program sees -------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator["Recorder"]:
        """Everything that runs within is recorded."""
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=".*[Ff]ake.*")
            module = torch.nn.modules.module
            for handle in (
                optimizer.register_optimizer_step_pre_hook(self._before_step),
                optimizer.register_optimizer_step_post_hook(self._after_step),
                module.register_module_forward_pre_hook(self._enter_module),
                module.register_module_forward_hook(self._leave_module, always_call=True),
            ):
                stack.callback(handle.remove)
            stack.enter_context(_fake_parameters(self))
            if self.logical != "cpu":
                stack.enter_context(_gpu_paths())
            stack.enter_context(self)
            yield self

    def _enter_module(self, module: Any, _: Any) -> None:
        if not self._modules:
            self._roots[id(module)] = module
        self._modules.append(module)

    def _leave_module(self, module: Any, _: Any, __: Any) -> None:
        while self._modules and self._modules.pop() is not module:
            pass

    def _before_step(self, optimizer: Any, _: Any, __: Any) -> None:
        if not self._in_optimizer:
            self.label_gradients(optimizer, self.names())
        self._in_optimizer += 1

    def _after_step(self, optimizer: Any, _: Any, __: Any) -> None:
        self._in_optimizer -= 1
        if not self._in_optimizer:
            self.label_optimizer(optimizer, self.names())

    # --- the result ------------------------------------------------------------------------------

    def document(self) -> Dict[str, Any]:
        """The trace for JSON; ``rmixer.estimate.timeline`` reads it."""
        where = {"": ""}
        for root in self._roots.values():
            for name, module in root.named_modules():
                where.setdefault(str(id(module)), name or type(module).__name__)
        rows = []
        for storage in self.storages:
            name = storage["name"]
            if name.startswith("\0"):
                _, owner, rest = name.split("\0", 2)
                name = (where.get(owner, "") + " " + rest).strip()
            category = storage["category"] or TEMPORARIES
            rows.append([storage["bytes"], category, name, int(storage["host"])])
        return {
            "schema_version": SCHEMA_VERSION,
            "logical": self.logical,
            "torch": torch.__version__,
            "operators": list(self.operators),
            "storages": rows,
            "events": self.events,
            "marks": self.marks,
            "costs": self.costs,
            "calls": [[*call, count] for call, count in self.calls.items()],
        }


def write_document(path: str, document: Dict[str, Any]) -> None:
    """Write a document whole or not at all; compressed where the name ends in ``.gz``."""
    part = "%s.%d.part" % (path, os.getpid())
    opened: Any = gzip.open(part, "wt") if path.endswith(".gz") else open(part, "w")
    with opened as file:
        json.dump(document, file, separators=(",", ":"))
    os.replace(part, path)


# --- tensors --------------------------------------------------------------------------------------


def _has_fake(args: Any, kwargs: Any) -> bool:
    return any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves((args, kwargs)))


def _keeping_real(work: Callable[[], torch.Tensor], *parts: torch.Tensor) -> torch.Tensor:
    """Do something with parts that are all real outside the modes, so that the result is real."""
    if any(isinstance(part, FakeTensor) for part in parts):
        return work()
    with _disable_current_modes():
        return work()


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors of a container: mappings, sequences, dataclasses, objects with attributes."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, (list, tuple, set)):
        for value in tree:
            yield from _tensors(value)
    elif hasattr(tree, "__dataclass_fields__"):
        for name in tree.__dataclass_fields__:
            yield from _tensors(getattr(tree, name))
    elif hasattr(tree, "__dict__") and not callable(tree):
        yield from _tensors(vars(tree))


def _factory_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """How large a tensor a factory is about to make, at most; 0 where it makes none."""
    sizes = [arg for arg in args if isinstance(arg, (list, tuple, torch.Size))]
    numbers = [arg for arg in args if isinstance(arg, (int, float)) and not isinstance(arg, bool)]
    count = 1
    if sizes and all(isinstance(n, int) for n in sizes[0]):
        for n in sizes[0]:
            count *= n
    elif func.overloadpacket.__name__.startswith(("arange", "range", "linspace", "eye")):
        count = int(max([abs(n) for n in numbers], default=0))
    elif numbers:
        count = int(max(numbers)) if func.overloadpacket.__name__ == "randperm" else 0
    else:
        return 0
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return count * torch.empty(0, dtype=dtype, device="meta").element_size()


def _makes_numbers(func: Any, kwargs: Any) -> bool:
    """Whether a factory makes integers."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    return func.overloadpacket.__name__ in ("randint", "randperm", "arange")


@contextlib.contextmanager
def _fake_parameters(recorder: Recorder) -> Iterator[None]:
    """Parameters are fake whatever their size, so that all that is computed from them is."""
    parameter = torch.nn.Parameter
    original = parameter.__new__

    def make(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if isinstance(data, torch.Tensor):
            data = recorder.adopt_parameter(data)
        return original(cls, data, requires_grad)

    parameter.__new__ = staticmethod(make)  # type: ignore[method-assign]
    try:
        yield
    finally:
        parameter.__new__ = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _gpu_paths() -> Iterator[None]:
    """Optimizers take the path they would take on a GPU: many tensors in one kernel.

    torch chooses it by the type and the device of the parameters; fake ones have neither.
    """
    module: Any = importlib.import_module("torch.optim.optimizer")
    devices = module._get_foreach_kernels_supported_devices
    types = module._foreach_supported_types
    module._get_foreach_kernels_supported_devices = lambda: [*devices(), "cpu"]
    types.append(FakeTensor)
    try:
        yield
    finally:
        types.remove(FakeTensor)
        module._get_foreach_kernels_supported_devices = devices
