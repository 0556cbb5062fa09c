"""Amounts add, subtract and compare exactly; sizes and durations are read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmixer.resources import (
    GIB,
    MIB,
    Resources,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
)

amounts = st.builds(
    Resources, st.integers(0, 64_000).map(lambda n: n / 1000), st.integers(0, 2**40),
    st.integers(0, 2**40),
)  # fmt: skip


@given(amounts, amounts)
def test_what_was_taken_can_be_given_back(room: Resources, taken: Resources) -> None:
    """Booking and giving back leaves exactly what there was, fractions of a core included."""
    assert room - taken + taken == room
    assert taken.fits_in(room + taken)


@given(st.lists(st.integers(1, 1000), max_size=40))
def test_thousandths_of_a_core_add_up(parts: list[int]) -> None:
    """Any order of bookings has the same sum: no drift that would refuse the last one."""
    total = Resources()
    for part in parts:
        total += Resources(cpu=part / 1000)
    assert total.cpu == sum(parts) / 1000


@pytest.mark.parametrize(
    ("amount", "fits"),
    [
        (Resources(2.0, 10, 5), True),
        (Resources(2.001, 10, 5), False),
        (Resources(2.0, 11, 5), False),
        (Resources(2.0, 10, 6), False),
    ],
)
def test_every_component_must_fit(amount: Resources, fits: bool) -> None:
    """One that is too large is enough to refuse."""
    assert amount.fits_in(Resources(2.0, 10, 5)) is fits


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", 6 * GIB), ("6 gib", 6 * GIB), ("512MB", 512_000_000), ("1.5G", 3 * GIB // 2),
        ("0", 0), (7, 7), ("12B", 12), (" 1 KiB ", 1024),
    ],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    """GiB and GB are different; letters may be small; a plain number is bytes."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "six", "6 GiX", "-1", "1e3", "6 GiB 5", True, -5])
def test_no_sizes(text: str | int) -> None:
    """The message says what is wrong, with the value."""
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15min", 900), ("2h", 7200), ("1d", 86400), ("01:30:00", 5400),
     ("2:30", 150), (1.5, 1.5)],
)  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    """Seconds, units, or a clock."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "00:00", "-5", 0, -1.0, True, "5 weeks"])
def test_no_durations(text: str | float) -> None:
    """Nothing, less than nothing and words are refused."""
    with pytest.raises(ValueError, match="duration"):
        parse_seconds(text)


@given(st.integers(0, 2**50))
def test_written_sizes_are_read_again(size: int) -> None:
    """What people see is within a rounding of what is meant, and can be typed back."""
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.5, abs=1)


def test_written_for_people() -> None:
    """One unit, few digits; a minute is a minute also after rounding."""
    assert format_bytes(740 * MIB) == "740 MiB"
    assert format_bytes(int(11.2 * GIB)) == "11.2 GiB"
    assert [format_seconds(s) for s in (4.21, 59.97, 187, 3729)] == [
        "4.2 s", "1:00", "3:07", "1:02:09",
    ]  # fmt: skip
