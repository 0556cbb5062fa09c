"""Tables in the pages of docs/, each between two markers that name it."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def put(page: str | Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.

    Args:
        page: the name of a file in docs/, or a path.
        name: of the place in it.
        text: what shall stand there.

    Raises:
        SystemExit: the page has no such place, or more than one.
    """
    path = DOCS / page
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = (old := path.read_text(encoding="utf-8")).partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed) or begin in rest or end in before + after:
        raise SystemExit(f"{path}: exactly one {begin} with one {end} after it is needed")
    new = f"{before}{begin}\n{text.strip()}\n{end}{after}"
    if new != old:
        path.write_text(new, encoding="utf-8")
