"""What an iteration is where a program has several optimizers."""

from __future__ import annotations

import gc

import pytest

from rmixer.launch.iterations import PATIENCE, Iterations


class Optimizer:
    """Steps when it is told to."""


def count(order: str, *, batches: bool = False) -> int:
    """Iterations of a program: one letter per optimizer's step, ``.`` a batch that is fetched."""
    iterations, optimizers = Iterations(), {}
    total = 0
    for letter in order:
        if letter == ".":
            iterations.on_new_batch = True
        elif letter == "-":  # all of them are gone: a fold has ended
            optimizers.clear()
            gc.collect()
        else:
            total += iterations.step(optimizers.setdefault(letter, Optimizer()))
    return total + iterations.rest()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("A" * 7, 7),
        ("DG" * 7, 7),
        (".DG" * 7, 7),
        (".D.G" * 7, 7),  # each on a batch of its own
        ("DGG" * 7, 7),
        (".DGG" * 7, 7),
        ("DDDDDG" * 3, 15),  # the critic steps on every batch
        (".D.D.D.D.DG" * 3, 15),
        ("A" * 7 + "B" * 5, 12),  # known only at the end
        ("A" * 7 + "B" * 50, 57),
        (".A" * 7 + ".B" * 5, 12),
        (".A" * 7 + ".B", 8),
        ("A" * 7 + "-" + "A" * 7 + "-" + "A", 15),
        (".DG" * 4 + "-" + ".DG" * 4, 8),
        (".BA.A.A.A" * 5, 20),  # B in every fourth iteration, and first
        (".AAAA" * 5, 20),  # four steps on each batch
        ("ABC" * 9, 9),
        ("A" * 50 + "B" * 50 + "A" * 50, 150),
        ("", 0),
    ],
)
def test_iterations_are_what_a_program_would_count(order: str, expected: int) -> None:
    """For loops as people write them: turns, folds, a second phase, rare steps."""
    assert count(order) == expected


def test_a_leader_that_stands_still_is_followed_after_a_while() -> None:
    """Until then nothing is counted that may be a part of its iteration; then all of it."""
    iterations, first, second = Iterations(), Optimizer(), Optimizer()
    assert [iterations.step(first) for _ in range(3)] == [1, 1, 1]
    added = [iterations.step(second) for _ in range(PATIENCE + 3)]
    assert added == [0] * PATIENCE + [PATIENCE + 1, 1, 1]
