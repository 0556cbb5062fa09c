"""`rmixer plan`: the first decision of a run, what is expected of it, and why the rest waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmixer import catalog
from rmixer.cli import cli, main
from rmixer.simulate.engine import run_once
from rmixer.simulate.jobs import jobs_from_specs
from rmixer.simulate.worlds.network import NetworkWorld
from rmixer.spec import load_jobs_file
from rmixer.spec.machine import load_machine

MACHINE = """
cores: 8
memory: 64GiB
cpu_places: 0
gpus:
  - {kind: V100, count: 1, memory: 16GiB, sharing: mps}
"""
JOB = """
  - name: NAME
    command: /bin/true
    device: gpu
    gpu_memory: MEMORY
    profile: {devices: {V100: {solo_seconds: 100, demand: {compute: 0.4}}}}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two jobs of which only one fits on the GPU at a time, and a small one."""
    monkeypatch.chdir(tmp_path)
    sizes = {"one": "10GiB", "two": "9GiB", "small": "2GiB"}
    entries = [JOB.replace("NAME", k).replace("MEMORY", v) for k, v in sizes.items()]
    (tmp_path / "jobs.yaml").write_text("jobs:" + "".join(entries))
    (tmp_path / "box.yaml").write_text(MACHINE)
    return tmp_path / "jobs.yaml", tmp_path / "box.yaml"


def _plan(files: tuple[Path, Path], *more: str) -> Result:
    return CliRunner().invoke(cli, ["plan", str(files[0]), "--machine", str(files[1]), *more])


def _document(files: tuple[Path, Path], *more: str) -> dict[str, Any]:
    done = _plan(files, "--json", *more)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_plan_is_what_a_run_in_a_true_world_does(files: tuple[Path, Path]) -> None:
    """Devices, starts, ends and makespan are those of the simulated run; the limits lie below."""
    found = _document(files)
    node = load_machine(files[1])
    jobs = jobs_from_specs(load_jobs_file(files[0], require_data=False).jobs, node)
    policy = catalog.build_policy("complementary")
    spans = {span.job: span for span in run_once(jobs, node, policy, NetworkWorld()).spans}
    rows = {row["id"]: row for row in found["jobs"]}
    for id, span in spans.items():  # noqa: A001
        assert rows[id]["expected_start_seconds"] == span.start
        assert rows[id]["expected_end_seconds"] == span.end
        assert rows[id]["starts"] == (span.start == 0.0)
    assert found["makespan_seconds"] == max(span.end for span in spans.values())
    assert found["bound"]["makespan_seconds"] <= found["attainable_seconds"] * (1 + 1e-6)
    assert found["attainable_seconds"] <= found["makespan_seconds"] * (1 + 1e-6)


def test_one_that_waits_says_why_and_is_explained(files: tuple[Path, Path]) -> None:
    """Ten and nine GiB do not fit into sixteen: the reason has both numbers, per device too."""
    found = _document(files)
    (waiting,) = (row["name"] for row in found["jobs"] if not row["starts"])
    assert waiting in {"one", "two"}
    explained = _document(files, "--explain", waiting)["explained"]
    assert "GpuMemory" in explained["reason"]
    gpu = next(one for one in explained["devices"] if one["kind"] == "V100")
    assert gpu["lacks"].startswith("GpuMemory(")
    assert gpu["predicted_rate"] is None
    rates = [one["predicted_rate"] for one in gpu["co_runners"]]
    assert len(rates) == 2
    assert all(0.5 < rate < 1.0 for rate in rates)
    text = _plan(files, "--explain", waiting).output
    assert "does not fit" in text


def test_nothing_is_left_behind(files: tuple[Path, Path]) -> None:
    """No run folder, no file beside the two that were there."""
    before = sorted(files[0].parent.rglob("*"))
    _document(files)
    assert sorted(files[0].parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--explain", "smal"], "did you mean 'small'?"),
        (["--policy", "best"], "unknown policy 'best'"),
        (["--gpus", "0"], "leave them or --machine out"),
    ],
)
def test_bad_options_are_answered(
    files: tuple[Path, Path], more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what would be right."""
    with pytest.raises(SystemExit) as stopped:
        main(["plan", str(files[0]), "--machine", str(files[1]), *more])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_what_can_never_fit_is_exit_code_4(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a run, with the numbers."""
    files[0].write_text(files[0].read_text().replace("10GiB", "40GiB"))
    with pytest.raises(SystemExit) as stopped:
        main(["plan", str(files[0]), "--machine", str(files[1])])
    assert stopped.value.code == 4
    assert "40.0 GiB>16.0 GiB" in capsys.readouterr().err
