"""A model of glibc's malloc: what of a training process's tensors stays resident, and where.

Tensors on a CPU come from ``posix_memalign(64)``. What of their memory goes back to the system
and what stays as holes between living chunks makes the difference between the sum of living tensors
and the resident memory that the kernel counts. The rules are those of ``malloc/malloc.c`` of glibc
(2.31 to 2.37; later versions find aligned chunks in the bins):

* An aligned request of n bytes looks for a chunk of n + 96, and what is cut off before and behind
  the aligned part becomes free chunks of its own (``_int_memalign``). So the chunk that a tensor
  leaves is too small for the next tensor of that size, unless a neighbour is free too.
* A request takes the smallest free chunk that holds it, and splits it if at least 32 bytes are
  left (``_int_malloc``). If there is none, it is cut from the top of the heap. If the top is too
  small, a request of at least ``mmap_threshold`` is mapped by itself, and unmapped when it is
  freed; for a smaller one the heap grows by the request and ``top_pad``.
* A freed chunk merges with its free neighbours and with the top. When a freed chunk of 64 KiB or
  more leaves a top above ``trim_threshold``, the top is given back, up to ``top_pad``.
* Unless either threshold was set (``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``), freeing
  a mapped chunk of up to 32 MiB raises ``mmap_threshold`` to its size and ``trim_threshold`` to
  twice that.
* With ``small_caches`` (the default of glibc; jobs get ``GLIBC_TUNABLES`` that turn them off) a
  freed chunk of up to 1040 bytes is kept for requests of its very size, seven of each, and merges
  with nothing (tcache).

Left out: arenas of other threads (tensors are made by the main thread), fast bins, and memory that
a program reserves but never touches.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB
HEADER, GRANULE, SMALLEST = 8, 16, 32
ALIGNMENT = 64  # of torch's CPU allocator: c10/core/alignment.h, gAlignment
CONSOLIDATE = 64 * KIB
MMAP_MAX = 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
CACHED_BYTES, CACHED_CHUNKS = 1040, 7


@dataclass(frozen=True, kw_only=True)
class HeapSettings:
    """How the allocator is set, bytes.

    Attributes:
        mmap_threshold, trim_threshold, top_pad: see ``mallopt(3)``.
        dynamic: the thresholds follow what is freed; glibc's default.
        small_caches: freed small chunks are kept apart; glibc's default.
    """

    mmap_threshold: int = 128 * KIB
    trim_threshold: int = 128 * KIB
    top_pad: int = 128 * KIB
    dynamic: bool = True
    small_caches: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> HeapSettings:
        """As the ``MALLOC_`` variables and ``GLIBC_TUNABLES`` say."""
        names = {
            "mmap_threshold": "MALLOC_MMAP_THRESHOLD_",
            "trim_threshold": "MALLOC_TRIM_THRESHOLD_",
            "top_pad": "MALLOC_TOP_PAD_",
        }
        given = {
            key: int(environment[name])
            for key, name in names.items()
            if environment.get(name, "").isdigit()
        }
        tunables = environment.get("GLIBC_TUNABLES", "").split(":")
        caches = "glibc.malloc.tcache_count=0" not in tunables
        return cls(**given, dynamic=not given, small_caches=caches)


class _Chunk:
    """A range of the heap: held by the program, ``free`` in the bins, or neither (cached)."""

    __slots__ = ("address", "before", "free", "held", "size")

    def __init__(self, address: int, size: int, before: _Chunk | None) -> None:
        self.address, self.size, self.before = address, size, before
        self.free = self.held = False


class Heap:
    """The heap of one process.

    Attributes:
        live_bytes: what the program holds.
        resident_bytes: what the kernel counts for it.
        peak_live_bytes, peak_resident_bytes: the highest that each has been.
    """

    def __init__(self, settings: HeapSettings | None = None) -> None:
        settings = settings or HeapSettings()
        self._mmap_threshold = settings.mmap_threshold
        self._trim_threshold = settings.trim_threshold
        self._top_pad, self._dynamic = settings.top_pad, settings.dynamic
        self._cached: dict[int, list[_Chunk]] | None = {} if settings.small_caches else None
        self.live_bytes = self.peak_live_bytes = 0
        self.peak_resident_bytes = 0
        self._top = GRANULE  # where the top chunk begins
        self._last: _Chunk | None = None  # the chunk before the top
        self._end = self._touched = 0  # the program break; pages below have been written
        self._mapped_bytes = 0
        self._next_mapped = -1
        self._mapped: dict[int, int] = {}  # by handle: bytes
        self._chunks: dict[int, _Chunk] = {}  # by address
        self._bins: list[tuple[int, int]] = []  # size and address of the free ones

    @property
    def keeps_small(self) -> bool:
        """Whether freed small chunks are kept apart."""
        return self._cached is not None

    @property
    def resident_bytes(self) -> int:
        return self._touched + self._mapped_bytes

    def alloc(self, requested: int) -> int:
        """A handle for so many aligned bytes, as tensors have them; 0 for none.

        Raises:
            ValueError: less than zero bytes.
        """
        if requested < 0:
            raise ValueError(f"bytes to allocate must not be negative: {requested}")
        if requested == 0:
            return 0
        size = _chunk_bytes(requested)
        padded = size + ALIGNMENT + SMALLEST
        if padded >= self._mmap_threshold and not self._fits(padded):
            return self._map(padded)
        return self._live(self._align(self._take(padded), size))

    def small(self, requested: int) -> int:
        """A handle for so many bytes by plain ``malloc``, as small objects have them."""
        size = _chunk_bytes(requested)
        kept = self._cached.get(size) if self._cached is not None else None
        return self._live(kept.pop() if kept else self._take(size))

    def free(self, handle: int) -> None:
        """End what `alloc` or `small` gave.

        Raises:
            KeyError: it is not live.
        """
        if handle == 0:
            return
        if handle < 0:
            self._unmap(handle)
            return
        chunk = self._chunks[handle]
        if not chunk.held:
            raise KeyError(handle)
        chunk.held = False
        self.live_bytes -= chunk.size
        self._release(chunk)

    # --- inside ----------------------------------------------------------------------------------

    def _live(self, chunk: _Chunk) -> int:
        chunk.held = True
        self.live_bytes += chunk.size
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        resident = self._touched + self._mapped_bytes
        self.peak_resident_bytes = max(self.peak_resident_bytes, resident)
        return chunk.address

    def _note_peaks(self) -> None:
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        self.peak_resident_bytes = max(self.peak_resident_bytes, self.resident_bytes)

    def _fits(self, size: int) -> bool:
        return bool(self._bins and self._bins[-1][0] >= size) or (
            self._end - self._top >= size + SMALLEST
        )

    def _take(self, size: int) -> _Chunk:
        """The smallest free chunk that holds a size, or one from the top; nothing else owns it."""
        at = bisect_left(self._bins, (size, 0))
        if at == len(self._bins):
            return self._from_top(size)
        _, address = self._bins.pop(at)
        chunk = self._chunks[address]
        chunk.free = False
        if chunk.size - size >= SMALLEST:
            self._give(self._split(chunk, size))
        return chunk

    def _from_top(self, size: int) -> _Chunk:
        if self._end - self._top < size + SMALLEST:
            grown = self._top + size + self._top_pad + SMALLEST
            self._end = -(-grown // PAGE) * PAGE
        chunk = self._chunks[self._top] = _Chunk(self._top, size, self._last)
        self._last = chunk
        self._top += size
        self._touched = max(self._touched, self._top)
        return chunk

    def _align(self, chunk: _Chunk, size: int) -> _Chunk:
        """The aligned part of a chunk; what is cut off is freed."""
        lead = -(chunk.address + GRANULE) % ALIGNMENT
        if lead:
            lead += ALIGNMENT if lead < SMALLEST else 0
            first, chunk = chunk, self._split(chunk, lead)
            self._release(first)
        if chunk.size > size + SMALLEST:
            self._release(self._split(chunk, size))
        return chunk

    def _split(self, chunk: _Chunk, size: int) -> _Chunk:
        """Cut a chunk that no bin holds; the new one is its rest."""
        rest = _Chunk(chunk.address + size, chunk.size - size, chunk)
        chunk.size = size
        self._chunks[rest.address] = rest
        self._set_before(rest)
        return rest

    def _set_before(self, chunk: _Chunk) -> None:
        """The chunk behind this one, or the top, has it as its neighbour."""
        following = self._chunks.get(chunk.address + chunk.size)
        if following is not None:
            following.before = chunk
        else:
            self._last = chunk

    def _release(self, chunk: _Chunk) -> None:
        if self._cached is not None and chunk.size <= CACHED_BYTES:
            kept = self._cached.setdefault(chunk.size, [])
            if len(kept) < CACHED_CHUNKS:
                kept.append(chunk)
                return
        if chunk.before is not None and chunk.before.free:
            chunk = self._absorb(self._out_of_bin(chunk.before), chunk)
        following = self._chunks.get(chunk.address + chunk.size)
        if following is not None and following.free:
            self._absorb(chunk, self._out_of_bin(following))
        size = chunk.size
        if chunk.address + size == self._top:
            self._top, self._last = chunk.address, chunk.before
            del self._chunks[chunk.address]
        else:
            self._give(chunk)
        if size >= CONSOLIDATE and self._end - self._top >= self._trim_threshold:
            self._trim()

    def _absorb(self, chunk: _Chunk, following: _Chunk) -> _Chunk:
        chunk.size += following.size
        del self._chunks[following.address]
        self._set_before(chunk)
        return chunk

    def _give(self, chunk: _Chunk) -> None:
        chunk.free = True
        insort(self._bins, (chunk.size, chunk.address))

    def _out_of_bin(self, chunk: _Chunk) -> _Chunk:
        del self._bins[bisect_left(self._bins, (chunk.size, chunk.address))]
        chunk.free = False
        return chunk

    def _map(self, padded: int) -> int:
        size = -(-padded // PAGE) * PAGE
        handle, self._next_mapped = self._next_mapped, self._next_mapped - 1
        self._mapped[handle] = size
        self._mapped_bytes += size
        self.live_bytes += size
        self._note_peaks()
        return handle

    def _unmap(self, handle: int) -> None:
        size = self._mapped.pop(handle)
        self._mapped_bytes -= size
        self.live_bytes -= size
        if self._dynamic and self._mmap_threshold < size <= MMAP_MAX:
            self._mmap_threshold, self._trim_threshold = size, 2 * size

    def _trim(self) -> None:
        extra = (self._end - self._top - self._top_pad - SMALLEST - 1) // PAGE * PAGE
        if extra > 0:
            self._end -= extra
            self._touched = min(self._touched, self._end)


@functools.lru_cache(maxsize=4096)
def _chunk_bytes(requested: int) -> int:
    return max(SMALLEST, -(-(requested + HEADER) // GRANULE) * GRANULE)
