"""What has changed between two results of a benchmark, beyond the spread of its repeats.

    python benchmarks/compare.py OLD NEW          # two files of results/, or two folders of them
    python benchmarks/compare.py --least 0.05 OLD NEW

Numbers are compared by where they stand. Where a runner or a policy was measured several times, its
medians are compared, and a change counts when no repeat of the one is within the range of the
other's, and it is larger than `--least`. A single number has no spread: there `--single` is what
counts as a change. The exit code is 1 if something has changed, 2 if nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What says which measurement this is, and not how it came out.
NAMES = ("runner", "policy", "scenario", "model", "optimizer", "batch_size", "what", "over", "name",
         "format", "source", "table_rows", "jobs", "size", "kind")  # fmt: skip
#: What differs from repeat to repeat of one measurement, or says nothing about speed.
IGNORED = ("repeat", "date", "command", "machine", "steps", "goal", "missed")


@dataclass(frozen=True)
class Change:
    """A number that is not what it was.

    Attributes:
        place: what was measured.
        old, new: medians.
        is_beyond: whether the change is larger than the spread.
    """

    place: str
    old: float
    new: float
    is_beyond: bool

    @property
    def relative(self) -> float:
        """``new / old - 1``; infinite if it was 0 and is not."""
        if not self.old:
            return math.copysign(math.inf, self.new) if self.new else 0.0
        return self.new / self.old - 1


def collect(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a document with the place of each; repeats of one have the same place."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        if math.isfinite(value):
            yield place, float(value)
    elif isinstance(value, Mapping):
        names = [str(value[key]) for key in NAMES if isinstance(value.get(key), str | int)]
        here = " / ".join([*([place] if place else []), *names])
        for key, inner in value.items():
            if key not in (*NAMES, *IGNORED):
                yield from collect(inner, f"{here}: {key}" if here else key)
    elif isinstance(value, Sequence):
        for i, inner in enumerate(value):
            # Numbers in a row are repeats of one; named things say themselves which they are.
            named = isinstance(inner, int | float) or _is_named(inner)
            yield from collect(inner, place if named else f"{place}[{i}]")


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and any(key in value for key in NAMES)


def grouped(document: Any) -> dict[str, list[float]]:
    """The repeats of each measurement, by its place."""
    found: dict[str, list[float]] = {}
    for place, value in collect(document):
        found.setdefault(place, []).append(value)
    return found


def changes(old: Any, new: Any, least: float, single: float) -> list[Change]:
    """Every measurement that both have."""
    before, after = grouped(old), grouped(new)
    return [_change(place, before[place], after[place], least, single)
            for place in before if place in after]  # fmt: skip


def _change(
    place: str, old: Sequence[float], new: Sequence[float], least: float, single: float
) -> Change:
    found = Change(place, statistics.median(old), statistics.median(new), is_beyond=False)
    apart = min(new) > max(old) or max(new) < min(old)
    is_single = min(len(old), len(new)) == 1
    enough = abs(found.relative) > (single if is_single else least)
    return Change(place, found.old, found.new, apart and enough)


def pairs(old: Path, new: Path) -> list[tuple[str, Path, Path]]:
    """The files to compare: the two, or those that both folders have."""
    if old.is_dir() != new.is_dir():
        raise SystemExit("name two files or two folders")
    if not old.is_dir():
        return [(new.stem, old, new)]
    names = sorted({path.name for path in old.glob("*.json")})
    return [(Path(n).stem, old / n, new / n) for n in names if (new / n).exists()]


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{path}: no results that can be read: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--least", type=float, default=0.02, help="a change that counts, relative")
    parser.add_argument("--single", type=float, default=0.15, help="the same without repeats")
    parser.add_argument("--all", action="store_true", help="also what is within the spread")
    args = parser.parse_args(arguments)
    compared, beyond = 0, 0
    for name, old, new in pairs(args.old, args.new):
        found = changes(read(old), read(new), args.least, args.single)
        compared += len(found)
        for change in sorted(found, key=lambda one: -abs(one.relative)):
            beyond += change.is_beyond
            if change.is_beyond or args.all:
                mark = "CHANGED" if change.is_beyond else "same   "
                values = f"{change.old:.6g} -> {change.new:.6g} ({change.relative:+.1%})"
                print(f"{mark} {name}: {change.place}: {values}")
    print(f"{compared} measurements compared, {beyond} changed beyond the spread")
    if not compared:
        return 2
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
