"""The progress page: one small file, mapped by the process that writes and the runner that reads.

A fixed little-endian record, so that a job in any Python can write it and a reader needs no parser.
The writer bumps ``sequence`` to an odd number before it changes fields and to an even one after; a
reader that sees an odd or changed number tries again (a seqlock). To publish a step costs less than
a microsecond, so that it is done in every step: whatever ends a process, its last step is there.
"""

import mmap
import os
import struct
import time
from operator import attrgetter
from typing import Any, Dict, Optional

MAGIC = b"RMIXPG03"
SIZE = 4096
#: Beside the page of a job: one of its processes has it.
CLAIM_SUFFIX = ".claim"

#: What a job is doing. Order matters: it only ever grows, except TRAINING <-> EVALUATING.
STARTING, LOADING, TRAINING, EVALUATING, SAVING, DONE = range(6)
PHASES = ("starting", "loading data", "training", "evaluating", "saving", "done")

#: Where the time of a step goes; the page has ``input_seconds`` and so on, cumulated.
SPENT = ("input", "forward", "backward", "optimizer")

_FIELDS = (
    # name, struct code
    ("step", "q"),  # finished optimizer steps
    ("samples", "q"),  # finished training samples
    ("updated_at", "d"),  # unix time of the newest update
    ("input_seconds", "d"),  # cumulated over all steps
    ("forward_seconds", "d"),
    ("backward_seconds", "d"),
    ("optimizer_seconds", "d"),
    # up to here: what `publish_step` writes
    ("phase", "q"),
    ("total_steps", "q"),  # 0: not known
    ("moved_bytes", "q"),  # bytes of memory that parameters and optimizer moved, cumulated
    ("loss", "d"),  # of the newest finished step
    ("first_step_at", "d"),  # unix time at which the first step began; 0: not yet
    # of the allocators of CUDA in this process, summed over GPUs; bytes
    ("device_reserved_bytes", "q"),  # now
    ("device_reserved_peak_bytes", "q"),
    ("device_allocated_peak_bytes", "q"),
    ("told", "q"),  # 1: the program says itself how far it is; 0: its steps are counted
    ("group", "q"),  # the same in all processes that train one model together; 0: it trains alone
)
_NAMES = tuple(name for name, _ in _FIELDS)
_RECORD = struct.Struct("<8sq" + "".join(code for _, code in _FIELDS))
_BODY = struct.Struct("<" + "".join(code for _, code in _FIELDS))
_SEQUENCE = struct.Struct("<q")
_BODY_AT = len(MAGIC) + _SEQUENCE.size
_values = attrgetter(*_NAMES)
_STEP = struct.Struct("<qqqddddd")  # the sequence, and the fields of a step


class ProgressWriter:
    """Writes a job's progress page. Creates the file if there is none.

    Set fields as attributes, then call `publish`; nothing is visible before that.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.phase: int
        self.step: int
        self.total_steps: int
        self.samples: int
        self.moved_bytes: int
        self.loss: float
        self.first_step_at: float
        self.updated_at: float
        self.input_seconds: float
        self.forward_seconds: float
        self.backward_seconds: float
        self.optimizer_seconds: float
        self.device_reserved_bytes: int
        self.device_reserved_peak_bytes: int
        self.device_allocated_peak_bytes: int
        self.told: int
        self.group: int
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, SIZE)
            self._page = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self._sequence = 0
        for name, code in _FIELDS:
            setattr(self, name, 0 if code == "q" else 0.0)
        self.publish()

    def publish(self) -> None:
        """Make the current attributes visible to readers, all at once."""
        self.updated_at = time.time()
        self._sequence += 1
        self._page[: len(MAGIC)] = MAGIC
        _SEQUENCE.pack_into(self._page, len(MAGIC), self._sequence)
        _BODY.pack_into(self._page, _BODY_AT, *_values(self))
        self._sequence += 1
        _SEQUENCE.pack_into(self._page, len(MAGIC), self._sequence)

    def publish_step(
        self,
        now: float,
        input_seconds: float,
        forward_seconds: float,
        backward_seconds: float,
        optimizer_seconds: float,
    ) -> None:
        """Make ``step``, ``samples`` and these values visible, and nothing else; for each step."""
        self._sequence = after = self._sequence + 2
        _STEP.pack_into(
            self._page,
            len(MAGIC),
            after - 1,
            self.step,
            self.samples,
            now,
            input_seconds,
            forward_seconds,
            backward_seconds,
            optimizer_seconds,
        )
        _SEQUENCE.pack_into(self._page, len(MAGIC), after)

    def close(self) -> None:
        """Unmap the page; the file stays for readers."""
        self._page.close()


def claim(path: str) -> str:
    """The page that this process may write: ``path`` for the first of a job that asks.

    Each further process has one beside it, with its pid behind. Where nobody can ask, it is
    ``path``.
    """
    try:
        os.close(os.open(path + CLAIM_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return "%s.%d" % (path, os.getpid())
    except OSError:
        pass
    return path


def read_progress(path: str) -> Optional[Dict[str, Any]]:
    """The page at ``path`` as a dict of its fields, or None if there is none that is whole."""
    for _ in range(8):
        try:
            with open(path, "rb") as file:
                raw = file.read(_RECORD.size)
                if len(raw) < _RECORD.size or not raw.startswith(MAGIC):
                    return None
                file.seek(len(MAGIC))
                after = file.read(_SEQUENCE.size)
        except OSError:
            return None
        values = _RECORD.unpack(raw)
        if values[1] % 2 == 0 and raw[len(MAGIC) : _BODY_AT] == after:
            return dict(zip(_NAMES, values[2:]))
    return None
