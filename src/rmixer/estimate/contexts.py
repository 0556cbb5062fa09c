"""What a GPU process holds that no allocator of PyTorch knows: the CUDA context and its kernels.

It cannot be derived: it depends on the GPU, the driver, and the kernels that torch has loaded. It
is measured once per kind of GPU and version of torch (``rmixer doctor --measure-context``) and kept
in the store; until then a stated value stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmixer.errors import UsageError
from rmixer.estimate.temporaries import CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_HOPPER
from rmixer.spec.identity import version

#: The upper end of what was found on cards from K80 to H100 with torch 1.x and 2.x: 0.3 to 1.1 GB.
STATED_CONTEXT = 1_100_000_000

#: Parts of the names of GPUs of compute capability 9 and higher.
_HOPPER_OR_NEWER = ("H100", "H200", "H800", "H20", "GH200", "B100", "B200", "GB200", "B300")


@dataclass(frozen=True, slots=True)
class Context:
    """Bytes of a context and where the figure is from: ``measured`` or ``stated``."""

    bytes: int
    source: str


STATED = Context(STATED_CONTEXT, "stated")


def context_of(measured: int | None) -> Context:
    """The context that was measured for a GPU, else the stated one."""
    return Context(measured, "measured") if measured else STATED


def context_key(kind: str) -> str:
    """What a measured context is kept under: the kind of GPU and the version of torch."""
    return f"{kind}/{version('torch') or 'none'}"


def device_name(text: str) -> str:
    """``cpu``, ``cuda``, or a kind of GPU: how the words for a device are understood.

    Raises:
        UsageError: the text names nothing that is a device.
    """
    name = text.strip()
    if not name:
        raise UsageError("device: write cpu, cuda, or the name of a GPU")
    plain = name.lower().partition(":")[0]
    if plain in ("cpu", "cuda", "gpu"):
        return "cpu" if plain == "cpu" else "cuda"
    if not any(char.isdigit() for char in name):  # A100, T4, RTX 4090, H200
        raise UsageError(f"device {name!r}: write cpu, cuda, or a GPU's name, for example T4")
    return name


def cublas_workspace(kind: str) -> int:
    """Bytes that cuBLAS's workspace takes per thread on a kind of GPU; the larger if not known."""
    known = any(char.isdigit() for char in kind)
    if not known or any(name in kind.upper() for name in _HOPPER_OR_NEWER):
        return CUBLAS_WORKSPACE_HOPPER
    return CUBLAS_WORKSPACE
