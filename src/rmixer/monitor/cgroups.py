"""The limits that control groups set, version 1 and 2, wherever they are mounted.

A limit may stand on any ancestor ("max" on the leaf says nothing), and the group of a process is
the one in ``/proc/self/cgroup``, not the root of the mount. Control groups: ``cgroups(7)``,
``Documentation/admin-guide/cgroup-v2.rst`` of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: Version 1 says "no limit" by a number near 2^63.
UNLIMITED = 2**60


def cpu_quota(proc: Path, sys: Path) -> float | None:
    """Cores' worth of processor time that this process may use; None for no limit."""
    quotas = [quota for group in _groups(proc, sys, "cpu") if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def memory_left(proc: Path, sys: Path) -> int | None:
    """Bytes until the tightest memory limit is reached; None for no limit.

    File pages in the page cache are not counted as used: the kernel takes them back.
    """
    left = [
        limit - _used(group)
        for group in _groups(proc, sys, "memory")
        if (limit := _memory_limit(group)) is not None
    ]
    return min(left, default=None)


def _groups(proc: Path, sys: Path, controller: str) -> Iterator[Path]:
    """The directories of our group and of its ancestors, for one controller."""
    paths = _own_paths(proc)
    for mount, root, options in _mounts(proc, sys):
        path = paths.get(controller if options is not None else "")
        if path is None or (options is not None and controller not in options):
            continue
        group = mount / _below(path, root)
        while group != mount and not group.is_dir():  # hidden by a namespace
            group = group.parent
        yield group
        while group != mount:
            group = group.parent
            yield group


def _below(path: str, root: str) -> str:
    """A group's path as seen from the mount, whose own root in the hierarchy may be a group.

    ``..`` leads out of our namespace, to what cannot be seen from here.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    roots = [part for part in root.split("/") if part not in ("", "..")]
    return "/".join(parts[len(roots) :] if parts[: len(roots)] == roots else parts)


def _own_paths(proc: Path) -> dict[str, str]:
    """Our group by controller; the unified hierarchy of version 2 is under the empty name."""
    paths = {}
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(proc: Path, sys: Path) -> Iterator[tuple[Path, str, list[str] | None]]:
    """Mount point, root within the hierarchy, and for version 1 the controllers."""
    for line in _lines(proc / "self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = before.split()[3:5]
        inside = Path(mount).relative_to("/sys") if mount.startswith("/sys/") else None
        place = sys / inside if inside is not None else Path(mount)
        yield place, root, options.split(",") if kind == "cgroup" else None


def _quota(group: Path) -> float | None:
    both = _text(group / "cpu.max").split()
    if len(both) == 2 and both[0] != "max":  # noqa: PLR2004 - "$MAX $PERIOD"
        return int(both[0]) / int(both[1])
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and quota > 0 and period else None


def _memory_limit(group: Path) -> int | None:
    """The limit of a group; in version 1 also of its ancestors that a container does not see."""
    found = [_number(group / name) for name in ("memory.max", "memory.limit_in_bytes")]
    found.append(_statistics(group).get("hierarchical_memory_limit"))
    return min((limit for limit in found if limit is not None and limit < UNLIMITED), default=None)


def _used(group: Path) -> int:
    used = _number(group / "memory.current")
    if used is None:
        used = _number(group / "memory.usage_in_bytes") or 0
    pages = _statistics(group)
    cached = sum(
        pages.get(f"total_{name}") or pages.get(name) or 0
        for name in ("inactive_file", "active_file")
    )
    return max(0, used - cached)


def _statistics(group: Path) -> dict[str, int]:
    words = (line.split() for line in _lines(group / "memory.stat"))
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}  # noqa: PLR2004


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _lines(path: Path) -> list[str]:
    return [line for line in _text(path).splitlines() if line]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
