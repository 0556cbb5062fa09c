"""The figures of benchmarks/colocation_pairs.py, from windows whose answer is known."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOLO = {"a": 100.0, "b": 50.0, "c": 20.0}
#: True rates of each set. `b` suffers beside `a`; `c` disturbs nobody.
RATES = {("a", "b"): (0.9, 0.5), ("a", "c"): (0.95, 0.9), ("b", "c"): (0.8, 0.85)}


def document() -> dict[str, Any]:
    profiles = {
        name: {"demand": {"cores": cores}}
        for name, cores in zip("abc", (1.0, 1.0, 0.1), strict=True)
    }
    windows = []
    for repeat in range(3):
        windows += [
            {"repeat": repeat, "jobs": [name], "paces": [pace * (1 + 0.01 * (repeat - 1))]}
            for name, pace in SOLO.items()
        ]
        windows += [
            {
                "repeat": repeat,
                "jobs": list(jobs),
                "paces": [r * SOLO[j] for r, j in zip(rates, jobs, strict=True)],
            }
            for jobs, rates in RATES.items()
        ]
    return {
        "profiles": profiles, "windows": windows, "cores": 2, "complete": True, "repeats": 3,
        "machine": "2-core", "date": "2026-12-01",
    }  # fmt: skip


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("colocation_pairs")


def call(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["colocation_pairs.py", *arguments])
    code: int = benchmark.main()
    return code


def test_errors_and_ranks_are_those_of_the_windows(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rates are relative to the median alone; ties rank last; a set that was seen is corrected."""
    path = tmp_path / "windows.json"
    path.write_text(json.dumps(document()))
    assert call(benchmark, monkeypatch, "--table", "--out", str(path)) == 0
    found = json.loads(path.read_text())["figures"]
    told = 1 / 1.02  # two cores are enough: only the overhead of a co-runner is left
    errors = [abs(told / rate - 1) for rates in RATES.values() for rate in rates]
    assert found["error"] == pytest.approx(sum(errors) / 6, abs=1e-4)
    assert found["error_by_size"] == {"2": pytest.approx(found["error"])}
    assert found["spread"] == pytest.approx(0)
    assert found["correction"]["before"] == pytest.approx(found["error"])
    assert found["correction"]["after"] < found["error"] / 2
    ranks = {one["job"]: (one["best"], one["rank"], one["of"]) for one in found["partners"]}
    assert ranks == {"a": ("c", 2, 2), "b": ("c", 2, 2), "c": ("a", 2, 2)}  # all predicted alike
    assert "| b | c | 2 of 2 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--smoke"], "needs --out"), (["--table", "--out", "none.json"], "nothing was measured")],
)
def test_results_are_not_overwritten_by_a_trial(
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """`--smoke` without a file of its own, and a table of nothing, are refused."""
    with pytest.raises(SystemExit, match="2"):
        call(benchmark, monkeypatch, *arguments)
    assert message in capsys.readouterr().err


def test_every_job_is_in_as_many_sets(benchmark: ModuleType) -> None:
    """60 pairs and 15 triples of 17 jobs, each once; nobody is in more than one set more than another."""
    names = [str(job) for job in range(17)]
    for size, count in ((2, 60), (3, 15)):
        sets = benchmark.choose(names, size, count)
        assert len({frozenset(one) for one in sets}) == count
        used = [sum(name in one for one in sets) for name in names]
        assert max(used) - min(used) <= 1
