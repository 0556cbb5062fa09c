"""The rules of the caching allocator, one by one. Sizes in bytes; M is a MiB."""

import time

import pytest

from rmixer.errors import UsageError
from rmixer.estimate.allocator import CachingAllocator
from rmixer.estimate.blocks import AllocatorSettings, OutOfMemory, segment_bytes

M = 1 << 20


def expandable(**settings: int) -> AllocatorSettings:
    return AllocatorSettings(expandable_segments=True, **settings)


@pytest.mark.parametrize(
    ("requested", "allocated"),
    [(1, 512), (512, 512), (513, 1024), (M, M), (M + 1, M + 512), (9 * M + 1, 9 * M + 512)],
)
def test_a_request_is_rounded_to_512_bytes(requested: int, allocated: int) -> None:
    """What is booked as allocated is the rounded size."""
    allocator = CachingAllocator()
    allocator.alloc(requested)
    assert allocator.allocated_bytes == allocated


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * M),
        (M, 2 * M),
        (M + 512, 20 * M),
        (10 * M - 512, 20 * M),
        (10 * M, 10 * M),
        (10 * M + 512, 12 * M),
        (100 * M, 100 * M),
    ],
)
def test_the_driver_is_asked_for_whole_segments(block: int, segment: int) -> None:
    """2 MiB for up to 1 MiB, 20 MiB below 10 MiB, else rounded to 2 MiB."""
    allocator = CachingAllocator()
    allocator.alloc(block)
    assert segment_bytes(block) == segment == allocator.reserved_bytes


def test_the_smallest_free_block_that_holds_it_is_taken() -> None:
    """Best fit is by size, then by the lowest address."""
    allocator = CachingAllocator()
    big, low, high = (allocator.alloc(n * M) for n in (40, 30, 30))
    for address in (high, low, big):
        allocator.free(address)
    assert [allocator.fit(n * M) for n in (29, 31)] == [low, big]
    assert allocator.alloc(30 * M) == low
    assert allocator.alloc(30 * M) == high
    assert allocator.reserved_bytes == 100 * M


def test_the_small_pool_splits_off_512_bytes() -> None:
    """A rest of 512 bytes is the next block."""
    allocator = CachingAllocator()
    parts = [allocator.alloc(n) for n in (M, M - 512, 512)]
    assert parts == [parts[0], parts[0] + M, parts[0] + 2 * M - 512]
    assert allocator.reserved_bytes == allocator.allocated_bytes == 2 * M


@pytest.mark.parametrize(("rest", "split"), [(M, False), (M + 512, True)])
def test_the_large_pool_splits_off_more_than_one_mib(rest: int, split: bool) -> None:
    """A rest of 1 MiB goes with the block; one of 512 bytes more is kept as free."""
    allocator = CachingAllocator()
    allocator.free(allocator.alloc(30 * M))
    allocator.alloc(30 * M - rest)
    assert allocator.allocated_bytes == (30 * M - rest if split else 30 * M)
    assert len(allocator.snapshot()[0].blocks) == 1 + split


def test_freed_neighbours_merge() -> None:
    """Three freed neighbours, the middle one last, are one block again."""
    allocator = CachingAllocator()
    a, b, c = (allocator.alloc(4 * M) for _ in range(3))
    for address in (a, c, b):
        allocator.free(address)
    (segment,) = allocator.snapshot()
    assert [(k.size, k.live) for k in segment.blocks] == [(20 * M, False)]
    assert allocator.fit(20 * M) == a


def test_pools_do_not_share() -> None:
    """Small requests never use large segments, streams never each other's."""
    allocator = CachingAllocator()
    allocator.free(allocator.alloc(20 * M))
    assert allocator.fit(M) is None
    assert allocator.fit(20 * M, stream=1) is None
    allocator.alloc(M)
    allocator.alloc(20 * M, stream=1)
    assert allocator.reserved_bytes == 42 * M


