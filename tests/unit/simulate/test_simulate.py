"""Simulated runs: the published one, conservation of work, what beliefs that are wrong lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

import rmixer
from rmixer.cli import cli
from rmixer.errors import NeverFitsError, UsageError
from rmixer.simulate.verb import answer

EXAMPLES = Path(__file__).parents[3] / "examples"
LIST = EXAMPLES / "published/balance_24.yaml"
V100 = EXAMPLES / "machines/v100-32gb.yaml"
V100_CPU2 = EXAMPLES / "machines/v100-32gb-cpu2.yaml"


def of(document: dict[str, Any], policy: str) -> dict[str, Any]:
    return next(one for one in document["policies"] if one["policy"] == policy)


def job(name: str, seconds: float, compute: float, **keys: Any) -> dict[str, Any]:
    profile = {"devices": {"gpu": {"solo_seconds": seconds, "demand": {"compute": compute}}}}
    return {"name": name, "command": "true", "gpu_memory": "1GiB", "profile": profile, **keys}


def test_the_published_run_comes_out_as_it_was_logged() -> None:
    """In the world that is fitted to the log, the published policy takes what the log says."""
    document = rmixer.simulate(LIST, machine=V100_CPU2, policies=["published-mix"], world="log")
    assert of(document, "published-mix")["makespan_seconds"] == pytest.approx(474.5, rel=0.05)


@pytest.mark.parametrize(
    ("machine", "world", "most"),
    [(V100, "network", 1.03), (V100, "log", 1.05), (V100_CPU2, "log", 1.15)],
)
def test_ours_comes_near_to_what_is_attainable(machine: Path, world: str, most: float) -> None:
    """Also with little search, on the published list: on the GPU alone, and with the CPU."""
    policies = ["complementary:budget=20", "published-mix"]
    document = rmixer.simulate(LIST, machine=machine, policies=policies, world=world)
    ours, theirs = document["policies"]
    assert ours["over_attainable"] <= most
    assert theirs["makespan_seconds"] / ours["makespan_seconds"] >= 1.4
    assert ours["oom_count"] == 0


def test_limits_and_baselines_of_the_published_list() -> None:
    """The bound is the GPU's compute; what is attainable lies between it and every policy."""
    names = ["sequential", "exclusive", "monolithic", "all-at-once", "published-type"]
    found = answer(LIST, machine=V100, policies=names)
    document = found.document
    assert document["bound_seconds"] == pytest.approx(264.9, abs=0.1)
    assert document["bottleneck"].endswith("compute")
    assert document["bound_seconds"] < document["attainable_seconds"] < 290
    solo = sum(job.least_seconds for job in found.comparison.jobs)
    for run in found.runs:
        assert run.figures["makespan_seconds"] >= document["attainable_seconds"] * 0.999
        assert run.figures["succeeded"] == 24
        assert sum(run.result.solo_seconds.values()) == pytest.approx(solo)
    assert of(document, "sequential")["makespan_seconds"] == pytest.approx(solo)


def test_the_same_seed_is_the_same_run() -> None:
    """Noise, wrong beliefs, failures and arrivals are drawn from the seed and nothing else."""
    world = "network:demand=0.3,granularity=0.3,duration=0.1,memory=0.15,noise=0.1,failures=0.1"
    keys = {"machine": V100, "policies": ["published-mix", "all-at-once"], "load": 0.9}
    jobs = [job(f"j{i}", 20 + i, 0.1 + 0.08 * i, gpu_memory="4GiB", retries=1) for i in range(9)]
    first, again, other = (
        rmixer.simulate(jobs, world=world, seed=seed, **keys) for seed in (3, 3, 4)
    )
    assert first == again
    assert first["policies"] != other["policies"]


def test_a_job_that_is_larger_than_believed_ends_out_of_memory_once() -> None:
    """Ten jobs believed to fit side by side do not: the newest end, and are done one by one."""
    jobs = [job(f"j{i}", 60, 0.05, gpu_memory="3.4GiB") for i in range(10)]
    policies = ["all-at-once"]
    document = rmixer.simulate(
        jobs, machine=V100, policies=policies, world="network:memory=0.5", seed=1
    )
    figures = of(document, "all-at-once")
    assert figures["oom_count"] > 0
    assert figures["succeeded"] == 10
    assert figures["attempts"] == 10 + figures["oom_count"]


def test_failures_are_retried_as_in_a_run() -> None:
    """An attempt that fails is tried again while the job has tries left."""
    jobs = [job(f"j{i}", 10, 0.5, retries=3) for i in range(8)]
    world = "network:failures=0.4"
    figures = of(
        rmixer.simulate(jobs, machine=V100, policies="exclusive", world=world), "exclusive"
    )
    assert figures["attempts"] > 8
    assert figures["succeeded"] + figures["failed"] == 8


def test_a_gpu_that_is_not_shared_takes_one_job_at_a_time(tmp_path: Path) -> None:
    """Sharing mode exclusive: whatever a policy wants, and priorities still go first."""
    machine = tmp_path / "box.yaml"
    machine.write_text(
        "memory: 8GiB\ncpu_places: 0\ngpus: [{kind: T4, memory: 16GiB, sharing: exclusive}]\n"
    )
    jobs = [job("low", 10, 0.1), job("high", 10, 0.1, priority=1)]
    found = answer(jobs, machine=machine, policies=["all-at-once"])
    spans = found.runs[0].result.spans
    assert [(span.job, span.start, span.end) for span in spans] == [
        ("high", 0.0, 10.0),
        ("low", 10.0, 20.0),
    ]


def test_what_cannot_be_simulated_is_said_before() -> None:
    """A job without a length, one that is too large, one that the world does not know."""
    with pytest.raises(UsageError, match="job a: the length is not declared"):
        rmixer.simulate([{"name": "a", "command": "true"}], machine=V100)
    with pytest.raises(NeverFitsError, match=r"40.0 GiB>32.0 GiB"):
        rmixer.simulate([job("a", 1, 0.1, gpu_memory="40GiB")], machine=V100)
    with pytest.raises(UsageError, match="job a: world log knows only the published workloads"):
        rmixer.simulate([job("a", 1, 0.1)], machine=V100, world="log")


def test_the_command_line_answers_and_draws(tmp_path: Path) -> None:
    """A table, one JSON document, a figure with a bar per policy; exit 2 and 4 before any work."""
    figure = tmp_path / "f.svg"
    names = ["sequential", "published-mix"]
    arguments = ["simulate", str(LIST), "--machine", str(V100_CPU2), "--figure", str(figure)]
    policies = [word for name in names for word in ("--policy", name)]
    done = CliRunner().invoke(cli, [*arguments, *policies, "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert [one["policy"] for one in document["policies"]] == names
    drawn = ET.fromstring(figure.read_text())  # noqa: S314 - our own
    bars = [
        e for e in drawn.iter("{http://www.w3.org/2000/svg}rect") if "bar" in e.get("class", "")
    ]
    assert len(bars) == len(names)
    lengths = [float(bar.get("width", "0")) for bar in bars]
    makespans = [one["makespan_seconds"] for one in document["policies"]]
    assert lengths[0] / lengths[1] == pytest.approx(makespans[0] / makespans[1], rel=0.01)
    wrong = CliRunner().invoke(cli, [*arguments[:-1], str(tmp_path / "f.png")])
    assert isinstance(wrong.exception, UsageError)
    assert ".svg or .html" in str(wrong.exception)
