"""Memory that a library takes inside an operator, which no trace of tensors shows. Bytes.

One row per operator, each with its source. ``sizes`` are (elements, bytes per element) of the
tensors that the operator is given, in order. PyTorch's sources are those of version 2.x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20
INDEX = 8  # bytes of an int64

Sizes = Sequence[Sequence[int]]

#: Products of matrices: the first of a thread and stream makes cuBLAS take its workspace.
PRODUCTS = frozenset({"addmm", "mm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "_scaled_mm"})

#: Workspace of cuBLAS by compute capability: ``aten/src/ATen/cuda/CublasHandlePool.cpp``,
#: ``getChosenWorkspaceSize``: 32 MiB on Hopper and newer, else ``:4096:2:16:8``, 8.125 MiB.
CUBLAS_WORKSPACE_HOPPER = 32 * MIB
CUBLAS_WORKSPACE = 8 * MIB + 128 * 1024


@dataclass(frozen=True)
class Temporary:
    """What one operator takes while it runs.

    Attributes:
        bytes: of the sizes of its tensors.
        source: where this is to be read.
    """

    bytes: Callable[[Sizes], int]
    source: str


def _indices(sizes: Sizes, at: int = 1) -> int:
    return sizes[at][0] if len(sizes) > at else 0


def _sort(count: int) -> int:
    """Keys and values twice (double buffers of cub's radix sort), int64."""
    return 4 * INDEX * count


def _segments(sizes: Sizes, at: int) -> int:
    """Sums per segment of equal indices: offsets, and one row of float32 per (partial) segment.

    ``max_partial_segment = indices / NROWS_PER_THREAD (10) + min(indices, rows)``.
    """
    count = _indices(sizes, at)
    width = sizes[0][0] // max(1, count) if sizes else 0
    partial = count // 10 + count
    return _sort(count) + 3 * INDEX * count + 4 * width * partial


#: On a GPU, by operator.
GPU: Mapping[str, Temporary] = {
    "embedding_dense_backward": Temporary(
        lambda sizes: _segments(sizes, 1),
        "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu",
    ),
    "_embedding_bag_dense_backward": Temporary(
        lambda sizes: _segments(sizes, 1),
        "aten/src/ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu",
    ),
    "_coalesce": Temporary(
        lambda sizes: _sort(_indices(sizes, 0)) + 2 * INDEX * _indices(sizes, 0),
        "aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu (indices1D, origIndices, offsets)",
    ),
    "index_put_": Temporary(
        lambda sizes: _sort(_indices(sizes, 1)),
        "aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel",
    ),
    "sort": Temporary(
        lambda sizes: _sort(_indices(sizes, 0)) // 2,
        "aten/src/ATen/native/cuda/SortStable.cu (segmented radix sort)",
    ),
    "_unique2": Temporary(
        lambda sizes: _sort(_indices(sizes, 0)) + 2 * INDEX * _indices(sizes, 0),
        "aten/src/ATen/native/cuda/UniqueCub.cu",
    ),
}
#: On a CPU, by operator.
CPU: Mapping[str, Temporary] = {
    "_coalesce": Temporary(
        lambda sizes: 3 * INDEX * _indices(sizes, 0),
        "aten/src/ATen/native/sparse/SparseTensor.cpp, _coalesce_sparse_cpu (scalars, sort)",
    ),
    # argsort (permutation and, merging, half of it again), aux, mask, cumulative sum, inverse
    "numpy.unique": Temporary(
        lambda sizes: int(_indices(sizes, 0) * (4.5 * INDEX + 1)),
        "numpy/lib/_arraysetops_impl.py, _unique1d with return_inverse",
    ),
}


def temporary_bytes(operator: str, sizes: Sizes, *, gpu: bool) -> int:
    """What an operator takes while it runs, besides its results."""
    table = GPU if gpu else CPU
    found = table.get(operator)
    return found.bytes(sizes) if found is not None else 0
