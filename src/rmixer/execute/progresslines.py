"""How far a program says that it is, read from its log: for programs that nothing else can count.

What is understood is the word of the program itself: the bars of ``tqdm``, of Keras, lines of
Paddle with ``ips``, of DLRM with ``ms/it``, epochs ``3/10``. A line that is about evaluation, a
download or the like is no progress of the training, and no number is made up: a bar of one epoch
says nothing of the whole training unless the epochs are known too. These numbers are shown, and
named as what the log says; no decision rests on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmixer.execute.logtail import collapse

#: What is read of a log at one look, however much was written since the last.
LOOK_BYTES = 8 * 1024
#: Lines of that which are looked at, newest first.
LOOK_LINES = 60
#: A line is shown up to this length.
TEXT_LENGTH = 160

_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_NOT_TRAINING = re.compile(
    r"\b(?:eval|valid|val\b|test|infer|predict|download|load|read(?:ing)?\b|toke?niz|preproc"
    r"|process|map\b|mapping|filter|generat|sav(?:e|ing)|shard|fetch|extract|convert)",
    re.IGNORECASE,
)
#: Of a rate in the program's own unit, those that count training samples.
_SAMPLES = {"ins", "instances", "samples", "sample", "examples", "example", "ex", "images", "img"}
_SAMPLES |= {"imgs", "sequences", "rows", "records", "smp"}
_STEPS = {"it", "its", "iter", "iters", "batch", "batches", "step", "steps", "ba"}
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_PER = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}

#: `desc:  18%|##   | 34/187 [00:05<00:23, 6.5it/s, loss=0.5]`; without a total `34it [00:05, ...`.
_TQDM = re.compile(
    rf"^(?P<label>.*?)(?:\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)|(?P<alone>\d+)\w+)"
    rf"\s*\[[\d:?]+(?:<[^,\]]*)?,\s*(?P<rate>{_NUMBER})(?P<unit>[^\s,\]\d][^\s,\]]*)"
)
#: `187/187 [=====>....] - 2s 12ms/step - loss: 0.5`, or with the bars of Keras 3.
_KERAS = re.compile(
    rf"^(?P<label>)\s*(?P<done>\d+)/(?P<total>\d+)\s+(?:\[[=>.]*\]|[━╸╺ \u2500-\u257f]+)"
    rf"(?:.*?\s(?P<rate>{_NUMBER})(?P<per>[mu]?s)/(?:step|epoch|batch))?"
)
#: `epoch: 0, batch_id: 2, ..., avg_batch_cost: 0.064 sec, ..., ips: 31.2 ins/s`
_IPS = re.compile(rf"^(?P<label>.*?)\bips:?\s*(?P<rate>{_NUMBER})\s*(?P<unit>[A-Za-z]+)/s(?:ec)?\b")
_BATCH = re.compile(r"\bbatch(?:_id)?\s*[:=]\s*\[?(\d+)(?:/(\d+))?")
#: `Finished training it 100/400 of epoch 0, 4.50 ms/it, loss 0.092`; any `12.3 it/s`.
_RATE = re.compile(
    rf"^(?P<label>.*?)(?P<rate>{_NUMBER})\s*"
    r"(?P<unit>(?:ms|s)/(?:it|iter|step|batch)|(?:it|iters?|steps?|batch(?:es)?|samples|examples"
    r"|instances|images|rows)/s(?:ec)?)(?![A-Za-z])"
)
_OF = re.compile(r"\b(?:it|iter|iteration|step|batch)s?\s*[:=]?\s*\[?(\d+)\s*/\s*(\d+)")
#: `Epoch 3/10`, `epoch: [3/10]`
_EPOCHS = re.compile(r"\bepochs?\s*[:=]?\s*\[?\s*(\d+)\s*/\s*(\d+)", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\s*[:=]?\s*\[?\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a line of a log says; None is not said.

    Attributes:
        text: the line.
        done, total: of the bar, mostly steps of one epoch.
        epoch, epochs: the epoch that is under way as the program counts, and how many there are.
        steps_per_second, samples_per_second: as the program says.
    """

    text: str
    done: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None

    @property
    def share(self) -> float | None:
        """Of the whole training; None where the line does not tell. Epochs ``n/m`` begin at 1."""
        if not self.epoch or not self.epochs or self.epoch > self.epochs:
            return None
        inside = self.done / self.total if self.done is not None and self.total else 0.0
        return (self.epoch - 1 + min(1.0, inside)) / self.epochs

    def document(self) -> dict[str, Any]:
        """For a line of telemetry: what is said, without what is not."""
        names = [name for name in self.__slots__ if getattr(self, name) is not None]
        return {name: getattr(self, name) for name in names}


