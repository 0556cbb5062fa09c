"""What is executed for a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rmixer.errors import StorageError
from rmixer.execute import attempt
from rmixer.execute.command import Order, build_order
from rmixer.launch import shim
from rmixer.model import JobSpec, Placement
from rmixer.paths import RunPaths


def order(run: Path, kind: Any, **payload: Any) -> Order:
    spec = JobSpec(id="a", name="A", kind=kind, payload=payload)
    return build_order(
        spec, 1, "token", Placement(threads=2), paths=RunPaths(run), cores=(3, 1), grace_seconds=5.0, inherited={}
    )  # fmt: skip


def test_command_is_executed_as_it_is(tmp_path: Path) -> None:
    """Words of a command are not touched, its directory is the one asked for."""
    made = order(tmp_path, "command", argv=["awk", "{print $1}", "a b"], workdir="/data")
    assert made.document["argv"] == ["awk", "{print $1}", "a b"]
    assert (made.document["cwd"], made.document["cores"]) == ("/data", [1, 3])
    assert made.config is None


@pytest.mark.parametrize(("limit", "ordered"), [(0, None), (5 * 2**20, 5 * 2**20)])
def test_memory_limit_is_in_the_order(tmp_path: Path, limit: int, ordered: int | None) -> None:
    """The shim is told the limit of the placement, or that there is none."""
    spec = JobSpec(id="a", name="A", kind="command", payload={"argv": ["true"]})
    made = build_order(
        spec, 1, "token", Placement(memory_limit=limit), paths=RunPaths(tmp_path), cores=(0,),
        grace_seconds=5.0, inherited={},
    )  # fmt: skip
    assert made.document["memory_limit"] == ordered


def test_training_is_our_worker_with_its_configuration(tmp_path: Path) -> None:
    """config.json has what was asked for and the paths of the run; process keys are not in it."""
    asked = {
        "model": "dlrm",
        "params": {"embedding_dim": 16},
        "batch_size": 8,
        "data": {"path": "/x"},
    }
    made = order(tmp_path, "model", **asked, env={"A": "1"}, workdir="/data")
    paths = RunPaths(tmp_path).job("a")
    config = paths.attempt(1).config
    assert made.document["argv"] == [sys.executable, "-m", "rmixer.train.worker", str(config)]
    assert made.config is not None
    assert asked.items() <= made.config.items()
    assert made.config["threads"] == 2
    assert made.config["model_dir"] == str(paths.model)
    assert made.config["progress_path"] == str(paths.attempt(1).progress)
    assert made.config["result_path"] == str(paths.attempt(1).result)
    assert not {"env", "workdir"} & made.config.keys()
    assert made.document["env"]["A"] == "1"


def test_training_under_another_interpreter(tmp_path: Path) -> None:
    """A job's own interpreter is used."""
    assert order(tmp_path, "model", python="/opt/py").document["argv"][0] == "/opt/py"


def test_long_scratch_gets_a_short_name(tmp_path: Path) -> None:
    """TMPDIR leaves room for a Unix socket's name; the short name leads to the scratch."""
    deep = tmp_path / ("d" * 100)
    made = order(deep, "command", argv=["true"])
    short = made.document["env"]["TMPDIR"]
    assert len(short) <= attempt.LONGEST_TMPDIR
    paths = RunPaths(deep).job("a").attempt(1)
    attempt.lay_out(paths, made.document)
    assert Path(short).resolve() == paths.scratch.resolve()
    attempt.remove_link(RunPaths(deep).job("b").attempt(1), short)
    assert Path(short).is_symlink(), "another attempt's name stays"
    attempt.clear(paths, made.temporary)
    assert not Path(short).is_symlink()
    assert order(Path("/r"), "command", argv=["true"]).temporary is None


def test_short_name_is_written_down_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment, a runner leaves no short name that the next one cannot remove."""
    paths = RunPaths(tmp_path).job("a").attempt(1)
    known: list[Any] = []
    monkeypatch.setattr(
        Path, "symlink_to", lambda link, target: known.append(attempt.read_document(paths.order))
    )
    attempt.lay_out(paths, {"temporary": str(tmp_path / "short")})
    assert known == [{"temporary": str(tmp_path / "short")}]


def test_order_is_private_and_ends_have_space(tmp_path: Path) -> None:
    """Nobody else reads an environment; exit.json can be written when the disk is full."""
    paths = RunPaths(tmp_path).job("a").attempt(1)
    made = order(tmp_path, "command", argv=["true"])
    attempt.lay_out(paths, made.document)
    attempt.remove_link(paths, made.temporary)
    assert paths.order.stat().st_mode & 0o777 == 0o600
    reserve = paths.exit.with_name(paths.exit.name + shim.RESERVE_SUFFIX)
    assert reserve.stat().st_blocks * 512 >= shim.RESERVE_BYTES


def test_attempt_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """A directory of an attempt is made once."""
    paths = RunPaths(tmp_path).job("a").attempt(1)
    attempt.lay_out(paths, {"token": "first"})
    with pytest.raises(StorageError, match="attempts/1: cannot be made: File exists"):
        attempt.lay_out(paths, {"token": "second"})
    assert attempt.read_document(paths.order) == {"token": "first"}


def test_failed_layout_leaves_nothing(tmp_path: Path) -> None:
    """What could be written before the failure is removed again."""
    paths = RunPaths(tmp_path).job("a").attempt(1)
    taken = tmp_path / "taken"
    taken.touch()
    with pytest.raises(StorageError, match="cannot be written"):
        attempt.lay_out(paths, {"temporary": str(taken)})
    assert not paths.root.exists()
    assert taken.exists()


def test_claim_tells_a_living_shim(tmp_path: Path) -> None:
    """A lock that another holds is not had; after its holder it is."""
    paths = RunPaths(tmp_path).job("a").attempt(1)
    with pytest.raises(FileNotFoundError), attempt.claim(paths):
        pass
    attempt.lay_out(paths, {})
    held = shim.claim(str(paths.root))
    assert held is not None
    with attempt.claim(paths) as free:
        assert not free
    os.close(held)
    with attempt.claim(paths) as free:
        assert free
        attempt.revoke(paths)
    assert shim.claim(str(paths.root)) is None


def test_half_a_document_is_none(tmp_path: Path) -> None:
    """A file that was cut off, or is no object, reads as not there."""
    path = tmp_path / "x.json"
    for text in ('{"a": 1', "[1]", ""):
        path.write_text(text)
        assert attempt.read_document(path) is None
