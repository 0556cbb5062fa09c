"""Running again, trying again, giving up, order, and the answers: whole runs of small jobs."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON, Workplace, wait_until, workplace

from rmixer import events as ev
from rmixer.dispatcher import BACKOFF_SECONDS
from rmixer.model import StateName

pytestmark = pytest.mark.e2e

#: Fails until its counter file has three lines.
THIRD_TIME = "echo x >> count; [ $(wc -l < count) -ge 3 ]"
#: A program with metrics, as a training of ours writes them.
SCORE = """
import json, os, sys
path = os.path.join(os.environ["RMIXER_RUN_DIR"], "jobs", os.environ["RMIXER_JOB_ID"], "attempts",
                    os.environ["RMIXER_ATTEMPT"], "result.json")
open(path, "w").write(json.dumps({"samples": 100, "metrics": {"auc": float(sys.argv[1])}}))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with workplace(tmp_path) as made:
        yield made


def killed_while_running(place: Workplace, job: str) -> None:
    """A run whose runner is killed while that job runs."""
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start", job))
    place.kill(process)


def kept(place: Workplace) -> list[str]:
    return sorted(path.name for path in (place.directory / "runs").iterdir())


# --- running again ----------------------------------------------------------------------------------


def test_changed_file_is_named(place: Workplace) -> None:
    """An unfinished run does not go on with other jobs: exit 2 tells what differs."""
    place.write(place.work("a", "go"), place.work("b", after=["a"]))
    killed_while_running(place, "a")
    place.write(place.work("a", "go"), place.work("b", after=["a"], retries=3))
    refused = place.run("run", "jobs.yaml")
    assert refused.returncode == 2
    assert "retries" in refused.stderr
    assert "--fresh" in refused.stderr
    place.write(place.work("a", "go"), place.work("b", after=["a"]))
    (place.directory / "go").touch()
    assert place.run("run", "jobs.yaml").returncode == 0
    assert place.told("start", "a") == 1


def test_other_policy_is_named(place: Workplace) -> None:
    """Nor under another policy; without --policy it goes on under its own."""
    place.write(place.work("a", "go"))
    process = place.start("run", "jobs.yaml", "--policy", "fixed:k=1")
    wait_until(lambda: place.told("start"))
    place.kill(process)
    refused = place.run("run", "jobs.yaml", "--policy", "sequential")
    assert refused.returncode == 2
    assert "fixed:k=1, not sequential" in refused.stderr
    (place.directory / "go").touch()
    assert place.run("run", "jobs.yaml").returncode == 0
    assert place.state().began is not None


def test_finished_runs_are_kept(place: Workplace) -> None:
    """A finished run is moved to NAME.1, then NAME.2; each keeps its own report."""
    place.write(place.work("a"))
    ids = []
    for _ in range(3):
        result = place.run("run", "jobs.yaml", "--json")
        assert result.returncode == 0, result.stderr
        ids.append(json.loads(result.stdout)["run"]["id"])
    assert kept(place) == ["jobs", "jobs.1", "jobs.2"]
    reported = [
        json.loads(place.paths(name).report_json.read_text())["run"]["id"]
        for name in ("jobs.1", "jobs.2", "jobs")
    ]
    assert reported == ids
    assert len(set(ids)) == 3


def test_fresh_kills_what_still_runs_first(place: Workplace) -> None:
    """--fresh ends the jobs of a killed runner before they begin anew: never two at once."""
    place.write(place.work("a", "go"))
    killed_while_running(place, "a")
    process = place.start("run", "jobs.yaml", "--fresh")
    wait_until(lambda: place.told("start") == 2)
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0
    assert [word for word, _, _ in place.diary] == ["start", "start", "end"]
    assert kept(place) == ["jobs", "jobs.1"]


def test_retry_failed(place: Workplace) -> None:
    """--retry-failed runs the failed job and what waited for it again, and nothing else."""
    place.write(
        place.work("good"),
        place.shell("bad", "[ -e repaired ]"),
        place.work("after", after=["bad"]),
    )
    assert place.run("run", "jobs.yaml").returncode == 1
    (place.directory / "repaired").touch()
    again = place.run("run", "jobs.yaml", "--retry-failed")
    assert again.returncode == 0, again.stderr
    assert set(place.names().values()) == {StateName.SUCCEEDED}
    assert (place.told("start", "good"), place.told("start", "after")) == (1, 1)
    assert kept(place) == ["jobs"]


