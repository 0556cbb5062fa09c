"""Traces of clusters, and worlds of measured pairs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import rmixer
from rmixer.errors import UsageError
from rmixer.simulate.traces import read_trace
from rmixer.simulate.verb import answer
from rmixer.spec.machine import load_machine

V100 = Path(__file__).parents[3] / "examples/machines/v100-32gb.yaml"
PAIRS = """table,gpu,job_a,batch_a,job_b,batch_b,alone_a,alone_b,paired_a,paired_b,rel_a,rel_b
oracle,v100,Big,64,Big,64,1,1,1,1,0.4,0.4
oracle,v100,Big,64,Small,,1,1,1,1,0.9,0.5
oracle,v100,Small,,Big,64,1,1,1,1,0.5,0.9
oracle,v100,Small,,Small,,1,1,1,1,0.0,0.0
simulation,v100,Big,64,Big,64,10,10,1,1,0.4,0.4
simulation,v100,Small,,Small,,20,20,1,1,0.4,0.4
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "gavel_pairs.csv.gz"
    path.write_bytes(gzip.compress(PAIRS.encode()))
    return path


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:00:30,66.0,1,66.0,11cb48
2017-10-09 07:00:00,20.0,1,20.0,6214e9
2017-10-09 07:00:10,20.0,8,160.0,6214e9
"""
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0,resource_time_1,resource_time_2,priority
0,1,4000,10,vgg16,16,281000,1,200,80,100,20,1
"""
ALIBABA = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,1,1,1,250,,LS,Running,100,400,120
b,1,1,1,250,,LS,Pending,100,,
"""
GAVEL = (
    "Big (batch size 64)\tcmd\t-n\t1\t500\t0.0\t1\nSmall\tcmd\t-n\t1\t500\t7.5\t1\n"
    "Small\tcmd\tdir\t-n\t1\t200\t1\t1\t-1.0\t9.0\n"
)


@pytest.mark.parametrize(
    ("name", "text", "jobs", "left_out"),
    [
        ("philly.csv", PHILLY, [(0.0, 20.0, 1.0), (30.0, 66.0, 1.0)], 1),
        ("muri.csv", MURI, [(0.0, 281.0, 0.5)], 0),
        ("pods.csv", ALIBABA, [(0.0, 280.0, 0.25)], 0),
        ("msr.trace", GAVEL, [(0.0, 50.0, 1.0), (7.5, 25.0, 1.0), (9.0, 10.0, 1.0)], 0),
    ],
)
def test_forms_of_traces(
    tmp_path: Path,
    table: Path,
    name: str,
    text: str,
    jobs: list[tuple[float, float, float]],
    left_out: int,
) -> None:
    """Arrival from the first job on, seconds alone, and the use of the GPU, of every form."""
    path = tmp_path / name
    path.write_text(text)
    trace = read_trace(path, load_machine(V100))
    found = [
        (job.arrival, job.least_seconds, next(iter(job.profiles.values())).demand["compute"])
        for job in trace.jobs
    ]
    assert found == jobs
    assert trace.left_out == left_out


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    """Another table, and damage, by the file's name."""
    for name, content, words in [
        ("a.csv", b"x,y\n1,2\n", "no trace of a known form"),
        ("b.csv.gz", b"no gzip", "is damaged|cannot be read"),
        ("c.csv", PHILLY.replace("66.0", "six").encode(), "no trace of a known form"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=words):
            rmixer.simulate(tmp_path / name, machine=V100)


def test_pairs_are_looked_up_and_slowdowns_add_up(tmp_path: Path, table: Path) -> None:
    """Big beside Small runs at the measured rates; of two Big and a Small the slowdowns add up."""
    (tmp_path / "jobs.yaml").write_text(
        "jobs:\n"
        "  - {name: Big-64, command: 'true', gpu_memory: 1GiB, profile: {solo_seconds: 90}}\n"
        "  - {name: Small-1, command: 'true', gpu_memory: 1GiB, profile: {solo_seconds: 50}}\n"
    )
    found = answer(
        tmp_path / "jobs.yaml", machine=V100, policies="all-at-once", world=f"gavel:table={table}"
    )
    ends = {span.job: span.end for span in found.runs[0].result.spans}
    assert ends == {"Big-64": pytest.approx(100), "Small-1": pytest.approx(100)}
    world, members = found.comparison.world, found.comparison.members
    node = found.comparison.node
    rates = world.law(node, {"GPU-0": [members[0], members[0], members[1]]})["GPU-0"]
    assert rates[0] == pytest.approx(1 / (1 + (1 / 0.4 - 1) + (1 / 0.9 - 1)))
    assert rates[2] == pytest.approx(1 / (1 + 2 * (1 / 0.5 - 1)))
    jobs = [{"name": "other", "command": "true", "profile": {"solo_seconds": 1}}]
    with pytest.raises(UsageError, match="job other: world gavel knows only Big-64, Small"):
        rmixer.simulate(jobs, machine=V100, world=f"gavel:table={table}")
