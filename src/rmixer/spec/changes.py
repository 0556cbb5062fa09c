"""What differs between two versions of a jobs file, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmixer.errors import SpecError
from rmixer.spec.document import KeyPath, dotted, parse_text
from rmixer.spec.problems import shown

#: More changes than this are another file.
_SHOWN = 5


def describe_changes(before: str, after: str) -> str:
    """The differences of two texts of a jobs file, for a message; empty if the content is equal.

    Jobs are compared by name, so that an inserted one does not change all that follow. Values of
    environment variables are not told.
    """
    try:
        old, new = parse_text(before, "before")[0], parse_text(after, "after")[0]
    except SpecError as error:
        return f"one of the files cannot be read: {error}"
    found = list(_differences(_by_name(old), _by_name(new), ()))
    if not found and old != new:
        found = ["the order of the jobs"]
    rest = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join([*found[:_SHOWN], *rest])


def _by_name(tree: dict[str, Any]) -> dict[str, Any]:
    jobs = tree.get("jobs")
    if not isinstance(jobs, list):
        return tree
    named = {
        f"job {job.get('name')!r}" if isinstance(job, dict) else f"job {index}": job
        for index, job in enumerate(jobs)
    }
    if len(named) < len(jobs):
        return tree
    return {**{key: value for key, value in tree.items() if key != "jobs"}, **named}


def _differences(old: Any, new: Any, path: KeyPath) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            here = (*path, key)
            if key not in new:
                yield f"{dotted(here)} is gone"
            elif key not in old:
                yield f"{dotted(here)} is new"
            else:
                yield from _differences(old[key], new[key], here)
    elif old != new or type(old) is not type(new):
        was, now = shown(old, path), shown(new, path)
        yield f"{dotted(path)} was {was}, is {now}" if was != now else f"{dotted(path)} has changed"
