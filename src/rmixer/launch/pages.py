"""The progress of a job whose processes each have a page: one figure of all of them.

Processes that train one model together (``torch.distributed``) make the same steps: their steps
count once, their samples add up. Processes that train by themselves (children that a program
starts, programs one after the other) add up in both. Where a program says itself how far it is,
what the others of its group count is left out.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from rmixer.launch.page import CLAIM_SUFFIX, DONE, SPENT, TRAINING, read_progress

Page = Dict[str, Any]


class JobPages:
    """Reads the pages of one job. Names are looked up again only when the folder has changed.

    Args:
        path: of the job's first page; the others lie beside it, with a pid behind.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder, self._name = os.path.split(path)
        self._changed = -1
        self._paths: List[str] = [path]
        self._last: Dict[str, Page] = {}

    def read(self) -> Optional[Page]:
        """What `merge` makes of the pages; None where there is none."""
        self._look_up()
        for path in self._paths:
            page = read_progress(path)
            if page is not None:  # else a writer was killed while it wrote: what was there before
                self._last[path] = page
        return merge(list(self._last.values()))

    def _look_up(self) -> None:
        try:
            changed = os.stat(self._folder or os.curdir).st_mtime_ns
            if changed == self._changed:
                return
            names = os.listdir(self._folder or os.curdir)
        except OSError:
            return
        others = sorted(name for name in names if self._is_other(name))
        self._paths = [self.path, *(os.path.join(self._folder, name) for name in others)]
        self._changed = changed

    def _is_other(self, name: str) -> bool:
        before, _, pid = name.rpartition(".")
        return before == self._name and pid.isdigit() and name != self._name + CLAIM_SUFFIX


def merge(pages: List[Page]) -> Optional[Page]:
    """One page of all; None of none. Loss and phase are those of the newest that still trains.

    ``step`` and ``total_steps`` are those of each group, summed over groups; a total that one group
    does not know is not known. Seconds are summed over the processes. The peak of a GPU's memory is
    that of the processes which have not ended together, or of one alone.
    """
    if len(pages) <= 1:
        return pages[0] if pages else None
    groups: Dict[Any, List[Page]] = {}
    for number, page in enumerate(pages):
        groups.setdefault(page["group"] or -number - 1, []).append(page)
    told = [_told(members) for members in groups.values()]
    alive = [page for page in pages if page["phase"] != DONE]
    training = [page for page in alive if page["phase"] == TRAINING]
    newest = max(training or alive or pages, key=lambda page: page["updated_at"])
    totals = [max(page["total_steps"] for page in members) for members in told]
    began = [page["first_step_at"] for page in pages if page["first_step_at"]]
    merged = dict(newest)
    for name in SPENT:
        merged[name + "_seconds"] = sum(page[name + "_seconds"] for page in pages)
    merged.update(
        step=sum(max(page["step"] for page in members) for members in told),
        samples=sum(_samples(members) for members in told),
        total_steps=sum(totals) if all(totals) else 0,
        moved_bytes=sum(page["moved_bytes"] for page in pages),
        first_step_at=min(began, default=0.0),
        updated_at=max(page["updated_at"] for page in pages),
        told=max(page["told"] for page in pages),
        device_reserved_bytes=sum(page["device_reserved_bytes"] for page in alive),
    )
    for name in ("device_reserved_peak_bytes", "device_allocated_peak_bytes"):
        merged[name] = max([sum(page[name] for page in alive), *(page[name] for page in pages)])
    return merged


def _told(members: List[Page]) -> List[Page]:
    return [page for page in members if page["told"]] or members


def _samples(members: List[Page]) -> int:
    """What the ranks counted, together; what they said is of the whole group."""
    counts = [int(page["samples"]) for page in members]
    return max(counts) if members[0]["told"] else sum(counts)
