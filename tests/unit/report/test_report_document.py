"""The document of a run, from scripted events and samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scripted_run import GPU, WALL, ScriptedRun, eight_jobs

from rmixer import events as ev
from rmixer.errors import StorageError
from rmixer.model import Device, Outcome, Placement, Rate, StateName
from rmixer.report.document import Predictions, build_document
from rmixer.resources import GIB, MIB

PREDICTIONS = Predictions(
    bound_seconds=40.0,
    bottleneck="cores",
    sequential_seconds=150.0,
    solo_seconds={"dlrm-0.1": 20.0, "deepfm": 30.0, "din": 40.0},
)


def jobs_of(document: dict) -> dict[str, dict]:
    return {job["id"]: job for job in document["jobs"]}


def two_jobs(**policy: str) -> ScriptedRun:
    run = ScriptedRun(cores=2, **policy)
    run.submit("a", "b")
    run.place(0.0, "a", (0,))
    run.place(0.0, "b", (1,))
    run.succeed(8.0, "a", samples=8000, auc=0.7)
    run.succeed(10.0, "b", samples=2000, auc=0.8)
    run.finish(10.0)
    return run


def test_every_promised_key_is_there() -> None:
    """The keys that scripts may rely on are there, with run, machine and jobs filled in."""
    run = eight_jobs()
    document = build_document(run.events, run.samples, predictions=PREDICTIONS)
    assert document["schema_version"] == 1
    assert document["rmixer_version"] == "0.1.0"
    assert document["run"]["id"] == "r-1"
    assert document["run"]["started_at"] == "2026-01-01T00:00:00.000Z"
    assert document["run"]["ended_at"] == "2026-01-01T00:01:06.100Z"
    assert document["node"] == {"name": "box", "cores": [0, 1, 2, 3], "memory_bytes": 4 * GIB}
    assert document["bound"] == {"makespan_seconds": 40.0, "bottleneck": "cores"}
    wanted = {
        "id", "name", "state", "reason", "device", "cores", "threads", "attempts", "tries",
        "queued_at", "started_at", "ended_at", "seconds", "samples", "samples_per_second",
        "slowdown", "memory", "metrics", "model", "log", "error",
    }  # fmt: skip
    for job in document["jobs"]:
        assert wanted <= set(job)
        assert set(job["memory"]) == {"estimated_bytes", "reserved_bytes", "measured_peak_bytes"}


def test_numbers_of_a_finished_run() -> None:
    """Makespan, aggregate samples/s, booked share and normalized throughput follow the log."""
    solo = {"a": 6.0, "b": 9.0}
    document = build_document(two_jobs().events, predictions=Predictions(solo_seconds=solo))
    assert document["state"] == "finished"
    assert document["makespan_seconds"] == 10.0
    assert document["aggregate_samples_per_second"] == pytest.approx(1000.0)
    assert document["normalized_throughput"] == pytest.approx(1.5)
    assert document["sequential"] == {"seconds": 15.0, "source": "predicted", "threads": "same"}
    assert document["devices"][0]["utilisation"] == {"booked": pytest.approx(0.9), "busy": None}
    assert document["devices"][0]["memory"]["reserved_peak_bytes"] == 800 * MIB
    job = jobs_of(document)["b"]
    assert (job["seconds"], job["samples_per_second"]) == (10.0, 200.0)
    assert job["slowdown"] == pytest.approx(10 / 9)


def test_solo_unknown_leaves_ratios_unknown() -> None:
    """One unknown solo time makes the sums over solo times null instead of too small."""
    document = build_document(two_jobs().events, predictions=Predictions(solo_seconds={"a": 6.0}))
    assert document["normalized_throughput"] is None
    assert document["sequential"] == {"seconds": None, "source": None, "threads": None}
    assert jobs_of(document)["b"]["slowdown"] is None
    assert jobs_of(document)["a"]["slowdown"] == pytest.approx(8 / 6)


def test_sequential_policy_measures_one_at_a_time() -> None:
    """Under `sequential` the makespan itself is the measured time one at a time."""
    document = build_document(two_jobs(policy="sequential").events, predictions=PREDICTIONS)
    assert document["sequential"] == {"seconds": 10.0, "source": "measured", "threads": "same"}


def test_retries_and_failures_are_told_apart() -> None:
    """Each attempt keeps its own end; the job carries its newest failure and its tries."""
    run = eight_jobs()
    jobs = jobs_of(build_document(run.events, run.samples, root=Path("runs/demo")))
    din, plain = jobs["din"], jobs["plain_dcn"]
    assert [a["state"] for a in din["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert din["attempts"][0]["reason"] == "SIGKILL"
    assert din["attempts"][0]["signal"] == 9
    assert din["attempts"][0]["seconds"] == pytest.approx(13.4)
    assert din["attempts"][1]["cores"] == [0, 3]
    assert (din["error"], din["tries"], din["max_tries"]) == (None, 2, 3)
    assert plain["state"] == "FAILED"
    assert plain["error"].endswith("is not a number")
    assert plain["log"] == "runs/demo/jobs/plain_dcn/attempts/2/log.txt"
    assert plain["model"] is None
    assert din["model"] == "runs/demo/jobs/din/model"
    assert jobs["evaluate"]["attempts"] == []
    assert jobs["evaluate"]["reason"] == "DependencyFailed"
    assert jobs["evaluate"]["seconds"] is None


def test_running_run() -> None:
    """Without an end the document says how far the run is, at the newest sign of life or `now`."""
    run = ScriptedRun(cores=2)
    run.submit("a", "b")
    run.place(1.0, "a", (0,))
    run.progress(4.0, "a", 10, 100, 500)
    run.sample(6.0, {"a": {"samples": 900, "rss_bytes": 77}}, 0.5, 77)
    document = build_document(run.events, run.samples)
    assert (document["state"], document["makespan_seconds"]) == ("running", 6.0)
    assert document["run"]["ended_at"] is None
    a, b = document["jobs"]
    assert (a["state"], a["samples"], a["seconds"]) == ("RUNNING", 900, 5.0)
    assert a["memory"]["measured_peak_bytes"] == 77
    assert (b["state"], b["reason"], b["started_at"]) == ("PENDING", "Submitted", None)
    later = build_document(run.events, run.samples, now=WALL + 11.0)
    assert later["jobs"][0]["seconds"] == 10.0
    assert later["normalized_throughput"] is None


def test_samples_of_an_older_attempt_do_not_count() -> None:
    """Telemetry of a failed attempt is not taken for progress of the one after it."""
    run = ScriptedRun()
    run.submit("a", retries=1)
    run.place(0.0, "a", (0,))
    run.sample(1.0, {"a": {"samples": 900}}, 1.0, 5)
    run.fail(2.0, "a", retry_at=3.0)
    run.place(3.0, "a", (0,))
    assert build_document(run.events, run.samples)["jobs"][0]["samples"] is None


def test_where_the_time_of_a_training_went() -> None:
    """The newest that the newest attempt showed; null where it showed no time at all."""
    run = ScriptedRun()
    run.submit("a")
    run.submit("b")
    run.place(0.0, "a", (0,))
    run.place(0.0, "b", (1,))
    tokens = [event.token for event in run.events if event.type == "placed"]
    spent = {"input": 3.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    for at, share in ((1.0, 0.5), (2.0, 1.0)):
        a = {
            "log": {"text": f"{at}"},
            "token": tokens[0],
            "phase_seconds": {n: share * s for n, s in spent.items()},
        }
        b = {"token": tokens[1], "phase_seconds": dict.fromkeys(spent, 0.0)}
        run.sample(at, {"a": a, "b": b}, 1.0, 5)
    jobs = jobs_of(build_document(run.events, run.samples))
    assert jobs["a"]["phase_seconds"] == spent
    assert jobs["a"]["log_progress"] == {"text": "2.0"}
    assert (jobs["b"]["phase_seconds"], jobs["b"]["log_progress"]) == (None, None)


def test_interrupted_run() -> None:
    """A run stopped by Ctrl-C is `interrupted`, and its stopped jobs are CANCELLED."""
    run = ScriptedRun()
    run.submit("a")
    run.place(0.0, "a", (0,))
    run.add(ev.Interrupted, 2.0)
    stopped = Outcome(state=StateName.CANCELLED, reason="Interrupted")
    run.add(ev.Stopping, 2.0, job="a", token="a#1", outcome=stopped)
    assert build_document(run.events)["jobs"][0]["state"] == "COMPLETING"
    run.exit(3.0, "a", Outcome(state=StateName.FAILED, exit_code=143, memory_peak_bytes=5))
    run.end(3.0, "a", StateName.CANCELLED, "Interrupted")
    run.finish(3.0, interrupted=True)
    document = build_document(run.events)
    assert document["state"] == "interrupted"
    job = document["jobs"][0]
    assert (job["state"], job["attempts"][0]["state"]) == ("CANCELLED", "CANCELLED")
    assert job["memory"]["measured_peak_bytes"] == 5


def test_run_taken_up_again_after_its_end() -> None:
    """After `Resumed` with retry_failed the run is running again and the failed job waits."""
    run = ScriptedRun()
    run.submit("a")
    run.place(0.0, "a", (0,))
    run.fail(2.0, "a")
    run.finish(2.0)
    run.add(ev.Resumed, 60.0, node=run.node, retry_failed=True)
    document = build_document(run.events)
    assert (document["state"], document["jobs"][0]["state"]) == ("running", "PENDING")
    assert document["jobs"][0]["ended_at"] is None
    assert document["run"]["resumed_at"] == ["2026-01-01T00:01:00.000Z"]


def test_attempt_whose_end_was_seen_but_not_decided() -> None:
    """A log that stops right after `Exited` shows the attempt as ended, not as running on."""
    run = ScriptedRun()
    run.submit("a")
    run.place(0.0, "a", (0,))
    run.exit(2.0, "a", Outcome(state=StateName.SUCCEEDED, exit_code=0), {"samples": 10})
    attempt = build_document(run.events, now=WALL + 50)["jobs"][0]["attempts"][0]
    assert (attempt["state"], attempt["seconds"]) == ("SUCCEEDED", 2.0)


def test_lost_attempt() -> None:
    """An attempt that vanished is NODE_FAIL and uses no try."""
    run = ScriptedRun()
    run.submit("a")
    run.place(0.0, "a", (0,))
    run.add(ev.Lost, 2.0, job="a", token="a#1", message="gone")
    lost = Outcome(state=StateName.NODE_FAIL, reason="lost", message="gone")
    run.add(ev.Requeued, 2.0, job="a", outcome=lost, not_before=2.0, counted=False)
    job = build_document(run.events)["jobs"][0]
    assert (job["attempts"][0]["state"], job["tries"], job["error"]) == ("NODE_FAIL", 0, "gone")


def test_empty_run_and_empty_log() -> None:
    """A run without jobs has a document; a log without a beginning is an error."""
    run = ScriptedRun()
    run.finish(0.0)
    document = build_document(run.events)
    assert (document["jobs"], document["makespan_seconds"]) == ([], 0.0)
    json.dumps(document, allow_nan=False)
    with pytest.raises(StorageError, match="empty"):
        build_document([])


def test_damaged_samples_are_left_out() -> None:
    """Samples with missing, wrong or non-finite values change nothing and break nothing."""
    run = two_jobs()
    good = {"at": 5.0, "jobs": {"a": {"rate": 0.5}, "b": {"rate": 0.7}}, "node": {"cpu": 1.0}}
    bad = [
        {}, {"at": None}, {"at": math.nan, "node": {"cpu": 9.0}}, {"at": 6.0, "jobs": [1]},
        {"at": 7.0, "node": "x", "jobs": {"a": 3, "b": {"rate": math.inf, "rss_bytes": "1"}}},
    ]  # fmt: skip
    document = build_document(run.events, [*bad, good])
    assert document["devices"][0]["utilisation"]["busy"] == pytest.approx(0.5)
    assert document["sum_of_rates"] == pytest.approx(1.2)
    assert document["jobs"][0]["memory"]["measured_peak_bytes"] == 350 * MIB


def test_json_is_valid_whatever_the_metrics() -> None:
    """NaN, infinity, lone surrogates and nested values of a job's result give valid JSON."""
    run = ScriptedRun()
    run.submit("a", name="bad \udcff name")
    run.place(0.0, "a", (0,))
    run.succeed(1.0, "a", auc=math.nan, loss=math.inf, nested={"x": [-math.inf, 1]}, path=Path("p"))
    run.finish(1.0)
    predictions = Predictions(bound_seconds=math.nan, solo_seconds={"a": math.inf})
    document = build_document(run.events, predictions=predictions)
    text = json.dumps(document, allow_nan=False, ensure_ascii=False)
    text.encode("utf-8")
    job = json.loads(text)["jobs"][0]
    assert job["metrics"] == {"auc": None, "loss": None, "nested": {"x": [None, 1]}, "path": "p"}
    assert document["bound"]["makespan_seconds"] is None
    assert document["sequential"]["seconds"] is None


