"""What one operator costs: FLOPs, bytes of memory moved, kernels. From shapes alone.

FLOPs are those of ``torch.utils.flop_counter`` (matrix products, convolutions, attention; 2 per
multiply-add). Bytes are what a kernel that touches every operand once would move. Rules for what
does not touch all of an operand: a gather reads the rows that it returns, a scatter writes the rows
that it is given, a view moves nothing. A foreach operator is one kernel per `FOREACH_TENSORS`
tensors (``torch/csrc`` ``ForeachFunctors``: the chunk table of ``multi_tensor_apply`` holds 48 to
110 tensors, depending on how many lists it is given).
"""

from typing import Any, List, Set, Tuple

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

FOREACH_TENSORS = 64

#: Reads of the first operand only what is returned (and the index).
GATHERS = frozenset({"embedding", "index_select", "gather", "index", "_embedding_bag", "take"})
#: Writes of the first operand only what the last tensor has.
SCATTERS = frozenset({
    "index_copy_", "index_add_", "scatter_", "scatter_add_", "index_put_", "_index_put_impl_",
})  # fmt: skip
#: Makes something without reading or writing it.
SHAPES_ONLY = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "slice", "select",
    "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "as_strided", "diagonal",
    "resize_", "set_", "_sparse_coo_tensor_with_dims_and_tensors", "_indices", "_values",
    "indices", "values", "is_coalesced", "_coalesced_", "sym_size", "sym_stride", "lift_fresh",
    "_reshape_alias", "unfold", "movedim", "narrow", "_sparse_coo_tensor_unsafe", "_nnz",
})  # fmt: skip


def operator_cost(func: Any, args: Any, kwargs: Any, out: Any) -> Tuple[float, float, int]:
    """(FLOPs, bytes moved, kernels) of one call."""
    packet = func.overloadpacket
    name = packet.__name__
    if name in SHAPES_ONLY or func.is_view:
        return 0.0, 0.0, 0
    return _flops(packet, args, kwargs, out), _moved(name, args, kwargs, out), _kernels(name, args)


def _flops(packet: Any, args: Any, kwargs: Any, out: Any) -> float:
    count = flop_registry.get(packet)
    return float(count(*args, **kwargs, out_val=out)) if count is not None else 0.0


def _kernels(name: str, args: Any) -> int:
    if name.startswith(("_foreach", "_fused")):
        lists = [arg for arg in args if isinstance(arg, (list, tuple))]
        return max(1, -(-max([len(some) for some in lists], default=1) // FOREACH_TENSORS))
    return 1


def _moved(name: str, args: Any, kwargs: Any, out: Any) -> float:
    operands = _bytes_of(args) + _bytes_of(kwargs)
    results = sum(_bytes_of(out))
    if name in GATHERS and operands:
        return float(2 * results + sum(operands[1:]))
    if name in SCATTERS and operands:
        return float(sum(operands[1:]) + 2 * operands[-1])
    if name in ("add_", "sub_") and len(args) > 1 and _is_sparse(args[1]):
        return float(sum(operands[1:]) + 2 * operands[-1])
    if name.endswith("_") and not name.startswith("_"):  # in place: read and written
        return float(sum(operands) + sum(operands[:1]))
    return float(sum(operands) + results)


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo


def _bytes_of(tree: Any) -> List[int]:
    """Bytes of each tensor; expanded dimensions count once, as they are in memory."""
    found: List[int] = []
    seen: Set[int] = set()
    for leaf in pytree.tree_leaves(tree):
        if not isinstance(leaf, torch.Tensor) or id(leaf) in seen:
            continue
        seen.add(id(leaf))
        if leaf.layout == torch.sparse_coo:
            found.append(_dense_bytes(leaf._indices()) + _dense_bytes(leaf._values()))
        elif leaf.layout == torch.strided:
            found.append(_dense_bytes(leaf))
    return found


def _dense_bytes(tensor: torch.Tensor) -> int:
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        count *= int(size) if stride or size == 0 else 1
    return count * tensor.element_size()
