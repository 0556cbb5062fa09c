"""The pages of a job's processes make one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmixer.launch.page import CLAIM_SUFFIX, DONE, EVALUATING, TRAINING, ProgressWriter
from rmixer.launch.pages import JobPages


def write(path: Path, **fields: Any) -> None:
    writer = ProgressWriter(str(path))
    for name, value in fields.items():
        setattr(writer, name, value)
    writer.publish()
    writer.close()


def read(folder: Path) -> dict[str, Any]:
    page = JobPages(str(folder / "progress")).read()
    assert page is not None
    return page


def test_trainings_of_their_own_add_up(tmp_path: Path) -> None:
    """Steps, samples, seconds; a total that one does not know is not known; the claim is no page."""
    (tmp_path / ("progress" + CLAIM_SUFFIX)).touch()
    write(tmp_path / "progress", phase=TRAINING, step=5, samples=50, total_steps=9, input_seconds=1)
    write(tmp_path / "progress.77", phase=DONE, step=7, samples=70, input_seconds=2)
    page = read(tmp_path)
    assert [page[name] for name in ("step", "samples", "total_steps")] == [12, 120, 0]
    assert page["input_seconds"] == 3
    assert page["phase"] == TRAINING, "one has ended, the job has not"


def test_ranks_of_one_training_make_its_steps_together(tmp_path: Path) -> None:
    """Steps once, samples of all; another group adds to both."""
    for pid in (1, 2):
        write(tmp_path / f"progress.{pid}", phase=TRAINING, group=8, step=5, samples=50)
    write(tmp_path / "progress", phase=TRAINING, group=9, step=2, samples=20)
    page = read(tmp_path)
    assert (page["step"], page["samples"]) == (7, 120)


def test_what_one_rank_says_is_of_all(tmp_path: Path) -> None:
    """The others' counts are not put on top of it."""
    write(tmp_path / "progress", group=8, told=1, step=100, samples=6400, total_steps=200)
    write(tmp_path / "progress.2", group=8, step=99, samples=3168)
    page = read(tmp_path)
    assert [page[name] for name in ("step", "samples", "total_steps")] == [100, 6400, 200]


def test_memory_of_processes_that_are_there_at_once(tmp_path: Path) -> None:
    """Peaks of those that live add up; one that has ended counts by itself."""
    names = ("device_reserved_bytes", "device_reserved_peak_bytes")
    for name, phase, held in (("progress", DONE, 900), ("progress.1", EVALUATING, 300)):
        write(tmp_path / name, phase=phase, **dict.fromkeys(names, held))
    assert [read(tmp_path)[name] for name in names] == [300, 900]
    write(tmp_path / "progress.2", phase=TRAINING, **dict.fromkeys(names, 700))
    assert [read(tmp_path)[name] for name in names] == [1000, 1000]


def test_a_process_that_comes_later_is_seen(tmp_path: Path) -> None:
    """The folder is read again when a page has come, and a page that is broken off keeps its last."""
    pages = JobPages(str(tmp_path / "progress"))
    assert pages.read() is None
    write(tmp_path / "progress", step=5)
    first = pages.read()
    write(tmp_path / "progress.12", step=6)
    second = pages.read()
    (tmp_path / "progress.12").write_bytes(b"")
    third = pages.read()
    assert [page and page["step"] for page in (first, second, third)] == [5, 11, 11]