def test_sum_of_rates_is_weighted_by_time() -> None:
    """A rate that held for long counts for more than one that held for a moment."""
    run = two_jobs()
    run.sample(0.0, {"a": {"rate": 0.5}, "b": {"rate": 0.5}}, 1.0, 1)
    run.sample(8.0, {"b": {"rate": 0.9}}, 1.0, 1)
    document = build_document(run.events, run.samples)
    assert document["sum_of_rates"] == pytest.approx((1.0 * 8 + 0.9 * 2) / 10)


def test_gpu_device() -> None:
    """A GPU is booked while any job is on it, and its reserved peak counts co-runners."""
    run = ScriptedRun(devices=(Device(), GPU))
    run.submit("a", "b")
    run.place(0.0, "a", (0,), device=GPU.id, device_memory=2 * GIB)
    run.place(2.0, "b", (1,), device=GPU.id, device_memory=1 * GIB)
    run.succeed(6.0, "a")
    run.succeed(8.0, "b")
    run.add(ev.Waiting, 8.0, job="b", reason=None)  # about a job that has ended: no change
    run.finish(8.0)
    gpu = build_document(run.events)["devices"][1]
    assert gpu["utilisation"]["booked"] == pytest.approx(1.0)
    assert gpu["memory"]["reserved_peak_bytes"] == 3 * GIB
    assert gpu["memory"]["measured_peak_bytes"] is None


