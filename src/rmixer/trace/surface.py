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
_VALUES = ("numpy", "tolist", "__array__")


class Surface(TorchFunctionMode):
    """Rewrites devices, and answers questions about values.

    Args:
        recorder: whose fake mode is used.
    """

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder

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
        if wanted:
            with self.recorder.on_device():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

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
    if _is_gpu(kwargs.get("device")):
        wanted = True
        kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    return tuple(rest), kwargs, wanted


@contextlib.contextmanager
def as_if_gpu() -> Iterator[None]:
    """``torch.cuda`` answers as on a machine with one GPU; ``Module.to`` a GPU is no move."""
    replaced = []
    for owner, name, value in _answers():
        if hasattr(owner, name):
            replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)


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
    }  # fmt: skip
    for name, value in constants.items():
        yield cuda, name, lambda *_, value=value, **__: value


_original_to, _original_autocast = torch.nn.Module.to, torch.autocast.__init__


def _module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
    rest, more, _ = _without_gpu(args, kwargs)
    more = {key: value for key, value in more.items() if key != "non_blocking"}
    rest = tuple(arg for arg in rest if not isinstance(arg, bool))
    return _original_to(self, *rest, **more) if rest or more else self


def _autocast(self: Any, device_type: Any = "cuda", *args: Any, **kwargs: Any) -> None:
    if device_type == "cuda":
        device_type = "cpu"
        if not args and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float16
    _original_autocast(self, device_type, *args, **kwargs)
