"""Files of processes in ``/proc``, kept open: to read one again costs a third of finding it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from rmixer.monitor.processes import READ_BYTES, read_file

#: Files that are kept open for one process; of more they are opened anew each time.
MOST_KEPT = 64


class KeptFiles:
    """The files of one process. A descriptor is bound to the process, not to its pid.

    Args:
        pid: of the process.
        proc: where ``/proc`` is.
    """

    def __init__(self, pid: int, proc: str) -> None:
        self._root = f"{proc}/{pid}"
        self._open: dict[tuple[str, str], int] = {}

    def read(self, name: str, folder: str = "") -> bytes | None:
        """The beginning of a file, or None if it or the process is gone."""
        descriptor = self._open.get((folder, name))
        if descriptor is None:
            path = f"{self._root}/{folder}{name}"
            if len(self._open) >= MOST_KEPT:
                return read_file(path)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
            self._open[folder, name] = descriptor
        try:
            return os.pread(descriptor, READ_BYTES, 0)
        except OSError:
            self._forget((folder, name))
            return None

    def read_each(self, folder: str, name: str, count: int) -> Iterator[bytes]:
        """The file of that name in each folder that there is now in a folder.

        Args:
            folder: to look into.
            name: of the file.
            count: so many folders there should be; where as many are known and all of them still
                answer, nothing is looked up.
        """
        known = [key for key in self._open if key[0].startswith(folder)]
        if len(known) == count:
            told = [self.read(name, inner) for inner, _ in known]
            if None not in told:
                yield from (text for text in told if text is not None)
                return
        try:
            there = os.listdir(f"{self._root}/{folder}")  # noqa: PTH208
        except OSError:
            return
        kept = {f"{folder}/{inner}/" for inner in there}
        for key in known:  # as of threads that have ended
            if key[0] not in kept and key in self._open:
                self._forget(key)
        for inner in kept:
            text = self.read(name, inner)
            if text is not None:
                yield text

    def close(self) -> None:
        """Close all."""
        for key in list(self._open):
            self._forget(key)

    def _forget(self, key: tuple[str, str]) -> None:
        with contextlib.suppress(OSError):
            os.close(self._open.pop(key))