# --- trying again, giving up ------------------------------------------------------------------------


def test_retries_with_back_off(place: Workplace) -> None:
    """Two failures and a success: three tries, and twice the pause before the third."""
    place.write(place.shell("a", THIRD_TIME, retries=2))
    assert place.run("run", "jobs.yaml").returncode == 0
    (job,) = place.state().jobs.values()
    outcomes = [attempt.outcome.state for attempt in job.attempts if attempt.outcome]
    assert outcomes == [StateName.FAILED, StateName.FAILED, StateName.SUCCEEDED]
    first, second, third = job.attempts
    assert first.ended_at is not None
    assert second.ended_at is not None
    assert second.started_at - first.ended_at >= BACKOFF_SECONDS
    assert third.started_at - second.ended_at >= 2 * BACKOFF_SECONDS


def test_no_tries_left(place: Workplace) -> None:
    """The last failure is final; the log's last lines and its path are shown; exit 1."""
    place.write(place.shell("a", "echo the reason; exit 3"))
    ended = place.run("run", "jobs.yaml")
    assert ended.returncode == 1
    assert "the reason" in ended.stdout
    assert "attempts/1/log.txt" in ended.stdout
    assert place.names() == {"a": StateName.FAILED}


def test_timeout(place: Workplace) -> None:
    """A job over its time is ended as TIMEOUT and not tried again."""
    place.write(place.work("a", "never", timeout=0.3, retries=2))
    assert place.run("run", "jobs.yaml").returncode == 1
    (job,) = place.state().jobs.values()
    assert job.state.name == StateName.TIMEOUT
    assert len(job.attempts) == 1


def test_after(place: Workplace) -> None:
    """A job starts when its predecessor has succeeded; behind one that failed it is cancelled."""
    place.write(
        place.work("last", after=["middle"]),
        place.work("middle", after=["first"]),
        place.work("first"),
        place.shell("bad", "exit 1"),
        place.work("never", after=["bad"]),
        place.work("nor", after=["never"]),
    )
    assert place.run("run", "jobs.yaml").returncode == 1
    assert [name for word, name, _ in place.diary if word == "start"] == ["first", "middle", "last"]
    assert [word for word, _, _ in place.diary] == ["start", "end"] * 3
    jobs = {job.spec.name: job for job in place.state().jobs.values()}
    for name in ("never", "nor"):
        outcome = jobs[name].state.outcome  # type: ignore[union-attr]
        assert (outcome.state, outcome.reason) == (StateName.CANCELLED, "DependencyFailed")


def test_fail_fast(place: Workplace) -> None:
    """With --fail-fast one failure stops what runs and cancels what waits."""
    place.write(
        place.work("long", "never"),
        place.shell("bad", "while [ ! -e long.running ]; do sleep 0.01; done; exit 1"),
        *(place.work(f"w{i}", after=["long"]) for i in range(2)),
    )
    ended = place.run("run", "jobs.yaml", "--fail-fast")
    assert ended.returncode == 1
    assert place.names() == {
        "long": StateName.CANCELLED,
        "bad": StateName.FAILED,
        "w0": StateName.CANCELLED,
        "w1": StateName.CANCELLED,
    }


def test_priority(place: Workplace) -> None:
    """One at a time, the job of the highest priority goes first; equals in their order."""
    place.write(
        *(place.work(f"p{i}", priority=p) for i, p in enumerate([0, 5, -1, 5])), policy="sequential"
    )
    assert place.run("run", "jobs.yaml").returncode == 0
    assert [name for word, name, _ in place.diary if word == "start"] == ["p1", "p3", "p0", "p2"]


# --- run -- CMD -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "echo out; exit 0"], 0),
        (["sh", "-c", "echo out; exit 3"], 3),
        (["sh", "-c", "echo out; kill -9 $$"], 128 + signal.SIGKILL),
    ],
)
def test_command_passes_through(place: Workplace, command: list[str], code: int) -> None:
    """Its output is on stdout, and its exit code is ours."""
    ended = place.run("run", "--", *command)
    assert (ended.returncode, ended.stdout) == (code, "out\n")


def test_command_that_is_not_there(place: Workplace) -> None:
    """127, as in a shell, and no run is begun."""
    ended = place.run("run", "--", "no-such-program-at-all")
    assert ended.returncode == 127
    assert "no-such-program-at-all" in ended.stderr
    assert not (place.directory / "runs").exists()


