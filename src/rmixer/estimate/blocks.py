"""The words of the caching allocator: settings, rules of size, blocks, pools. All sizes are bytes.

Source of every constant and rule here: ``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch (2.x, with
``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``, ``kLargeBuffer``, ``kMinLargeAlloc`` and
``kRoundLarge``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from rmixer.errors import RmixerError, UsageError

MIB = 1 << 20
GRANULE = 512  # every block is a multiple of this
SMALL_REQUEST = MIB  # up to this, the small pool serves it
SMALL_SEGMENT = 2 * MIB  # what the small pool asks the driver for
LARGE_SEGMENT = 20 * MIB  # what a middling request asks the driver for
OWN_SEGMENT = 10 * MIB  # from this size on, a request gets a segment of its own
SEGMENT_GRANULE = 2 * MIB  # to which that segment is rounded
OVERSIZE_SLACK = 20 * MIB  # how much an oversize block may exceed its request


@dataclass(frozen=True, kw_only=True)
class AllocatorSettings:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` may say, as far as it is modelled.

    Args:
        max_split_size_mb: blocks of this many MiB and more are never split; above 20. None: no
            bound, the default of PyTorch.
        expandable_segments: grow one segment per pool and stream by pages, instead of many.
        roundup_power2_divisions: round sizes up to this many steps between powers of two; itself a
            power of two. 1: off.

    Raises:
        UsageError: a value that PyTorch does not accept.
    """

    max_split_size_mb: int | None = None
    expandable_segments: bool = False
    roundup_power2_divisions: int = 1

    def __post_init__(self) -> None:
        if self.max_split_size_mb is not None and self.max_split_size_mb * MIB <= LARGE_SEGMENT:
            raise UsageError(f"max_split_size_mb must be above 20, not {self.max_split_size_mb}")
        divisions = self.roundup_power2_divisions
        if divisions < 1 or divisions & (divisions - 1):
            raise UsageError(f"roundup_power2_divisions must be a power of two, not {divisions}")

    def oversize(self, size: int) -> bool:
        """Whether a block of this size is never split."""
        return self.max_split_size_mb is not None and size >= self.max_split_size_mb * MIB

    def block_bytes(self, requested: int) -> int:
        """The size of the block that a request for this many bytes looks for."""
        divisions = self.roundup_power2_divisions
        if divisions == 1 or requested <= GRANULE * divisions:
            return round_up(max(requested, 1), GRANULE)
        floor: int = 1 << (requested.bit_length() - 1)
        return round_up(requested, floor // divisions)


class OutOfMemory(RmixerError):  # noqa: N818  # the name that torch and the states of jobs use
    """The device has no room for a request, also after all cached memory was given back."""

    def __init__(self, requested: int, allocated: int, reserved: int, limit: int) -> None:
        super().__init__(
            f"{requested} bytes do not fit: {allocated} allocated, {reserved} reserved, "
            f"{limit} on the device"
        )
        self.requested_bytes, self.limit_bytes = requested, limit
        self.allocated_bytes, self.reserved_bytes = allocated, reserved


@dataclass(frozen=True)
class BlockView:
    """One block, as it is now."""

    address: int
    size: int
    live: bool


@dataclass(frozen=True)
class SegmentView:
    """One segment, as it is now: ``size`` is what has memory behind it, the sum of its blocks."""

    address: int
    size: int
    stream: int
    small: bool
    blocks: tuple[BlockView, ...]


def round_up(size: int, granule: int) -> int:
    """The least multiple of ``granule`` that is not below ``size``."""
    return -(-size // granule) * granule


def segment_bytes(block: int) -> int:
    """How much the driver is asked for when no cached block holds a block of this size."""
    if block <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if block < OWN_SEGMENT:
        return LARGE_SEGMENT
    return round_up(block, SEGMENT_GRANULE)


class Segment:
    """Address space got from the driver at once. With ``page``, only part of it has memory."""

    __slots__ = ("base", "page", "pool", "size")

    def __init__(self, base: int, size: int, pool: Pool, page: int | None = None) -> None:
        self.base, self.size, self.pool, self.page = base, size, pool, page


class Block:
    """A range of a segment: live, free, or (in an expandable segment) without memory behind it."""

    __slots__ = ("address", "after", "before", "live", "mapped", "segment", "size")

    def __init__(self, segment: Segment, address: int, size: int, *, mapped: bool = True) -> None:
        self.segment, self.address, self.size, self.mapped = segment, address, size, mapped
        self.live = False
        self.before: Block | None = None
        self.after: Block | None = None

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None

    @property
    def reach(self) -> int:
        """Its size, and that of the space into which it can grow."""
        after = self.after
        return self.size + (after.size if after is not None and not after.mapped else 0)


class Pool:
    """Free blocks of one stream and one class of sizes, by (size, address); unmapped by address."""

    __slots__ = ("free", "small", "stream", "unmapped")

    def __init__(self, stream: int, *, small: bool) -> None:
        self.stream, self.small = stream, small
        self.free: list[tuple[int, int]] = []
        self.unmapped: list[int] = []

    @property
    def page(self) -> int:
        return SMALL_SEGMENT if self.small else LARGE_SEGMENT

    def add(self, block: Block) -> None:
        if block.mapped:
            insort(self.free, (block.size, block.address))
        else:
            insort(self.unmapped, block.address)

    def remove(self, block: Block) -> None:
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]