def test_cached_segments_are_given_back_before_it_fails() -> None:
    """A wholly free segment makes room, one in use does not; the peak stays what it was."""
    allocator = CachingAllocator(limit_bytes=64 * M)
    kept = allocator.alloc(4 * M)
    allocator.free(allocator.alloc(40 * M))
    allocator.alloc(44 * M)
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (64 * M, 64 * M)
    with pytest.raises(OutOfMemory) as caught:
        allocator.alloc(17 * M)
    assert caught.value.reserved_bytes == 64 * M
    assert caught.value.allocated_bytes == 48 * M
    allocator.free(kept)
    allocator.alloc(20 * M)


def test_a_failure_leaves_the_allocator_usable() -> None:
    """After a request that never fits, what was live is live and what fits is served."""
    allocator = CachingAllocator(limit_bytes=32 * M)
    kept = allocator.alloc(10 * M)
    with pytest.raises(OutOfMemory, match="33554432 on the device"):
        allocator.alloc(100 * M)
    allocator.alloc(22 * M)
    allocator.free(kept)
    assert allocator.allocated_bytes == 22 * M


def test_zero_bytes_and_wrong_calls() -> None:
    """Nothing is taken for zero bytes; a free of what is not live is an error."""
    allocator = CachingAllocator()
    allocator.free(allocator.alloc(0))
    assert allocator.reserved_bytes == 0
    address = allocator.alloc(1)
    allocator.free(address)
    for wrong in (address, address + 512, 7):
        with pytest.raises(KeyError):
            allocator.free(wrong)
    with pytest.raises(ValueError, match="-1"):
        allocator.alloc(-1)


def test_empty_cache_keeps_segments_in_use() -> None:
    """Only what is wholly free goes; the number of bytes is told."""
    allocator = CachingAllocator()
    allocator.alloc(4 * M)
    for address in [allocator.alloc(n * M) for n in (4, 30, 1)]:
        allocator.free(address)
    assert allocator.empty_cache() == 32 * M
    assert allocator.reserved_bytes == 20 * M


def test_oversize_blocks_are_not_split_and_serve_no_small_request() -> None:
    """With a bound of 64 MiB, 100 MiB serve 90 MiB whole, but neither 60 nor 80."""
    allocator = CachingAllocator(AllocatorSettings(max_split_size_mb=64))
    big = allocator.alloc(100 * M)
    allocator.free(big)
    assert [allocator.fit(n * M) for n in (60, 80, 81)] == [None, None, big]
    assert allocator.alloc(90 * M) == big
    assert allocator.allocated_bytes == 100 * M