def test_command_with_json(place: Workplace) -> None:
    """With --json stdout is the document alone; the command's output goes to stderr."""
    ended = place.run("run", "--json", "--", "sh", "-c", "echo out")
    assert json.loads(ended.stdout)["jobs"][0]["state"] == "SUCCEEDED"
    assert "out\n" in ended.stderr


# --- answers ----------------------------------------------------------------------------------------


def test_document(place: Workplace) -> None:
    """``run --json`` has the fields of the contract, and report.json is the same document."""
    place.write(place.work("a"), {"name": "s", "command": [PYTHON, "score.py", "0.7"]})
    (place.directory / "score.py").write_text(SCORE)
    result = place.run("run", "jobs.yaml", "--json")
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert document == json.loads(place.paths().report_json.read_text())
    assert document["schema_version"] == 1
    assert document["policy"] == "complementary"
    for key in ("makespan_seconds", "aggregate_samples_per_second", "normalized_throughput"):
        assert key in document
    assert set(document["bound"]) >= {"makespan_seconds", "bottleneck"}
    assert document["devices"][0]["id"] == "cpu"
    fields = (
        "id name state reason device attempts queued_at started_at ended_at seconds samples "
        "samples_per_second slowdown memory metrics"
    )
    for job in document["jobs"]:
        assert set(fields.split()) <= set(job)
        assert set(job["memory"]) == {"estimated_bytes", "reserved_bytes", "measured_peak_bytes"}
        assert job["ended_at"].endswith("Z")
    assert document["jobs"][1]["metrics"] == {"auc": 0.7}
    assert document["jobs"][1]["samples"] == 100


def test_report_of_a_sweep(place: Workplace) -> None:
    """``report --csv --sort auc`` ranks the jobs; ``--json`` and the page are there too."""
    (place.directory / "score.py").write_text(SCORE)
    command = f"{PYTHON} score.py {{auc}}"
    place.write({"name": "s-{auc}", "command": command, "sweep": {"auc": [0.6, 0.8, 0.7]}})
    assert place.run("run", "jobs.yaml").returncode == 0
    ranked = place.run("report", "jobs", "--csv", "--sort", "auc")
    rows = list(csv.DictReader(io.StringIO(ranked.stdout)))
    assert [row["auc"] for row in rows] == ["0.8", "0.7", "0.6"]
    assert [row["name"] for row in rows] == ["s-0.8", "s-0.7", "s-0.6"]
    document = json.loads(place.run("report", "jobs", "--json").stdout)
    assert document["state"] == "finished"
    assert place.paths().report_html.read_text().startswith("<!")
    wrong = place.run("report", "jobs", "--csv", "--sort", "acu")
    assert wrong.returncode == 2
    assert "auc" in wrong.stderr


def test_report_while_it_runs(place: Workplace) -> None:
    """Another process reports a run that goes on, without being in its way."""
    place.write(place.work("a"), place.work("b", "go", after=["a"]))
    process = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start", "b"))
    document = json.loads(place.run("report", "jobs", "--json").stdout)
    assert document["state"] == "running"
    states = {job["name"]: job["state"] for job in document["jobs"]}
    assert states["a"] == "SUCCEEDED"
    assert states["b"] in {"RUNNING", "PROFILING"}
    (place.directory / "go").touch()
    assert place.wait(process).returncode == 0


PYTHON_RUN = """
import json, os, sys
import rmixer
seen = []
def on_event(run, event):
    seen.append(event.type)
    if event.type == "spawned" and event.job == "b":
        while not os.path.exists("b.running"):
            pass
        run.cancel("b")
work = [sys.executable, "-S", "work.py"]
jobs = [rmixer.Job("a", command=[*work, "a", "0.01"]), rmixer.Job("b", command=[*work, "b", "never"])]
done = rmixer.run(jobs, policy="sequential", name="py", on_event=on_event, grace_seconds=0.2)
states = {job["name"]: job["state"] for job in done.document["jobs"]}
print(json.dumps([done.exit_code, states, seen[0], seen[-1]]))
"""


def test_python_interface(place: Workplace) -> None:
    """``rmixer.run`` tells every event, obeys ``Run.cancel``, and returns the finished run."""
    ended = place.run(program=PYTHON_RUN)
    assert json.loads(ended.stdout) == [
        1,
        {"a": "SUCCEEDED", "b": "CANCELLED"},
        "began",
        "finished",
    ], ended.stderr
    cancelled = [e for e in place.events("py") if isinstance(e, ev.CancelRequested)]
    assert len(cancelled) == 1
