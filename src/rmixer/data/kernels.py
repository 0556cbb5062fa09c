"""Loops over bytes and ids that numba compiles: the fast way into the cache.

`rmixer.data.compiled` loads this module where numba is there; what it computes, polars and numpy
compute too. Nothing here checks bounds: callers give arrays of the sizes that the docstrings name.
Eight bytes are handled at once as one 64-bit number, the first byte lowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from rmixer.data.format import NO_ID, NO_NUMBER

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: What a column of text holds (`scan`).
LABEL, WHOLE, HEX = 0, 1, 2

_NEWLINE, _MINUS, _ZERO = 10, 45, 48
_WORD = 8  # bytes
_BASE = 10
_LONGEST = 9  # so many decimal digits always fit into 32 bits


def _each(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * 8))


_ONES, _TOPS, _ZEROS, _CASE = _each(0x01), _each(0x80), _each(_ZERO), _each(0x20)
# Added to a byte below 128, its top bit says whether the byte is at least that character.
_FROM_0, _FROM_COLON = _each(0x80 - _ZERO), _each(0x80 - ord(":"))
_FROM_A, _FROM_G = _each(0x80 - ord("a")), _each(0x80 - ord("g"))
_NIBBLES, _HIGH, _SIX = _each(0x0F), _each(0xF0), _each(0x06)
_TWO, _FOUR = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_BYTE, _LOW = np.uint64(0xFF), np.uint64(0xFFFFFFFF)
_0, _1, _4, _6, _7, _8, _9, _10 = map(np.uint64, (0, 1, 4, 6, 7, 8, 9, 10))
_16, _24, _32, _48, _56, _64 = map(np.uint64, (16, 24, 32, 48, 56, 64))
_100, _10000 = np.uint64(100), np.uint64(10000)
#: Knuth's multiplicative hash, 2**64 over the golden ratio.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@intrinsic
def _load(typing: Any, data: Any, at: Any) -> Any:
    """The 8 bytes from ``at`` on as one number."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        loaded = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        loaded.align = 1
        return loaded

    return types.uint64(data, at), generate


@numba.njit(nogil=True, forceinline=True)
def _hexadecimal(word: Any) -> Any:
    """What 8 hexadecimal digits say; -1 if they are none."""
    lower = word | _CASE
    digit = (word + _FROM_0) & ~(word + _FROM_COLON)
    letter = (lower + _FROM_A) & ~(lower + _FROM_G)
    if (digit | letter) & ~word & _TOPS != _TOPS:
        return -1
    half = (word & _NIBBLES) + _9 * ((word >> _6) & _ONES)
    pair = (half << _4) | (half >> _8)
    upper = ((pair & _BYTE) << _24) | (((pair >> _16) & _BYTE) << _16)
    return np.int64(upper | (((pair >> _32) & _BYTE) << _8) | ((pair >> _48) & _BYTE))


@numba.njit(nogil=True, forceinline=True)
def _bytes_before(word: Any, end: int) -> Any:
    """How many bytes stand before the first one that is ``end``; 8 if none is."""
    other = word ^ (_ONES * np.uint64(end))
    found = (other - _ONES) & ~other & _TOPS  # the lowest bit is the top of the first such byte
    if found == _0:
        return 8
    below = ((found & (~found + _1)) >> _7) - _1
    return np.int64(((below & _ONES) * _ONES) >> _56)


@numba.njit(nogil=True, forceinline=True)
def _filled(word: Any, length: int) -> Any:
    """The first 1 to 8 bytes as the last of eight, behind the character 0."""
    shift = np.uint64(64 - 8 * length)
    return (word << shift) | ((_ZEROS >> _8) >> (_56 - shift))


@numba.njit(nogil=True, forceinline=True)
def _decimal(word: Any) -> Any:
    """What 8 decimal digits say; -1 if they are none."""
    digits = word ^ _ZEROS  # from them come four numbers of two digits, then two, then one
    if (digits | (digits + _SIX)) & _HIGH != _0:
        return -1
    two = digits * _10 + (digits >> _8)
    four = (two & _TWO) * _100 + ((two >> _16) & _TWO)
    return np.int64(((four & _FOUR) * _10000 + ((four >> _32) & _FOUR)) & _LOW)


@numba.njit(nogil=True, forceinline=True)
def _length(data: NDArray[np.uint8], at: int, end: int) -> int:
    """Bytes up to ``end``; 99 if there are more than any number has."""
    length = 0
    while data[at + length] != end:
        length += 1
        if length > _LONGEST:
            return 99
    return length