def understand(line: str) -> Told | None:
    """What a line says of a training; None if it says nothing."""
    for pattern, read in ((_TQDM, _tqdm), (_KERAS, _keras), (_IPS, _ips), (_RATE, _rate)):
        match = pattern.search(line)
        if match is not None:
            told = None if _NOT_TRAINING.search(match["label"]) else read(match, line)
            return told and _with_epoch(told, line)
    if _EPOCHS.search(line) and not _NOT_TRAINING.search(line):
        return _with_epoch(Told(text=line[:TEXT_LENGTH]), line)
    return None


class ProgressLog:
    """Follows a log; each look costs what `LOOK_BYTES` cost at most.

    Args:
        path: of the log; need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._told: Told | None = None
        self._told_at = 0.0
        self._from_nought = False

    def look(self, at: float) -> tuple[Told, float] | None:
        """The newest progress, and when it was first seen by the clock of ``at``; None if none."""
        newest = self._newest()
        if newest is not None:
            self._from_nought |= newest.epoch == 0
            if self._from_nought:  # of ``3/9`` it is not known whether it is the third or fourth
                newest = replace(newest, epochs=None)
            self._told, self._told_at = _following(self._told, newest), at
        return None if self._told is None else (self._told, self._told_at)

    def _newest(self) -> Told | None:
        lines = self._new_lines()
        epochs = next((m for m in map(_EPOCHS.search, reversed(lines)) if m), None)
        for line in reversed(lines):
            told = understand(line)
            if told is None:
                continue
            if told.epochs is None and epochs is not None:
                told = replace(told, epoch=int(epochs[1]), epochs=int(epochs[2]))
            return told
        return None

    def _new_lines(self) -> list[str]:
        try:
            size = self._path.stat().st_size
            if size == self._size:
                return []
            with self._path.open("rb") as file:
                file.seek(max(size - LOOK_BYTES, self._size if size > self._size else 0))
                raw = file.read(LOOK_BYTES)
        except OSError:
            return []
        self._size = size
        return collapse(raw.decode("utf-8", "replace"))[-LOOK_LINES:]


def _following(before: Told | None, now: Told) -> Told:
    """A bar belongs to the epoch that was told last, if it does not name one itself."""
    if before is None or before.epochs is None or now.epoch is not None:
        return now
    return replace(now, epoch=before.epoch, epochs=before.epochs)


def _tqdm(match: re.Match[str], line: str) -> Told | None:
    rate, unit = float(match["rate"]), match["unit"]
    if unit.startswith("s/"):
        rate, unit = (1 / rate if rate else 0.0), unit[2:]
    elif unit.endswith("/s"):
        unit = unit[:-2]
    else:
        return None
    scale = ""
    if unit not in _STEPS | _SAMPLES and unit[:1] in _SCALE:
        scale, unit = unit[0], unit[1:]
    if unit not in _STEPS | _SAMPLES:  # bytes, tokens, files
        return None
    total = int(match["total"]) if match["total"] else None
    return Told(
        text=line.strip()[:TEXT_LENGTH],
        done=int(match["done"] or match["alone"]),
        total=total,
        **_rates(rate * _SCALE[scale], unit),
    )


def _keras(match: re.Match[str], line: str) -> Told | None:
    told = Told(text=line.strip()[:TEXT_LENGTH], done=int(match["done"]), total=int(match["total"]))
    seconds = float(match["rate"]) * _PER[match["per"]] if match["rate"] else 0.0
    return replace(told, steps_per_second=1 / seconds) if seconds else told


def _ips(match: re.Match[str], line: str) -> Told | None:
    told = Told(text=line.strip()[:TEXT_LENGTH], **_rates(float(match["rate"]), match["unit"]))
    batch = _BATCH.search(line)
    if batch is None:
        return told
    return replace(told, done=int(batch[1]), total=int(batch[2]) if batch[2] else None)


def _rate(match: re.Match[str], line: str) -> Told | None:
    rate, (over, under) = float(match["rate"]), match["unit"].split("/")
    if over in _PER:
        rate, over = (1 / (rate * _PER[over]) if rate else 0.0), under
    told = Told(text=line.strip()[:TEXT_LENGTH], **_rates(rate, over))
    of = _OF.search(line)
    return told if of is None else replace(told, done=int(of[1]), total=int(of[2]))


def _rates(rate: float, unit: str) -> dict[str, Any]:
    if rate <= 0:
        return {}
    if unit in _SAMPLES:
        return {"samples_per_second": rate}
    return {"steps_per_second": rate} if unit in _STEPS else {}


def _with_epoch(told: Told, line: str) -> Told:
    epochs = _EPOCHS.search(line)
    if epochs is not None:
        return replace(told, epoch=int(epochs[1]), epochs=int(epochs[2]))
    epoch = _EPOCH.search(line)
    return told if epoch is None else replace(told, epoch=int(epoch[1]))
