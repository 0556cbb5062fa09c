"""What a program may do with tensors that torch would answer before any operator runs.

Moves to a GPU and tensors made on one become fake CPU tensors that count as the GPU's; the values
of a fake tensor (``numpy``, ``tolist``) are zeros, since nobody knows them.

Only torch and the standard library, Python 3.8 and later, like `rmixer.trace.recorder`.
"""

import contextlib
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

#: Values of at most this size are handed out as zeros.
ANSWERED_BYTES = 1 << 28
_VALUES = ("numpy", "tolist", "__array__", "__format__")


class Surface(TorchFunctionMode):
    """Rewrites devices, answers questions about values, and keeps fake values out of files.

    Args:
        recorder: whose fake mode is used.
    """

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder
        self._replaced = contextlib.ExitStack()

    def __enter__(self) -> Any:
        replacements = [(torch.nn.Module, "_apply", _apply), (torch, "save", _save)]
        if self.recorder.logical != "cpu":
            replacements.append((torch, "set_default_device", self._set_default_device))
        self._replaced.enter_context(_put(replacements))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._replaced.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _VALUES and args and isinstance(args[0], FakeTensor):
            return getattr(_zeros(args[0]), name)(*args[1:], **kwargs)
        if self.recorder.logical == "cpu" or func is torch.device:
            return func(*args, **kwargs)
        if name in ("to", "cuda", "cpu") and args and isinstance(args[0], torch.Tensor):
            return self._move(name, func, args, kwargs)
        if name == "pin_memory" and args:
            return args[0]
        if name == "__get__" and args and isinstance(args[0], FakeTensor):
            return self._attribute(func, args, kwargs)
        args, kwargs, wanted = _without_gpu(args, kwargs)
        if not wanted:
            return func(*args, **kwargs)
        with self.recorder.on_device():
            out = func(*args, **kwargs)
        return self._on_device(out)

    def _on_device(self, out: Any) -> Any:
        """What was asked for on the GPU, also where it was made of values on the host."""
        if isinstance(out, torch.Tensor) and not self.recorder.is_on_device(out):
            return self.recorder.to_device(out)
        return out

    def _set_default_device(self, device: Any) -> None:
        self.recorder.set_default_device(_is_gpu(device) or isinstance(device, int))

    def _attribute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``tensor.device`` and ``tensor.is_cuda`` of what counts as the GPU's."""
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if attribute == "is_cuda":
            return self.recorder.is_on_device(args[0])
        return func(*args, **kwargs)

    def _move(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, rest = args[0], args[1:]
        if name == "cpu":
            return _zeros(tensor) if isinstance(tensor, FakeTensor) else tensor
        if rest and isinstance(rest[0], int) and not isinstance(rest[0], bool):
            rest = ("cuda", *rest[1:])  # a GPU by its number
        rest, kwargs, wanted = _without_gpu(rest, kwargs)
        wanted = wanted or name == "cuda"
        if name == "cuda":
            rest, kwargs = (), {}
        elif isinstance(tensor, FakeTensor) and not wanted and _names_cpu(args[1:], kwargs):
            return _zeros(tensor)
        if wanted and not self.recorder.is_on_device(tensor):
            tensor = self.recorder.to_device(tensor)
        if name == "cuda" or not (rest or _says_more(kwargs)):
            return tensor
        return func(tensor, *rest, **kwargs)


def _says_more(kwargs: Dict[str, Any]) -> bool:
    return any(key in kwargs for key in ("dtype", "other", "memory_format", "copy"))


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor in place of a fake one; raises where it would be large."""
    if tensor.numel() * tensor.element_size() > ANSWERED_BYTES:
        raise MemoryError("the values of a tensor of %s are needed" % (tuple(tensor.shape),))
    with _no_modes():
        return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)


@contextlib.contextmanager
def _no_modes() -> Iterator[None]:
    from torch._C import DisableTorchFunction
    from torch.utils._python_dispatch import _disable_current_modes

    with DisableTorchFunction(), _disable_current_modes():
        yield


def _is_gpu(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _names_cpu(args: Any, kwargs: Any) -> bool:
    values = [*args, kwargs.get("device")]
    return any(
        (isinstance(v, torch.device) and v.type == "cpu") or (isinstance(v, str) and v == "cpu")
        for v in values
    )


def _without_gpu(args: Any, kwargs: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any], bool]:
    """The call without its GPU, and whether it had one."""
    wanted = False
    rest: List[Any] = []
    for arg in args:
        if _is_gpu(arg):
            wanted = True
        else:
            rest.append(arg)
    device = kwargs.get("device")
    if _is_gpu(device) or (isinstance(device, int) and not isinstance(device, bool)):
        wanted = True
        kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    return tuple(rest), kwargs, wanted


@contextlib.contextmanager
def as_if_gpu() -> Iterator[None]:
    """``torch.cuda`` answers as on a machine with one GPU; ``Module.to`` a GPU is no move."""
    with _put(list(_answers())):
        yield


@contextlib.contextmanager
def _put(replacements: List[Tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes replaced for a while."""
    replaced = []
    for owner, name, value in replacements:
        if hasattr(owner, name):
            replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)


def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
    """``Module._apply`` for fake parameters, which torch cannot swap: converted ones are new."""
    for module in self.modules() if recurse else [self]:
        for key, param in module._parameters.items():
            if param is not None:
                with torch.no_grad():
                    made = fn(param)
                if made is not param and made.dtype != param.dtype:
                    module._parameters[key] = torch.nn.Parameter(made, param.requires_grad)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = fn(buffer)
    return self


def _save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """In place of ``torch.save``: what has no values must not replace a file that has."""


class _Properties:
    """Of the GPU that is not there; its memory is as large as one needs."""

    name, major, minor, multi_processor_count = "GPU", 8, 0, 108
    total_memory = 1 << 40


class _Timer:
    """In place of CUDA's events and streams, as a context too."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _answers() -> Iterator[Tuple[Any, str, Any]]:
    """What is put in place of what: owner, name, stand-in."""
    cuda = torch.cuda
    yield torch.nn.Module, "to", _module_to
    yield torch.nn.Module, "cuda", lambda self, device=None: self
    yield torch.autocast, "__init__", _autocast
    constants = {
        "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True,
        "get_device_name": "GPU", "get_device_capability": (8, 0), "memory_allocated": 0,
        "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0,
        "synchronize": None, "set_device": None, "empty_cache": None, "manual_seed": None,
        "manual_seed_all": None, "reset_peak_memory_stats": None, "init": None, "_lazy_init": None,
        "get_device_properties": _Properties(), "mem_get_info": (1 << 40, 1 << 40),
        "current_stream": _Timer(), "default_stream": _Timer(), "stream": _Timer(),
    }  # fmt: skip
    yield cuda, "Event", _Timer
    yield cuda, "Stream", _Timer
    for name, value in constants.items():
        yield cuda, name, lambda *_, value=value, **__: value


_original_to, _original_autocast = torch.nn.Module.to, torch.autocast.__init__


def _module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
    rest, more, _ = _without_gpu(args, kwargs)
    more = {key: value for key, value in more.items() if key != "non_blocking"}
    rest = tuple(arg for arg in rest if not isinstance(arg, int))  # a GPU's number, non_blocking
    return _original_to(self, *rest, **more) if rest or more else self


def _autocast(self: Any, device_type: Any = "cuda", *args: Any, **kwargs: Any) -> None:
    if device_type == "cuda":
        device_type = "cpu"
        if not args and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float16
    _original_autocast(self, device_type, *args, **kwargs)