def test_rebooking_counts_from_its_time() -> None:
    """What is booked anew counts from then on, not from the start of the attempt."""
    run = ScriptedRun(cores=4)
    run.submit("a")
    run.place(0.0, "a", (0,))
    run.add(
        ev.Rebooked, 5.0, job="a", token="a#1",
        placement=Placement(cores=(0, 1, 2), cpu=3.0, memory=GIB),
    )  # fmt: skip
    run.succeed(10.0, "a")
    run.finish(10.0)
    document = build_document(run.events)
    assert document["devices"][0]["utilisation"]["booked"] == pytest.approx((5 + 15) / 40)
    assert document["jobs"][0]["memory"]["reserved_bytes"] == GIB


def test_errors_of_predicted_rates_are_reported() -> None:
    """Two measurements of a pair: the prediction stays as wrong as it is, the correction learns."""
    run = ScriptedRun()
    run.submit("a", "b")
    run.place(1.0, "a", (0,))
    run.place(1.0, "b", (1,))
    for at in (10.0, 20.0):
        rates = {
            id_: Rate(
                token=run.token(id_), steps_per_second=5.0, step_seconds=0.1, predicted=0.6
            )
            for id_ in ("a", "b")
        }  # fmt: skip
        run.add(ev.Measured, at, device="cpu", jobs=rates, seconds=9.0)
    rates = build_document(run.events)["rates"]
    assert rates["measured"] == 4
    assert rates["error"] == pytest.approx(0.2)
    assert 0.1 < rates["corrected_error"] < 0.18
