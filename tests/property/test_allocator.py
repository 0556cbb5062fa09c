"""Properties of the model of the caching allocator, for any sequence of requests and frees."""

from contextlib import suppress
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from rmixer.estimate.allocator import CachingAllocator
from rmixer.estimate.blocks import AllocatorSettings, OutOfMemory

M = 1 << 20
SETTINGS = [
    AllocatorSettings(),
    AllocatorSettings(max_split_size_mb=32),
    AllocatorSettings(roundup_power2_divisions=4),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(expandable_segments=True, max_split_size_mb=32),
]
sizes = st.one_of(st.integers(1, 4096), st.integers(1, 2 * M), st.integers(1, 60 * M))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), sizes, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def check(allocator: CachingAllocator, live: dict[int, int]) -> None:
    """Blocks tile what is reserved, live ones are as asked for, the sums are the counters."""
    segments = allocator.snapshot()
    blocks = [block for segment in segments for block in segment.blocks]
    assert sum(b.size for b in blocks) == allocator.reserved_bytes
    assert sum(b.size for b in blocks if b.live) == allocator.allocated_bytes
    assert allocator.reserved_bytes >= allocator.allocated_bytes
    assert allocator.peak_reserved_bytes >= allocator.reserved_bytes
    ordered = sorted(blocks, key=lambda b: b.address)
    pairs = pairwise(ordered)
    assert all(a.address + a.size <= b.address for a, b in pairs)
    assert {b.address for b in blocks if b.live} == set(live)
    assert all(b.size >= live[b.address] for b in blocks if b.live)


def perform(allocator: CachingAllocator, wanted: list) -> dict[int, int]:
    """Do the steps, and check after each; what is live at the end, with the bytes asked for."""
    live: dict[int, int] = {}
    for action, value, stream in wanted:
        if action == "alloc":
            with suppress(OutOfMemory):
                live[allocator.alloc(value, stream)] = value
        elif action == "empty":
            allocator.empty_cache()
        elif live:
            address = sorted(live)[value % len(live)]
            allocator.free(address)
            del live[address]
        check(allocator, live)
    return live


@example(AllocatorSettings(expandable_segments=True), 1, [("alloc", 1, 0), ("alloc", M + 1, 0)])
@given(settings=st.sampled_from(SETTINGS), limit=st.integers(1, 12) | st.none(), wanted=steps)
def test_live_blocks_never_overlap(
    settings: AllocatorSettings, limit: int | None, wanted: list
) -> None:
    """After every step, with and without a limit, also across out-of-memory; the limit holds."""
    bound = None if limit is None else limit * 20 * M
    allocator = CachingAllocator(settings, limit_bytes=bound)
    for address in perform(allocator, wanted):
        allocator.free(address)
    assert bound is None or allocator.peak_reserved_bytes <= bound
    allocator.empty_cache()
    assert allocator.reserved_bytes == allocator.allocated_bytes == 0
    assert allocator.snapshot() == ()


@given(settings=st.sampled_from(SETTINGS), wanted=steps)
def test_freeing_all_leaves_one_free_block_a_segment(
    settings: AllocatorSettings, wanted: list
) -> None:
    """No split stays behind. Emptying an expandable segment may leave holes, so it is left out."""
    allocator = CachingAllocator(settings)
    for address in perform(allocator, [step for step in wanted if step[0] != "empty"]):
        allocator.free(address)
    for segment in allocator.snapshot():
        assert [(b.size, b.live) for b in segment.blocks] == [(segment.size, False)]


@given(settings=st.sampled_from(SETTINGS), wanted=steps)
def test_the_same_steps_give_the_same_addresses(settings: AllocatorSettings, wanted: list) -> None:
    """The model is a function of what it is asked."""
    first, second = CachingAllocator(settings), CachingAllocator(settings)
    assert perform(first, wanted) == perform(second, wanted)
    assert first.snapshot() == second.snapshot()


@given(settings=st.sampled_from(SETTINGS), wanted=steps, size=sizes)
def test_fit_tells_where_alloc_puts_it(
    settings: AllocatorSettings, wanted: list, size: int
) -> None:
    """What fits asks the driver for nothing and lies where told; what does not fit asks it."""
    allocator = CachingAllocator(settings)
    perform(allocator, wanted)
    told, before = allocator.fit(size), allocator.reserved_bytes
    address = allocator.alloc(size)
    assert told in (None, address)
    assert (told is None) == (allocator.reserved_bytes > before)
