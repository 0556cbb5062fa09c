"""Ratios, goals, windows and comparisons of the benchmarks, from numbers whose answer is known."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def runs(**rates: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "runner": name.replace("_", " "), "repeat": i, "rate": rate, "startup_seconds": 1.0,
            "losses_apart": 0.0, "runner_cores": 0.01,
        }
        for name, each in rates.items()
        for i, rate in enumerate(each)
    ]  # fmt: skip


def document(**rates: list[float]) -> dict[str, Any]:
    return {
        "command": "c", "machine": "m", "date": "d", "left_out": {"tsp": "not there"},
        "mixed": {"runs": runs(**rates)}, "sweep": [], "overhead": None,
    }  # fmt: skip


def test_ratios_are_taken_within_a_repeat(load: Any) -> None:
    """A machine that is twice as slow in one repeat changes no ratio."""
    tables = load("bench_tables")
    found = tables.ratios(document(shell_loop=[1.0, 0.5], rmixer=[2.0, 1.0], parallel=[1.6, 0.4]))
    assert {r["over"]: r["each"] for r in found} == {
        "shell loop": [2.0, 2.0],
        "parallel": [1.25, 2.5],
        "the best other": [1.25, 2.5],
    }
    assert next(r for r in found if "best" in r)["best"] == "parallel"


@pytest.mark.parametrize(
    ("each", "missed", "word"),
    [
        ([1.6, 1.7], False, "met"),
        ([1.4, 1.51], False, "within the spread"),
        ([1.4], True, "missed"),
    ],
)
def test_a_goal_is_missed_if_no_repeat_reaches_it(
    load: Any, each: list[float], missed: bool, word: str
) -> None:
    """1.5 times one by one is the goal; the table says how it came out."""
    tables = load("bench_tables")
    found = document(shell_loop=[1.0] * len(each), rmixer=each)
    found["ratios"] = [r for r in tables.ratios(found) if r["over"] == "shell loop"]
    assert [r["missed"] for r in found["ratios"]] == [missed]
    text = tables.tables(found)
    assert f"| {word} |" in text
    assert "tsp (not there)" in text


def test_a_sweep_is_held_against_the_arithmetic_that_the_machine_can_do(load: Any) -> None:
    """3 MFLOP a sample at 150 GFLOP/s are 50,000 samples/s; 25,000 are half of it."""
    tables = load("bench_tables")
    one = {
        "optimizer": "adam", "batch_size": 256, "rows": 10, "flop_per_sample": 3e6,
        "flop_per_second": 150e9, "runs": runs(shell_loop=[2500.0], rmixer=[25_000.0]),
    }  # fmt: skip
    found = {**document(shell_loop=[1.0], rmixer=[2.0]), "sweep": [one]}
    found["ratios"] = tables.ratios(found)
    missed = {(r["what"], r["over"]): r["missed"] for r in found["ratios"]}
    assert missed["sweep adam 256", "shell loop"] is True  # 10x, the goal is 12x
    assert missed["sweep adam 256", "the best other"] is False
    assert "are 50,000 samples/s; RMixer is at 50% of it" in tables.tables(found)


def test_steps_count_in_the_window_that_their_lines_say(load: Any, tmp_path: Path) -> None:
    """Not those before it, not those after it, not a line that is half written."""
    windows = load("windows")
    (tmp_path / "a.log").write_text("10.0 1 0.7\n11.0 2 0.6\n12.0 3 0.5\n15.0 4 0.4\n16.0 5")
    logs = windows._Logs(tmp_path, ["a", "b"])
    assert logs.look()
    assert logs.between(10.0, 12.0, {}) == {"a": 2.0, "b": 0.0}
    assert logs.losses()["a"] == {1: 0.7, 2: 0.6, 3: 0.5, 4: 0.4}


def test_a_runner_and_what_it_started_are_ended(load: Any, tmp_path: Path) -> None:
    """One at a time by the shell: the first script makes steps, and nothing is left of it."""
    windows, runners = load("windows"), load("runners")
    script = tmp_path / "s.py"
    script.write_text(
        "import sys, time\nwith open(sys.argv[1], 'w', 1) as f:\n"
        "    for i in range(10**6):\n        print(time.time(), i, 0.5, file=f)\n"
        "        time.sleep(0.01)\n"
    )
    command = [sys.executable, str(script), "{folder}/a.log"]
    queue = runners.Queue({"a": command, "b": [*command[:2], "{folder}/b.log"]})
    window = windows.measure("shell loop", queue, 0.5, tmp_path)
    assert window.done["a"] > 5
    assert window.done["b"] == 0
    assert list(runners._mentioning(str(tmp_path / "w"))) == []


def test_changes_beyond_the_spread_are_flagged(load: Any, tmp_path: Path) -> None:
    """Repeats that overlap are the same; those that do not, and single numbers far off, are not."""
    compare = load("compare")
    old = {"date": "1", "runs": runs(a=[1.0, 1.2], b=[1.0, 1.1]), "rows": 100}
    new = {"date": "2", "runs": runs(a=[1.1, 1.3], b=[1.5, 1.6]), "rows": 100}
    for name, value in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    found = compare.changes(old, new, 0.02, 0.15)
    assert [c.place for c in found if c.is_beyond] == ["runs / b: rate"]
    paths = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert compare.main(paths) == 1
    assert compare.main([paths[0], paths[0]]) == 0
    assert {c.place: c.is_beyond for c in compare.changes({"x": 1.0}, {"x": 1.1}, 0, 0.15)} == {
        "x": False
    }


def test_a_table_takes_the_place_between_its_markers(load: Any, tmp_path: Path) -> None:
    """Everything around stays; a page without the place, or with two, is refused and left alone."""
    pages, page = load("pages"), tmp_path / "p.md"
    page.write_text("a\n<!-- t: begin -->\nold\n<!-- t: end -->\nb\n")
    pages.put(page, "t", "new\n")
    assert page.read_text() == "a\n<!-- t: begin -->\nnew\n<!-- t: end -->\nb\n"
    for text in ("nothing", page.read_text() * 2, "<!-- t: end -->\n<!-- t: begin -->"):
        page.write_text(text)
        with pytest.raises(SystemExit, match="exactly one"):
            pages.put(page, "t", "new")
        assert page.read_text() == text