def test_oversize_blocks_are_given_back_first() -> None:
    """One oversize block that is enough goes alone; else the largest go until it is enough."""
    settings = AllocatorSettings(max_split_size_mb=64)
    allocator = CachingAllocator(settings, limit_bytes=300 * M)
    for address in [allocator.alloc(n * M) for n in (30, 70, 80, 110)]:
        allocator.free(address)
    allocator.alloc(40 * M)
    assert [s.size // M for s in allocator.snapshot()] == [30, 80, 110, 40]
    allocator.alloc(200 * M - 40 * M)
    assert sorted(s.size // M for s in allocator.snapshot()) == [30, 40, 160]


@pytest.mark.parametrize(
    ("requested", "block"),
    [(1200, 1536), (2048, 2048), (2049, 2560), (1025 * M, 1280 * M), (1281 * M, 1536 * M)],
)
def test_sizes_round_up_to_divisions_of_powers_of_two(requested: int, block: int) -> None:
    """With 4 divisions, 1025 MiB become 1280; up to 2 KiB the rule of 512 bytes holds."""
    assert AllocatorSettings(roundup_power2_divisions=4).block_bytes(requested) == block


@pytest.mark.parametrize(
    "wrong",
    [{"max_split_size_mb": 20}, {"roundup_power2_divisions": 3}, {"roundup_power2_divisions": 0}],
)
def test_settings_that_torch_refuses_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}.* not {next(iter(wrong.values()))}"):
        AllocatorSettings(**wrong)


def test_an_expandable_segment_grows_by_pages() -> None:
    """One segment per pool: 20 MiB pages for large requests, 2 MiB pages for small ones."""
    allocator = CachingAllocator(expandable())
    first, second = allocator.alloc(15 * M), allocator.alloc(15 * M)
    assert second == first + 15 * M
    assert allocator.reserved_bytes == 40 * M
    small = [allocator.alloc(M) for _ in range(3)]
    assert small == [small[0] + i * M for i in range(3)]
    assert allocator.reserved_bytes == 44 * M
    assert len(allocator.snapshot()) == 2


def test_an_expandable_segment_grows_from_its_free_end() -> None:
    """A freed end of 15 MiB is part of the next 30 MiB; its free start is not."""
    allocator = CachingAllocator(expandable())
    start, _, end = (allocator.alloc(20 * M) for _ in range(3))
    allocator.free(start)
    allocator.free(end)
    assert allocator.alloc(30 * M) == end
    assert allocator.reserved_bytes == 80 * M


def test_what_cannot_grow_is_used_before_what_can() -> None:
    """A hole of 18 MiB is taken before the free end of 17, which can become any size."""
    allocator = CachingAllocator(expandable())
    hole, *_ = (allocator.alloc(n * M) for n in (18, 2, 3))
    allocator.free(hole)
    assert [b.size // M for b in allocator.snapshot()[0].blocks] == [18, 2, 3, 17]
    assert allocator.alloc(16 * M) == hole


def test_an_expandable_segment_splits_at_512_bytes_in_the_large_pool_too() -> None:
    allocator = CachingAllocator(expandable())
    first = allocator.alloc(20 * M - 512)
    assert allocator.allocated_bytes == 20 * M - 512
    assert allocator.alloc(2 * M) == first + 20 * M - 512


def test_free_pages_are_given_back_and_filled_again() -> None:
    """Out of memory, whole free pages inside the segment move to where they are needed."""
    allocator = CachingAllocator(expandable(), limit_bytes=80 * M)
    blocks = [allocator.alloc(20 * M) for _ in range(4)]
    allocator.free(blocks[1])
    allocator.alloc(M)  # the small pool takes a page's worth of the device
    assert allocator.reserved_bytes == 62 * M
    with pytest.raises(OutOfMemory):
        allocator.alloc(20 * M)
    allocator.free(blocks[3])
    assert allocator.alloc(20 * M) == blocks[3]
    allocator.free(blocks[0])
    allocator.empty_cache()
    assert allocator.reserved_bytes == 42 * M
    assert allocator.alloc(15 * M) == blocks[0]


def test_a_wholly_free_expandable_segment_goes() -> None:
    allocator = CachingAllocator(expandable())
    address = allocator.alloc(50 * M)
    allocator.free(address)
    assert allocator.empty_cache() == 60 * M
    assert allocator.snapshot() == ()


def test_placing_needs_free_space() -> None:
    """A block at a known address cuts free space, and is refused where there is none."""
    allocator = CachingAllocator()
    allocator.add_segment(1 << 30, 20 * M)
    assert allocator.place((1 << 30) + 4 * M, 4 * M)
    assert not allocator.place((1 << 30) + 6 * M, M)
    assert not allocator.place((1 << 30) + 19 * M, 2 * M)
    assert not allocator.place(1 << 31, M)
    sizes = [(b.size // M, b.live) for b in allocator.snapshot()[0].blocks]
    assert sizes == [(4, False), (4, True), (12, False)]
    with pytest.raises(ValueError, match="overlaps"):
        allocator.add_segment((1 << 30) + 2 * M, 2 * M)


def test_many_allocations_cost_little() -> None:
    """22,000 allocations of mixed sizes and lives stay under 3 s of processor time (0.5 s on a 2-core x86 VM)."""
    allocator = CachingAllocator()
    live: list[int] = []
    begin = time.process_time()
    for i in range(22_000):
        live.append(allocator.alloc((i * 7919) % (30 * M) + 1))
        if len(live) > 800:
            allocator.free(live.pop((i * 31) % 700))
    assert time.process_time() - begin < 3
