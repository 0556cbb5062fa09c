"""A model of PyTorch's CUDA caching allocator: which address each request gets, what is reserved.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (PyTorch 2.x):

* A request is rounded to 512 B. Up to 1 MiB it is served by the small pool of its stream, else by
  the large one. The smallest free block that holds it is taken, of equals the one at the lowest
  address, and split if the rest is worth keeping (512 B, in the large pool more than 1 MiB).
* If none holds it, the driver is asked for a segment: 2 MiB for the small pool, 20 MiB below
  10 MiB, else the size rounded to 2 MiB.
* A freed block merges with its free neighbours. Segments are kept. Only when the driver has no
  more are those that are wholly free given back and the request tried again.
* ``max_split_size_mb``: blocks of that size and more are not split, serve no smaller request, and
  are the first that are given back.
* ``expandable_segments``: the driver gives address space of 1 1/8 of the device once per pool and
  stream; memory is put behind it in pages (2 MiB small, 20 MiB large) at the lowest address where
  the request fits, next to a free block if there is one. Given back are pages, not segments.

Left out: ``garbage_collection_threshold``, private pools of CUDA graphs, and waiting for other
streams (a block is free when its free has completed). Newer PyTorch prefers, of equal free blocks,
the older to the lower: this moves addresses, hardly sizes.

Addresses of segments are the driver's choice; ``driver`` stands for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator

from rmixer.estimate.blocks import (
    GRANULE,
    MIB,
    OVERSIZE_SLACK,
    SMALL_REQUEST,
    AllocatorSettings,
    Block,
    BlockView,
    OutOfMemory,
    Pool,
    Segment,
    SegmentView,
    round_up,
    segment_bytes,
)

FIRST_ADDRESS = 1 << 46
ADDRESS_SPACE = 1 << 44  # of an expandable segment where the device has no limit


def fresh_addresses() -> Callable[[int], int]:
    """A driver that never gives an address twice."""
    following = FIRST_ADDRESS

    def driver(size: int) -> int:
        nonlocal following
        address, following = following, following + round_up(size, 2 * MIB)
        return address

    return driver


class CachingAllocator:
    """The allocator of one device.

    Args:
        settings: as in ``PYTORCH_CUDA_ALLOC_CONF``.
        limit_bytes: what the driver can give to this process; None: no limit.
        driver: given a size, the address of a new segment.

    Attributes:
        allocated_bytes: size of the live blocks.
        reserved_bytes: what the driver has given.
        peak_allocated_bytes, peak_reserved_bytes: the highest that each has been.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        limit_bytes: int | None = None,
        driver: Callable[[int], int] | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.limit_bytes = limit_bytes
        self.driver = driver or fresh_addresses()
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self._pools: dict[tuple[bool, int], Pool] = {}
        self._blocks: dict[int, Block] = {}  # by first address
        self._segments: dict[int, Segment] = {}  # by base
        self._bases: list[int] = []

    # What a program does.

    def alloc(self, requested: int, stream: int = 0) -> int:
        """The address of a new live block. Zero bytes take nothing and have the address 0.

        Raises:
            OutOfMemory: no room; the cached memory has been given back.
            ValueError: less than zero bytes.
        """
        if requested <= 0:
            if requested < 0:
                raise ValueError(f"bytes to allocate must not be negative: {requested}")
            return 0
        size = self.settings.block_bytes(requested)
        pool = self._pool(size, stream)
        block = self._best_fit(pool, size) or self._grow(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._grow(pool, size)
        if block is None:
            self.empty_cache()
            block = self._grow(pool, size)
        if block is None:
            limit = self.limit_bytes or 0
            raise OutOfMemory(requested, self.allocated_bytes, self.reserved_bytes, limit)
        self._occupy(block, size)
        return block.address

    def free(self, address: int) -> None:
        """End a live block.

        Raises:
            KeyError: no live block begins there.
        """
        if address == 0:
            return
        block = self._blocks.get(address)
        if block is None or not block.live:
            raise KeyError(f"no live block at {address}")
        block.live = False
        self.allocated_bytes -= block.size
        self._merge(block)
        block.segment.pool.add(block)

    def empty_cache(self) -> int:
        """Give back what is wholly free, large before small. The number of bytes given back."""
        before = self.reserved_bytes
        for pool in sorted(self._pools.values(), key=lambda p: (p.small, p.stream)):
            for _, address in list(pool.free):
                block = self._blocks[address]
                if block.segment.page is not None:
                    self._unmap(block, block.segment.page)
                elif block.whole:
                    self.drop_segment(address)
        return before - self.reserved_bytes

    def snapshot(self) -> tuple[SegmentView, ...]:
        """All segments that have memory, by address, with their blocks in order."""
        views = []
        for base in self._bases:
            blocks = tuple(
                BlockView(b.address, b.size, b.live) for b in self._chain(base) if b.mapped
            )
            if not blocks:  # address space alone: its first page did not fit
                continue
            pool = self._segments[base].pool
            size = sum(b.size for b in blocks)
            views.append(SegmentView(base, size, pool.stream, pool.small, blocks))
        return tuple(views)

    # What somebody who follows a recording does.

    def fit(self, requested: int, stream: int = 0) -> int | None:
        """Where a request would be put now; None: the driver would be asked. Changes nothing."""
        size = self.settings.block_bytes(requested)
        block = self._best_fit(self._pool(size, stream), size)
        return None if block is None else block.address

    def add_segment(self, base: int, size: int, stream: int = 0) -> None:
        """Take over a wholly free segment that exists. 2 MiB belong to the small pool.

        Raises:
            ValueError: it overlaps another one.
        """
        if self.segments_within(base, size):
            raise ValueError(f"a segment at {base} of {size} bytes overlaps another one")
        pool = self._pool(1 if size == segment_bytes(1) else size, stream)
        pool.add(self._new_segment(pool, base, size))
        self._reserve(size)

    def drop_segment(self, base: int) -> None:
        """Give a segment back, whatever is in it.

        Raises:
            KeyError: no segment begins there.
        """
        segment = self._segments[base]
        for block in list(self._chain(base)):
            if block.live:
                self.allocated_bytes -= block.size
            else:
                segment.pool.remove(block)
            self.reserved_bytes -= block.size if block.mapped else 0
            del self._blocks[block.address]
        del self._segments[base]
        del self._bases[bisect_left(self._bases, base)]

    def segments_within(self, address: int, size: int) -> list[int]:
        """Bases of the segments that share an address with this range."""
        first = max(bisect_right(self._bases, address) - 1, 0)
        last = bisect_left(self._bases, address + size)
        return [b for b in self._bases[first:last] if b + self._segments[b].size > address]

    def free_segments(self) -> set[int]:
        """Bases of the segments that are wholly free: those that would be given back."""
        return {base for base in self._bases if (b := self._blocks[base]).whole and not b.live}

    def place(self, address: int, requested: int) -> bool:
        """Make a live block at an address that is known. False: there is no free space there."""
        bases = self.segments_within(address, 1)
        chain = self._chain(bases[0]) if bases else iter(())
        block = next((b for b in chain if b.end > address), None)
        size = self.settings.block_bytes(requested)
        if block is None or block.live or not block.mapped or address + size > block.end:
            return False
        if address > block.address:
            pool = block.segment.pool
            pool.remove(block)
            head, block = block, self._cut(block, address)
            pool.add(head)
            pool.add(block)
        self._occupy(block, size)
        return True

    # The rules.

    def _pool(self, size: int, stream: int) -> Pool:
        key = (size <= SMALL_REQUEST, stream)
        if key not in self._pools:
            self._pools[key] = Pool(stream, small=key[0])
        return self._pools[key]

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        at = bisect_left(pool.free, (size, 0))
        if at == len(pool.free):
            return None
        block = self._blocks[pool.free[at][1]]
        # A block that can grow counts with what it can grow to: what cannot grow is used up first.
        for following in range(at + 1, len(pool.free)):
            other = self._blocks[pool.free[following][1]]
            if block.segment.page is None or other.reach >= block.reach:
                break
            block = other
        oversize = self.settings.oversize
        if oversize(size):
            return block if block.size < size + OVERSIZE_SLACK else None
        return None if oversize(block.size) else block

    def _occupy(self, block: Block, size: int) -> None:
        """Make a free block live, and keep the rest of it if that is worth it."""
        pool = block.segment.pool
        pool.remove(block)
        rest = block.size - size
        if pool.small or self.settings.expandable_segments:
            split = rest >= GRANULE
        else:
            split = rest > SMALL_REQUEST and not self.settings.oversize(size)
        if split:
            pool.add(self._cut(block, block.address + size))
        block.live = True
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Give back the one oversize block that is enough, or the largest until they are enough."""
        if self.settings.max_split_size_mb is None:
            return False
        wanted = max(size, self.settings.max_split_size_mb * MIB)
        at = bisect_left(pool.free, (wanted, 0))
        if at < len(pool.free) and self._releasable(pool.free[at]):
            self.drop_segment(pool.free[at][1])
            return True
        released = 0
        for entry in reversed(pool.free[:at]):
            if released >= wanted or not self.settings.oversize(entry[0]):
                break
            if self._releasable(entry):
                released += entry[0]
                self.drop_segment(entry[1])
        return released >= wanted

    def _releasable(self, entry: tuple[int, int]) -> bool:
        block = self._blocks[entry[1]]
        return block.segment.page is None and block.whole

    def _grow(self, pool: Pool, size: int) -> Block | None:
        """A free block with memory from the driver; None: the driver has no more."""
        if self.settings.expandable_segments:
            return self._expand(pool, size)
        wanted = segment_bytes(size)
        if not self._available(wanted):
            return None
        block = self._new_segment(pool, self.driver(wanted), wanted)
        pool.add(block)
        self._reserve(wanted)
        return block

    def _expand(self, pool: Pool, size: int) -> Block | None:
        """Put pages behind the lowest run of free and unmapped space that holds the size."""
        block = self._expandable_run(pool, size)
        if not block.mapped and not self._map(block, min(size, block.size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after  # it has swallowed the free block before it
        return block

    def _expandable_run(self, pool: Pool, size: int) -> Block:
        for address in pool.unmapped:
            first = self._blocks[address]
            if first.before is not None and not first.before.live:
                first = first.before
            space, block = 0, self._blocks.get(first.address)
            while block is not None and not block.live and space < size:
                space, block = space + block.size, block.after
            if space >= size:
                return first
        return self._new_address_space(pool, size)

    def _new_address_space(self, pool: Pool, size: int) -> Block:
        limit = self.limit_bytes
        space = max(ADDRESS_SPACE, size) if limit is None else max(limit + limit // 8, size)
        space = round_up(space, pool.page)
        block = self._new_segment(pool, self.driver(space), space, page=pool.page)
        block.mapped = False
        pool.add(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Put pages behind the first bytes of an unmapped block; False: there are none left."""
        page = block.segment.page
        assert page is not None
        size = round_up(size, page)
        if not self._available(size):
            return False
        pool = block.segment.pool
        pool.remove(block)
        if size < block.size:
            pool.add(self._cut(block, block.address + size))
        block.mapped = True
        self._merge(block)
        pool.add(block)
        self._reserve(size)
        return True

    def _unmap(self, block: Block, page: int) -> None:
        """Take away the pages that lie wholly inside a free block."""
        base, pool = block.segment.base, block.segment.pool
        first = base + round_up(block.address - base, page)
        last = block.end - (block.end - base) % page
        if first >= last:
            return
        pool.remove(block)
        if last < block.end:
            pool.add(self._cut(block, last))
        if first > block.address:
            head, block = block, self._cut(block, first)
            pool.add(head)
        block.mapped = False
        self.reserved_bytes -= block.size
        self._merge(block)
        pool.add(block)
        if block.whole:
            self.drop_segment(base)

    # Blocks and segments.

    def _new_segment(self, pool: Pool, base: int, size: int, page: int | None = None) -> Block:
        segment = Segment(base, size, pool, page)
        self._segments[base] = segment
        insort(self._bases, base)
        block = self._blocks[base] = Block(segment, base, size)
        return block

    def _cut(self, block: Block, address: int) -> Block:
        """Split a block that no list holds; the new block is what begins at the address."""
        tail = Block(block.segment, address, block.end - address, mapped=block.mapped)
        block.size -= tail.size
        tail.before, tail.after = block, block.after
        if block.after is not None:
            block.after.before = tail
        block.after = tail
        self._blocks[address] = tail
        return tail

    def _merge(self, block: Block) -> None:
        """Let a block that no list holds swallow its neighbours of the same kind."""
        for other in (block.before, block.after):
            if other is None or other.live or other.mapped != block.mapped:
                continue
            block.segment.pool.remove(other)
            del self._blocks[other.address], self._blocks[block.address]
            block.size += other.size
            if other is block.after:
                block.after = other.after
            else:
                block.address, block.before = other.address, other.before
            if block.before is not None:
                block.before.after = block
            if block.after is not None:
                block.after.before = block
            self._blocks[block.address] = block

    def _chain(self, base: int) -> Iterator[Block]:
        block: Block | None = self._blocks[base]
        while block is not None:
            yield block
            block = block.after

    def _available(self, size: int) -> bool:
        return self.limit_bytes is None or self.reserved_bytes + size <= self.limit_bytes

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
