"""``after``: names become ids, and no circle is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmixer.errors import unknown_name
from rmixer.spec.drafts import Draft
from rmixer.spec.problems import Problems

#: A list of known names in a message ends here.
_SHOWN = 20


def resolve(
    drafts: Sequence[Draft],
    names: Sequence[str],
    ids: Sequence[str],
    after: Sequence[tuple[str, ...]],
    problems: Problems,
) -> list[tuple[str, ...]]:
    """The ids of each job's predecessors.

    A name is a job's, or that of a sweep as it is written in the file, which stands for all of its
    jobs.

    Args:
        drafts: the jobs.
        names: their names.
        ids: their ids.
        after: per job, the names that it gives.
        problems: where unknown names and circles go.
    """
    meant: dict[str, list[str]] = {}
    for draft, id_ in zip(drafts, ids, strict=True):
        if draft.member_of is not None:
            meant.setdefault(draft.member_of, []).append(id_)
    meant |= {name: [id_] for name, id_ in zip(names, ids, strict=True)}
    resolved = []
    for draft, wanted in zip(drafts, after, strict=True):
        found: dict[str, None] = {}
        for name in wanted:
            if name not in meant:
                message = unknown_name("job", name, _nearby(name, list(meant)))
                problems.add(draft.path("after"), message)
            found |= dict.fromkeys(meant.get(name, ()))
        resolved.append(tuple(found))
    _check_cycles(drafts, dict(zip(ids, resolved, strict=True)), dict(zip(ids, names, strict=True)),
                  problems)  # fmt: skip
    return resolved


def find_cycle(after: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A circle of ids, the first one again at the end, or None. Linear in the edges."""
    done: set[str] = set()
    for start in after:
        trail: list[str] = []
        on_trail: set[str] = set()
        stack = [(start, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                on_trail.discard(trail.pop())
                done.add(node)
                continue
            if node in on_trail:
                return [*trail[trail.index(node) :], node]
            if node in done:
                continue
            trail.append(node)
            on_trail.add(node)
            stack.append((node, True))
            stack.extend((before, False) for before in reversed(after.get(node, ())))
    return None


def _check_cycles(
    drafts: Sequence[Draft],
    after: Mapping[str, Sequence[str]],
    name_of: Mapping[str, str],
    problems: Problems,
) -> None:
    cycle = find_cycle(after)
    if cycle is None:
        return
    draft = drafts[list(after).index(cycle[0])]
    circle = " -> ".join(name_of[id_] for id_ in cycle)
    problems.add(draft.path("after"), f"the jobs wait for each other: {circle}")


def _nearby(name: str, known: list[str]) -> list[str]:
    """All known names if they are few, else those that are most like it."""
    if len(known) <= _SHOWN:
        return known
    import difflib  # noqa: PLC0415

    return difflib.get_close_matches(name, known, n=_SHOWN, cutoff=0.3) or known[:_SHOWN]
