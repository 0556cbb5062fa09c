"""The model of glibc's allocator: what stays resident after tensors have died."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmixer.estimate.heap import KIB, MIB, Heap, HeapSettings

FIXED = HeapSettings(
    mmap_threshold=256 * MIB, trim_threshold=512 * MIB, dynamic=False, small_caches=False
)


def test_a_large_request_is_mapped_and_given_back() -> None:
    """Above the threshold memory comes and goes page by page."""
    heap = Heap(HeapSettings(mmap_threshold=128 * KIB, dynamic=False))
    handle = heap.alloc(10 * MIB)
    assert 10 * MIB <= heap.resident_bytes < 10 * MIB + 8 * KIB
    heap.free(handle)
    assert heap.resident_bytes == 0
    assert heap.peak_resident_bytes >= 10 * MIB


def test_a_freed_mapped_chunk_raises_the_threshold() -> None:
    """By default the second request of that size comes from the heap, and stays resident."""
    heap = Heap()
    heap.free(heap.alloc(4 * MIB))
    assert heap.resident_bytes == 0
    heap.free(heap.alloc(4 * MIB))
    assert heap.resident_bytes >= 4 * MIB


def test_a_set_threshold_never_moves() -> None:
    """Setting a threshold turns the dynamic rule off, as mallopt(3) says."""
    heap = Heap(HeapSettings.from_environment({"MALLOC_MMAP_THRESHOLD_": str(MIB)}))
    for _ in range(3):
        heap.free(heap.alloc(4 * MIB))
    assert heap.resident_bytes == 0


def test_a_hole_below_a_living_chunk_stays_resident() -> None:
    """Free memory inside the heap is not given back, but it is used again."""
    heap = Heap(FIXED)
    low, high = heap.alloc(8 * MIB), heap.alloc(MIB)
    heap.free(low)
    assert heap.resident_bytes >= 9 * MIB
    heap.alloc(7 * MIB)
    assert heap.resident_bytes < 10 * MIB
    heap.free(high)


def test_the_smallest_hole_that_fits_is_taken() -> None:
    """Best fit: a small request does not break a large hole."""
    heap = Heap(FIXED)
    large, _ = heap.alloc(8 * MIB), heap.alloc(64)
    small, _ = heap.alloc(3 * MIB), heap.alloc(64)
    heap.free(large)
    heap.free(small)
    heap.alloc(2 * MIB)
    before = heap.resident_bytes
    heap.alloc(7 * MIB)
    assert heap.resident_bytes == before


def test_the_hole_of_a_tensor_is_too_small_for_its_like() -> None:
    """An aligned request needs 96 bytes more than the chunk that such a request leaves."""
    heap = Heap(FIXED)
    heap.small(40)
    freed = heap.alloc(8 * MIB)
    for size in (24, 40, 56, 72, 88):  # in what was cut off before and behind it
        heap.small(size)
    heap.alloc(64)
    heap.free(freed)
    before = heap.resident_bytes
    heap.alloc(8 * MIB)
    assert heap.resident_bytes > before + 7 * MIB
    heap.alloc(7 * MIB)
    assert heap.resident_bytes < before + 9 * MIB


def test_cached_slivers_keep_neighbours_apart() -> None:
    """With glibc's default caches two freed neighbours do not become one hole."""
    grown = {}
    for caches in (False, True):
        heap = Heap(replace(FIXED, small_caches=caches))
        pair = [heap.alloc(4 * MIB), heap.alloc(4 * MIB)]
        heap.alloc(64)
        before = heap.resident_bytes
        for handle in pair:
            heap.free(handle)
        heap.alloc(7 * MIB)
        grown[caches] = heap.resident_bytes - before
    assert grown[False] == 0
    assert grown[True] > 6 * MIB


def test_the_top_is_trimmed_above_its_threshold() -> None:
    """What is free at the top goes back once it is more than the trim threshold."""
    heap = Heap(replace(FIXED, trim_threshold=4 * MIB))
    handles = [heap.alloc(MIB) for _ in range(8)]
    for handle in reversed(handles):
        heap.free(handle)
    assert heap.resident_bytes < 4 * MIB + 256 * KIB
    assert heap.peak_resident_bytes >= 8 * MIB


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_or_counted_twice(seed: int) -> None:
    """Living bytes never exceed resident ones, and all of them return when all is freed."""
    chance, heap, handles = random.Random(seed), Heap(FIXED), []
    requested = 0
    for _ in range(2000):
        if handles and chance.random() < 0.45:
            handle, size = handles.pop(chance.randrange(len(handles)))
            heap.free(handle)
            requested -= size
        else:
            size = chance.choice((100, 5_000, 300_000, 3_000_000))
            handles.append((heap.alloc(size), size))
            requested += size
        assert requested <= heap.live_bytes <= heap.resident_bytes
    for handle, _ in handles:
        heap.free(handle)
    assert heap.live_bytes == 0
    assert not heap._bins
    at = heap.alloc(heap.peak_resident_bytes // 2)
    heap.free(at)
    assert heap.resident_bytes <= heap.peak_resident_bytes


def test_handles_are_checked() -> None:
    """A double free is an error, zero bytes take nothing, a negative size is refused."""
    heap = Heap(FIXED)
    handle = heap.alloc(1000)
    heap.free(handle)
    with pytest.raises(KeyError):
        heap.free(handle)
    assert heap.alloc(0) == 0
    heap.free(0)
    with pytest.raises(ValueError, match="negative"):
        heap.alloc(-1)
