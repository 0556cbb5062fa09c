"""What logs say of the progress of programs that nothing else can count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmixer.execute.progresslines import LOOK_BYTES, ProgressLog, understand

PADDLE_REC = (
    "2026-01-01 10:00:00 - INFO - epoch: 0, batch_id: 20, auc: 0.5, avg_reader_cost: 0.00108 sec, "
    "avg_batch_cost: 0.06408 sec, avg_samples: 2.00000, ips: 31.18665 ins/s"
)

#: Lines as real programs printed them, and what they say.
LINES = [
    (
        "Epoch 0: 100%|██████████| 30/30 [00:00<00:00, 101.27it/s]",
        {"done": 30, "total": 30, "steps_per_second": 101.27, "epoch": 0},
    ),
    (
        "epoch 5:  18%|█▊        | 34/187 [00:03<00:15,  9.71it/s, loss=0.517]",
        {"done": 34, "total": 187, "steps_per_second": 9.71, "epoch": 5},
    ),
    (
        "train:  50%|█████     | 2/4 [00:02<00:02,  1.25s/it]",
        {"done": 2, "total": 4, "steps_per_second": 0.8},
    ),
    ("812it [00:07, 115.2it/s]", {"done": 812, "steps_per_second": 115.2}),
    (
        "train: 40%|####      | 4096/10240 [00:01<00:02, 2.50kex/s]",
        {"done": 4096, "total": 10240, "samples_per_second": 2500.0},
    ),
    (
        PADDLE_REC,
        {"done": 20, "epoch": 0, "samples_per_second": 31.18665},
    ),
    (
        "34/187 [====>.........................] - ETA: 1s - loss: 0.5123",
        {"done": 34, "total": 187},
    ),
    (
        "187/187 [==============================] - 2s 12ms/step - loss: 0.41 - val_loss: 0.5",
        {"done": 187, "total": 187, "steps_per_second": 1 / 0.012},
    ),
    (
        "187/187 ━━━━━━━━━━━━━━━━━━━━ 1s 4ms/step - auc: 0.71 - loss: 0.45",
        {"done": 187, "total": 187, "steps_per_second": 250.0},
    ),
    (
        "Finished training it 100/400 of epoch 0, 4.50 ms/it, loss 0.092133",
        {"done": 100, "total": 400, "steps_per_second": 1 / 0.0045, "epoch": 0},
    ),
    (
        "[train] epoch: [2/10], batch: [20/400], loss: 6.1, ips: 4096.1 tokens/s",
        {"done": 20, "total": 400, "epoch": 2, "epochs": 10},
    ),
    ("Epoch 1/10", {"epoch": 1, "epochs": 10}),
    ("step 20/4000  loss 0.61234  52311 samples/s", {"done": 20, "total": 4000,
                                                     "samples_per_second": 52311.0}),
]  # fmt: skip

#: Lines that are no progress of a training.
OTHERS = [
    "Evaluating:  33%|███       | 1/3 [00:00<00:00, 12.1it/s]",
    "test: 100%|██████████| 3/3 [00:00<00:00, 12.1it/s]",
    "Downloading data: 33%|███  | 11/33 [00:00<00:00, 12.1it/s]",
    "model.bin:  33%|███       | 1.10M/3.30M [00:00<00:00, 12.1MB/s]",
    "100%|##########| 900/900 [00:00<00:00, 4.2kB/s]",
    "train:   0%|          | 0/100 [00:00<?, ?it/s]",
    "loaded 3/10 files",
    "accuracy 0.71, 12 ms",
    "2026-01-01 10:00:00 INFO listening on 127.0.0.1:8080/ips",
    "",
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_what_a_line_says(line: str, expected: dict[str, Any]) -> None:
    """The numbers that are in it, and no others."""
    told = understand(line)
    assert told is not None
    document = told.document()
    assert document.pop("text") == line[:160]
    assert document == pytest.approx(expected)


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_no_progress(line: str) -> None:
    """Evaluation, downloads, and whatever else has numbers."""
    assert understand(line) is None


def test_a_log_is_followed(tmp_path: Path) -> None:
    """Bars belong to the epoch that was named before; a quiet log keeps its last line, and its age."""
    path = tmp_path / "log.txt"
    log = ProgressLog(path)
    assert log.look(0.0) is None
    path.write_text("loading\nEpoch 3/4\n")
    told = log.look(1.0)
    assert told is not None
    assert told[0].share == 0.5
    with path.open("a") as file:
        file.write("\r1/10 [=>...] - ETA: 1s\r5/10 [====>..] - ETA: 1s")
    for at in (2.0, 9.0):
        told = log.look(at)
        assert told is not None
        assert (told[0].share, told[1]) == (0.625, 2.0)


def test_a_bar_alone_says_nothing_of_the_whole(tmp_path: Path) -> None:
    """Nor does an epoch of which it is not known how many there are."""
    for line in ("Epoch 0: 99%|█████| 99/100 [00:09<00:00, 9.0it/s]", "9/10 [==>.] - ETA: 1s"):
        told = understand(line)
        assert told is not None
        assert told.share is None


def test_epochs_that_begin_at_nought(tmp_path: Path) -> None:
    """``0/9`` may be of nine or of ten: then, and later in that log, no share is made up."""
    path = tmp_path / "log.txt"
    log = ProgressLog(path)
    for text in ("Epoch 0/9\n", "Epoch 3/9\n"):
        path.write_text(path.read_text() + text if path.exists() else text)
        told = log.look(0.0)
        assert told is not None
        assert told[0].share is None


def test_a_flood_costs_what_its_end_costs(tmp_path: Path) -> None:
    """What was written long before the end is not read; the newest line counts."""
    path = tmp_path / "log.txt"
    path.write_text("Epoch 1/10\n" + "x" * (2 * LOOK_BYTES) + "\n5/10 [====>..] - ETA: 1s\n")
    told = ProgressLog(path).look(0.0)
    assert told is not None
    assert (told[0].done, told[0].epochs) == (5, None)