def scan(  # noqa: C901, PLR0911, PLR0912 - calls would cost more than what they do
    data: NDArray[np.uint8],
    stop: int,
    separator: int,
    roles: NDArray[np.int64],
    places: NDArray[np.int64],
    label_B: NDArray[np.uint8],
    dense_NB: NDArray[np.int32],
    id_FB: NDArray[np.int64],
) -> int:
    """Read lines of labels, whole numbers and hexadecimal ids.

    Args:
        data: text whose last line ends at ``stop``, and 16 bytes more, with any content.
        stop: behind the last newline.
        separator: the byte between two fields.
        roles: per column of the text what it holds.
        places: per column its number among those of its role.
        label_B: is filled, as are the next two; as many rows as there are lines.
        dense_NB: whole numbers, or `NO_NUMBER`.
        id_FB: ids, or `NO_ID`.

    Returns:
        The rows that were read, or -1 if there is anything that this does not read: a fault, a
        quote, a number that is not written plainly, or one of more than 9 digits.
    """
    at, row = 0, 0
    width = roles.size
    while at < stop:
        for column in range(width):
            end = _NEWLINE if column == width - 1 else separator
            role, place = roles[column], places[column]
            word: Any = _load(data, at)  # type: ignore[call-arg]
            first = np.int64(word & _BYTE)
            if role == HEX:
                value = NO_ID
                if first != end:
                    value, length = -1, 8
                    if data[at + 8] == end:
                        value = _hexadecimal(word)
                    if value < 0:
                        length = _length(data, at, end)
                        if length > _WORD:
                            return -1
                        value = _hexadecimal(_filled(word, length))
                        if value < 0:
                            return -1
                    at += length
                id_FB[place, row] = value
            elif role == WHOLE:
                number = NO_NUMBER
                if first != end:
                    negative = first == _MINUS
                    if negative:
                        at += 1
                        word = _load(data, at)
                    length = _bytes_before(word, end)
                    if length == _WORD:
                        length = _length(data, at, end)
                    if length == 0 or length > _LONGEST:
                        return -1
                    number = _decimal(_filled(word, min(length, 8)))
                    if length > _WORD:
                        last = np.int64(data[at + 8]) - _ZERO
                        if last < 0 or last >= _BASE or number < 0:
                            return -1
                        number = _BASE * number + last
                    if number < negative:  # no number, or a negative zero
                        return -1
                    number = -number if negative else number
                    at += length
                dense_NB[place, row] = number
            else:
                if data[at + 1] != end or first >> 1 != _ZERO >> 1:
                    return -1
                label_B[row] = first & 1
                at += 1
            at += 1
        row += 1
    return row


def encode(
    id_B: NDArray[np.int64],
    start: int,
    slots: NDArray[np.uint64],
    shift: int,
    size: int,
    limit: int,
    code_B: NDArray[np.int32],
    fresh: NDArray[np.uint32],
) -> tuple[int, int, int]:
    """Give ids below 2**32 their codes, from 1; new ones get the next code. A missing id has 0.

    Args:
        id_B: ids, or `NO_ID`.
        start: the first of them to be looked at.
        slots: an open-addressed table of a power of two; id in the upper half, code in the lower;
            0 is free.
        shift: 64 less the logarithm of the table's size.
        size: codes that are given.
        limit: the largest number of codes that the table may hold.
        code_B: is filled.
        fresh: gets the new ids, in the order of their codes; as long as ``id_B``.

    Returns:
        Where it stopped (the end, or the id for which the table is too small), the codes that are
        given now, and how many of them are new.
    """
    mask = np.uint64(slots.size - 1)
    turn = np.uint64(shift)
    new = 0
    for i in range(start, id_B.size):
        if id_B[i] < 0:
            code_B[i] = 0
            continue
        key = np.uint64(id_B[i])
        at = (key * _MULTIPLIER) >> turn
        while True:
            slot = slots[at]
            if slot >> _32 == key and slot != _0:
                code_B[i] = np.int32(slot & _LOW)
                break
            if slot == _0:
                if size >= limit:
                    return i, size, new
                size += 1
                slots[at] = (key << _32) | np.uint64(size)
                code_B[i] = size
                fresh[new] = np.uint32(key)
                new += 1
                break
            at = (at + _1) & mask
    return id_B.size, size, new


def insert(ids: NDArray[np.uint32], first: int, slots: NDArray[np.uint64], shift: int) -> None:
    """Put distinct ids with the codes from ``first`` on into a table that has room for them."""
    mask = np.uint64(slots.size - 1)
    turn = np.uint64(shift)
    for i in range(ids.size):
        key = np.uint64(ids[i])
        at = (key * _MULTIPLIER) >> turn
        while slots[at] != _0:
            at = (at + _1) & mask
        slots[at] = (key << _32) | np.uint64(first + i)


def count(code_B: NDArray[Any], kept_B: NDArray[np.bool_], counts: NDArray[np.int64]) -> None:
    """Add how often the kept rows have each code."""
    for i in range(code_B.size):
        counts[code_B[i]] += kept_B[i]


def put(code_B: NDArray[Any], local: NDArray[np.int32], id_B: NDArray[np.int32]) -> None:
    """Write the local id of each code into a column, which may be one of a matrix."""
    for i in range(code_B.size):
        id_B[i] = local[code_B[i]]
