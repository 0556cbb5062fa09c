"""What the cache holds, and removing it: never what somebody uses or builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmixer.cli import cli, main
from rmixer.data import cache, schema, stock
from rmixer.data.generate import write
from rmixer.data.generated import sizes_of

SMALL = {"format": "generated", "like": "criteo", "rows": 200, "max_table_rows": 20}
HOLD = """
import pathlib, sys
from rmixer.data import cache, schema
cache.prepare(schema.parse({data!r}), pathlib.Path({folder!r}))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, whose data sets this process lets go of at the end."""
    monkeypatch.setenv("RMIXER_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    let_go()


def let_go() -> None:
    for descriptor in cache._held.values():
        os.close(descriptor)
    cache._held.clear()


def made(folder: Path, seed: int = 0) -> Path:
    built = cache.prepare(schema.parse({**SMALL, "seed": seed}), folder)
    let_go()
    return built


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cache", *arguments])


def test_it_is_listed_with_its_size_rows_and_source(folder: Path, tmp_path: Path) -> None:
    """`cache ls --json`: what is on the disk, from which file, when it was used last."""
    path = tmp_path / "a.tsv"
    write("criteo", sizes_of("criteo", rows=50), path)
    built = cache.prepare(schema.parse({"format": "criteo", "path": str(path)}), folder)
    (found,) = json.loads(invoke("ls", "--json").output)["data"]
    assert found["key"] == built.name
    assert found["rows"] == 50
    assert found["sources"] == [str(path)]
    assert found["state"] == "ready"
    assert found["in_use"], "by this process"
    assert found["bytes"] == sum(p.stat().st_size for p in built.iterdir())
    assert found["used_at"].endswith("Z")
    table = invoke("ls").output
    assert built.name in table
    assert "ready, in use" in table


def test_an_empty_cache_is_no_fault(folder: Path) -> None:
    """Nothing there: an answer, not an error."""
    assert json.loads(invoke("ls", "--json").output)["data"] == []
    assert invoke("rm", "--all").exit_code == 0


def test_what_another_process_uses_stays(folder: Path) -> None:
    """rm says that it is in use, with exit code 1; when the process has ended it is removed."""
    built = made(folder)
    code = HOLD.format(data={**SMALL, "seed": 0}, folder=str(folder))
    user = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    assert user.stdout.readline() == "held\n"
    kept = invoke("rm", built.name, "--json")
    assert kept.exit_code == 1
    assert json.loads(kept.output)["in_use"] == [built.name]
    assert cache.verify(built) == []
    user.communicate("")
    assert invoke("rm", built.name).exit_code == 0
    assert stock.entries(folder) == []


def test_names_are_checked_before_anything_is_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One unknown or ambiguous name: exit code 2, and all is still there."""
    first, second = made(folder, 1), made(folder, 2)
    for name, message in (("nothing-there", "cache ls"), ("generated-", "fits 2 data sets")):
        with pytest.raises(SystemExit) as ended:
            main(["cache", "rm", first.name, name])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    assert cache.verify(first) == cache.verify(second) == []
    with pytest.raises(SystemExit) as ended:
        main(["cache", "rm", "--older-than", "soon"])
    assert ended.value.code == 2
    assert "duration" in capsys.readouterr().err
    assert invoke("rm").exit_code == invoke("rm", "--all", first.name).exit_code == 2


def test_only_what_was_not_used_lately_is_removed(folder: Path) -> None:
    """--older-than counts from the last use; --dry-run removes nothing."""
    old, new = made(folder, 1), made(folder, 2)
    for path in (old / "manifest.json", old, cache.used_path(old)):
        os.utime(path, (1, 1))
    assert json.loads(invoke("rm", "--older-than", "1d", "--dry-run", "--json").output)[
        "removed"
    ] == [old.name]
    assert old.exists()
    assert invoke("rm", "--older-than", "1d").exit_code == 0
    assert not old.exists()
    assert new.exists()
    cache.prepare(schema.parse({**SMALL, "seed": 1}), folder)
    assert old.exists(), "it is parsed again when it is needed"


def test_what_a_killed_builder_left_and_what_is_damaged_is_told(folder: Path) -> None:
    """Both are listed as what they are, and removed like the others."""
    built = made(folder)
    (folder / "criteo-0123.building" / "parts").mkdir(parents=True)
    (built / "rows.i4").write_bytes(b"")
    states = {entry.key: entry.state for entry in stock.entries(folder)}
    assert states == {built.name: "damaged", "criteo-0123": "unfinished"}
    assert invoke("rm", "--all").exit_code == 0
    assert stock.entries(folder) == []
