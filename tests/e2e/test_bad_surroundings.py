"""Bad input from around a jobs file: permissions, names, policies, damaged data beside good jobs."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import Workplace

pytestmark = pytest.mark.e2e

USAGE, FAILED = 2, 1
SCHEMA = {"label": "y", "dense": ["x"], "sparse": ["c"]}
ROWS = b"y,x,c\n" + b"1,0.5,a\n0,1.5,b\n" * 40
CRITEO = ["1", *["3"] * 13, *["68fd1e64"] * 26]


def run_as(
    place: Workplace, wrapper: Sequence[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return place.wait(place.start(*arguments, wrapper=wrapper))


def assert_refused(place: Workplace, done: subprocess.CompletedProcess[str], *told: str) -> None:
    """Exit 2 with a message alone, and nothing was started, made or left."""
    assert done.returncode == USAGE, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for fragment in told:
        assert fragment in done.stderr
    assert not place.paths().root.exists()
    assert not place.diary
    assert not place.left()


def training(data: dict[str, Any], name: str = "train", **keys: Any) -> dict[str, Any]:
    """A small training of two numbers a row."""
    params = {"embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]}
    return {"name": name, "model": "dlrm", "params": params, "data": data, "batch_size": 8, **keys}


# --- permissions ----------------------------------------------------------------------------------


def test_jobs_file_that_may_not_be_read(place: Workplace, as_anybody: Sequence[str]) -> None:
    """The message names the file and why; exit 2."""
    place.write(place.work("a"))
    (place.directory / "jobs.yaml").chmod(0)
    done = run_as(place, as_anybody, "run", "jobs.yaml")
    assert_refused(place, done, "jobs.yaml", "Permission denied")


def test_data_that_may_not_be_read(place: Workplace, as_anybody: Sequence[str]) -> None:
    """Known before anything starts: the key, the file and why; exit 2, also for the good job."""
    closed = place.directory / "closed.csv"
    closed.write_bytes(ROWS)
    closed.chmod(0)
    data = {"format": "csv", "path": "closed.csv", "schema": SCHEMA}
    place.write(place.work("good"), training(data))
    done = run_as(place, as_anybody, "run", "jobs.yaml")
    assert_refused(place, done, "jobs[1].data.path", "closed.csv", "Permission denied")


def test_runs_that_may_not_be_written(place: Workplace, as_anybody: Sequence[str]) -> None:
    """The directory is named, with the option that names another; exit 2."""
    closed = place.directory / "closed"
    closed.mkdir(mode=0o500)
    place.write(place.work("a"))
    done = run_as(place, as_anybody, "run", "jobs.yaml", "--runs-dir", "closed")
    assert_refused(place, done, "closed", "Permission denied", "--runs-dir")
    assert not list(closed.iterdir())


def test_home_that_may_not_be_written(place: Workplace, as_anybody: Sequence[str]) -> None:
    """What outlives a run only helps the next one: a warning, and the run succeeds."""
    home = Path(place.environment["RMIXER_HOME"])
    home.mkdir(mode=0o500)
    place.write(place.work("a"))
    done = run_as(place, as_anybody, "run", "jobs.yaml")
    assert done.returncode == 0, done.stderr
    assert str(home) in done.stderr
    assert "Traceback" not in done.stderr


def test_cache_that_may_not_be_written(place: Workplace, as_anybody: Sequence[str]) -> None:
    """The job FAILED, naming the directory and why; exit 1."""
    cache = Path(place.environment["RMIXER_CACHE"])
    cache.mkdir(mode=0o500)
    place.write(training({"format": "generated", "like": "criteo", "rows": 100}))
    done = run_as(place, as_anybody, "run", "jobs.yaml", "--json")
    assert done.returncode == FAILED, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["state"] == "FAILED"
    assert str(cache) in job["error"]
    assert "Permission denied" in job["error"]
    assert "Traceback" not in job["error"]


# --- names, policies, words -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--name", "two\nlines"], [r"two\nlines", "--name"]),
        (["--name", "x" * 250], ["xxx", "240", "--name"]),
        (["--policy", ""], ["policy ''", "fixed:k=2"]),
        (["--policy", "no_such_module:Policy"], ["no_such_module"]),
        (["--policy", "os:getcwd"], ["os:getcwd", "no policy"]),
        (["--policy", "os:sep"], ["os:sep"]),
        (["--gpus", "-1"], ["GPU -1", "this machine has"]),
        (["--runs-dir", "jobs.yaml/runs"], ["jobs.yaml/runs", "Not a directory", "--runs-dir"]),
    ],
    ids=lambda value: value[1][:12] if value[0].startswith("--") else "",
)
def test_bad_option(place: Workplace, arguments: list[str], told: list[str]) -> None:
    """An option that is not right is named with its value; nothing is made."""
    place.write(place.work("a"))
    assert_refused(place, place.run("run", "jobs.yaml", *arguments), *told)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"command": ["echo", "a\0b"]}, [".command", "zero byte"]),
        ({"command": ["./jobs.yaml"]}, [".command", "not executable"]),
        (training({"format": "generated", "rows": 9}), [".data.like", "is missing", "criteo"]),
        (
            training({"format": "generated", "like": "criteo", "rows": 9}, model="din", params={}),
            [".data.like", "criteo", "like: behaviour"],
        ),
        (
            training({"format": "csv", "path": "d.csv", "schema": SCHEMA}, model="din", params={}),
            [".data.schema", "din", "sequence"],
        ),
    ],
    ids=["zero byte", "no program", "like what", "din on criteo", "din without a sequence"],
)
def test_bad_job(place: Workplace, job: dict[str, Any], told: list[str]) -> None:
    """File, line, key and what would be right; the good job before it does not start."""
    (place.directory / "d.csv").write_bytes(ROWS)
    place.write(place.work("good"), {**job, "name": "bad"})
    done = place.run("run", "jobs.yaml", "--json")
    assert_refused(place, done, "jobs.yaml:1", "jobs[1]", *told)


# --- data -----------------------------------------------------------------------------------------


def damaged() -> bytes:
    """A gzip file whose check sum is not right."""
    whole = bytearray(gzip.compress(ROWS))
    whole[-6] ^= 0xFF
    return bytes(whole)


def criteo(column: int, value: str | None) -> bytes:
    """A log whose line 4 has another value in one column, or has that column not at all."""
    bad = [*CRITEO[:column], *([] if value is None else [value]), *CRITEO[column + 1 :]]
    return "".join("\t".join(row) + "\n" for row in (CRITEO, CRITEO, CRITEO, bad)).encode()


#: File name: its content, and what the job's error must say beside the name.
BAD_DATA: dict[str, tuple[bytes, list[str]]] = {
    "columns.tsv": (criteo(39, None), [":4", "39", "40"]),
    "integer.tsv": (criteo(4, "3x"), [":4", "I4", "'3x'"]),
    "label.tsv": (criteo(0, "2"), [":4", "label", "'2'", "0 or 1"]),
    "id.tsv": (criteo(39, "zzz"), [":4", "C26", "'zzz'", "hexadecimal"]),
    "few.csv": (ROWS + b"1,0.5\n", [":82", "2 columns", "3"]),
    "many.csv": (ROWS + b"1,0.5,a,b\n", [":82", "4 columns", "3"]),
    "number.csv": (ROWS + b"1,abc,a\n", [":82", "column x", "'abc'"]),
    "seven.csv": (ROWS + b"7,0.5,a\n", [":82", "column y", "'7'", "0 or 1"]),
    "header.csv": (b"y,x,c\n", ["row"]),
    "other.csv": (b"y,x\n1,2\n", ["'c'"]),
    "cut.csv.gz": (gzip.compress(ROWS * 500)[:-200], ["cut off"]),
    "damaged.csv.gz": (damaged(), ["damaged"]),
    "nothing.csv.gz": (gzip.compress(b""), ["empty"]),
    "latin.csv": (ROWS + b"1,0.5,\xe9\n", [":82", "UTF-8"]),
    "twice.csv": (b"y,x,x,c\n1,2,3,a\n", [":1", "twice", "x"]),
}


def test_bad_data_beside_good_jobs(place: Workplace) -> None:
    """Each job on bad data FAILED at its first try and says where and what; the others succeed."""
    jobs = []
    for name, (content, _) in BAD_DATA.items():
        (place.directory / name).write_bytes(content)
        form = {"format": "criteo"} if ".tsv" in name else {"format": "csv", "schema": SCHEMA}
        jobs.append(training({**form, "path": name}, name, retries=1))
    place.write(place.work("good"), *jobs)
    done = place.run("run", "jobs.yaml", "--json", "--policy", "fixed:k=2,threads=1")
    assert done.returncode == FAILED, done.stderr
    good, *bad = json.loads(done.stdout)["jobs"]
    assert good["state"] == "SUCCEEDED"
    assert {job["name"] for job in bad} == set(BAD_DATA)
    for job in bad:
        assert (job["state"], len(job["attempts"])) == ("FAILED", 1)
        assert "Traceback" not in job["error"]
        for fragment in (job["name"], *BAD_DATA[job["name"]][1]):
            assert fragment in job["error"]
    assert not list((place.directory / "cache").rglob("*.npy"))
