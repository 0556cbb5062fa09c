"""Bad input: a message that says where, what and what would be right, and nothing half-started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import PYTHON, Workplace, wait_until, workplace

from rmixer.model import StateName

pytestmark = pytest.mark.e2e

USAGE, FAILED, NEVER_FITS = 2, 1, 4

#: Case: the jobs file, and what the message must say.
BAD_FILES: dict[str, tuple[str, list[str]]] = {
    "not yaml": ("jobs: [\n  - a: b: c", ["jobs.yaml:2"]),
    "a tab": ("jobs:\n\t- name: a", ["jobs.yaml:2"]),
    "empty": ("", ["jobs.yaml", "jobs"]),
    "a list": ("- name: a", ["jobs.yaml:1"]),
    "no jobs": ("jobs: []", ["jobs.yaml:1", "jobs"]),
    "unknown top key": ("jobz:\n  - name: a\n", ["jobz", "jobs"]),
    "unknown key": ("jobs:\n  - name: a\n    command: 'true'\n    retrys: 2", [
        "jobs.yaml:4", "retrys", "2", "retries"]),
    "unknown model": ("jobs:\n  - name: a\n    model: dlmr\n    data: {format: generated, like: criteo, rows: 9}", [
        "jobs.yaml:3", "dlmr", "dlrm"]),
    "unknown optimizer": (
        ("jobs:\n  - name: a\n    model: dlrm\n    optimizer: {name: adagard}\n"
        "    data: {format: generated, like: criteo, rows: 9}"), ["jobs.yaml:4", "adagard", "adagrad"]),
    "unknown policy": ("policy: complementry\njobs:\n  - {name: a, command: 'true'}", [
        "jobs.yaml:1", "complementry", "complementary"]),
    "unknown data format": (
        "jobs:\n  - name: a\n    model: dlrm\n    data: {format: critoe, path: x}", [
            "jobs.yaml:4", "critoe", "criteo"]),
    "out of range": ("jobs:\n  - name: a\n    command: 'true'\n    retries: -1", [
        "jobs.yaml:4", "retries", "-1"]),
    "batch of zero": (
        ("jobs:\n  - name: a\n    model: dlrm\n    batch_size: 0\n"
        "    data: {format: generated, like: criteo, rows: 9}"), ["jobs.yaml:4", "batch_size", "0"]),
    "negative learning rate": (
        ("jobs:\n  - name: a\n    model: dlrm\n    optimizer: {name: sgd, lr: -1}\n"
        "    data: {format: generated, like: criteo, rows: 9}"), ["jobs.yaml:4", "lr", "-1"]),
    "not a size": ("jobs:\n  - name: a\n    command: 'true'\n    memory: lots", [
        "jobs.yaml:4", "memory", "lots", "GiB"]),
    "duplicate names": ("jobs:\n  - {name: a, command: 'true'}\n  - {name: a, command: 'true'}", [
        "jobs.yaml:3", "'a'"]),
    "no such template key": (
        "jobs:\n  - name: a-{rl}\n    command: echo {lr}\n    sweep: {lr: [1, 2]}", [
            "jobs.yaml:2", "rl", "lr"]),
    "a dependency cycle": (
        "jobs:\n  - {name: a, command: 'true', after: b}\n  - {name: b, command: 'true', after: a}",
        ["jobs.yaml", "a -> b -> a"]),
    "after itself": ("jobs:\n  - {name: a, command: 'true', after: a}", ["jobs.yaml:2", "a -> a"]),
    "after nobody": ("jobs:\n  - {name: abc, command: 'true', after: abd}", [
        "jobs.yaml:2", "abd", "abc"]),
    "a sweep with no value": ("jobs:\n  - name: a\n    command: 'true'\n    sweep: {lr: []}", [
        "jobs.yaml:4", "lr"]),
    "both model and command": ("jobs:\n  - {name: a, command: 'true', model: dlrm}", [
        "jobs.yaml:2", "model", "command"]),
    "neither": ("jobs:\n  - {name: a}", ["jobs.yaml:2", "model", "command"]),
    "no such command": ("jobs:\n  - name: a\n    command: no-such-program --x", [
        "jobs.yaml:3", "no-such-program"]),
    "no such interpreter": (
        "jobs:\n  - name: a\n    command: python x.py\n    python: /no/such/python", [
            "jobs.yaml", "/no/such/python"]),
    "shell syntax": ("jobs:\n  - name: a\n    command: echo a | wc", ["jobs.yaml:3", "bash"]),
    "no such directory": ("jobs:\n  - name: a\n    command: 'true'\n    workdir: nowhere", [
        "jobs.yaml:4", "nowhere"]),
    "no such data": ("jobs:\n  - name: a\n    model: dlrm\n    data: {format: criteo, path: no.tsv}", [
        "jobs.yaml:4", "no.tsv"]),
    "empty data": ("jobs:\n  - name: a\n    model: dlrm\n    data: {format: criteo, path: empty.tsv}", [
        "jobs.yaml:4", "empty.tsv", "empty"]),
    "data that is a directory": ("jobs:\n  - name: a\n    model: dlrm\n    data: {format: criteo, path: .}", [
        "jobs.yaml:4"]),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with workplace(tmp_path) as made:
        (tmp_path / "empty.tsv").touch()
        yield made


def assert_refused(place: Workplace, done: subprocess.CompletedProcess[str], code: int) -> None:
    """Refused with a message, before anything was started or written."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not list((place.directory / "runs").glob("*"))
    assert not place.left()


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_jobs_file(place: Workplace, case: str) -> None:
    """The message names file, line, key, value and what would be right; exit 2; nothing starts."""
    text, fragments = BAD_FILES[case]
    (place.directory / "jobs.yaml").write_text(text)
    done = place.run("run", "jobs.yaml", "--json")
    assert_refused(place, done, USAGE)
    for fragment in fragments:
        assert fragment in done.stderr


def test_one_bad_job_stops_all(place: Workplace) -> None:
    """Nothing starts before the whole file is valid: a good first job does not run."""
    place.write(place.work("good"), {"name": "bad", "command": ["no-such-program"]})
    assert_refused(place, place.run("run", "jobs.yaml"), USAGE)
    assert not place.diary


@pytest.mark.parametrize("name", ["absent.yaml", ".", "binary.yaml", "/proc/self/mem"])
def test_file_that_cannot_be_read(place: Workplace, name: str) -> None:
    """Missing, a directory, not text, an error of the disk: the file is named; exit 2."""
    (place.directory / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01" * 9)
    done = place.run("run", name)
    assert_refused(place, done, USAGE)
    assert name in done.stderr


@pytest.mark.parametrize(
    ("keys", "fragments"),
    [
        ({"memory": "900TiB"}, ["HostMemory", "900.0 TiB"]),
        ({"threads": 999}, ["Cpu", "999"]),
        ({"device": "gpu"}, ["gpu", "0 GPUs"]),
        ({"gpus": 64}, ["GPUs"]),
    ],
    ids=str,
)
def test_job_that_can_never_fit(
    place: Workplace, keys: dict[str, object], fragments: list[str]
) -> None:
    """Exit 4 with the numbers, and the jobs that would fit do not start either."""
    if "gpu" in str(keys) and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    place.write(place.work("good"), place.work("huge", **keys))
    done = place.run("run", "jobs.yaml")
    assert done.returncode == NEVER_FITS, done.stderr
    assert "huge" in done.stderr
    for fragment in fragments:
        assert fragment in done.stderr
    assert not place.diary
    assert not place.paths().root.exists()
    assert not place.left()


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--policy", "fixd"], "fixed"),
        (["--policy", "fixed:k=0"], "k"),
        (["--policy", "fixed:z=1"], "z"),
        (["--policy", "fixed:k"], "k=2"),
        (["--cores", "0"], "--cores"),
        (["--cores", "4096"], "4096"),
        (["--gpus", "x"], "0,1"),
        (["--gpus", "63"], "63"),
        (["--name", "../up"], "../up"),
        (["--name", ""], "name"),
        (["--no-such-option"], "--no-such-option"),
        (["--", "true"], "not both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_option(place: Workplace, arguments: list[str], fragment: str) -> None:
    """An option that is not right is named, with what would be; exit 2; nothing starts."""
    place.write(place.work("a"))
    done = place.run("run", "jobs.yaml", *arguments)
    assert_refused(place, done, USAGE)
    assert fragment in done.stderr
    assert not place.diary


def fill(path: Path) -> None:
    """Write into a file until its disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def test_script_that_does_not_exist(place: Workplace) -> None:
    """The job FAILED with the interpreter's own words; the summary shows them and the log's path."""
    place.write({"name": "a", "command": [PYTHON, "no-such-script.py"]})
    done = place.run("run", "jobs.yaml")
    assert done.returncode == FAILED
    assert "no-such-script.py" in done.stdout
    assert "attempts/1/log.txt" in done.stdout


def test_disk_full_while_the_cache_is_written(place: Workplace, small_disk: Path) -> None:
    """The job FAILED saying which disk is full; what was half-written is gone."""
    place.environment["RMIXER_CACHE"] = str(small_disk / "cache")
    data = {"format": "generated", "like": "criteo", "rows": 50_000}
    place.write({"name": "train", "model": "dlrm", "data": data})
    done = place.run("run", "jobs.yaml", "--json")
    assert done.returncode == FAILED, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert str(small_disk) in job["error"]
    assert "No space left" in job["error"] or "full" in job["error"]
    kept = sum(path.stat().st_size for path in small_disk.rglob("*") if path.is_file())
    assert kept < 100_000


def test_disk_full_while_the_log_is_written(place: Workplace, small_disk: Path) -> None:
    """The run ends with a clear message, its jobs are stopped, and it can go on once there is room."""
    place.write(*[place.work(f"job{i}", "go") for i in range(4)])
    runner = place.start("run", "jobs.yaml", "--runs-dir", str(small_disk))
    wait_until(lambda: place.told("start") == 2)
    filler = small_disk / "filler"
    fill(filler)
    (place.directory / "go").touch()
    done = place.wait(runner)
    assert done.returncode == FAILED
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: not place.left())
    filler.unlink()
    again = place.run("run", "jobs.yaml", "--runs-dir", str(small_disk))
    assert again.returncode == 0, again.stdout + again.stderr
    assert place.told("overlap") == 0


def test_no_permission_for_runs(place: Workplace) -> None:
    """A directory that cannot be written is named, with the option that names another; exit 2."""
    closed = place.directory / "closed"
    closed.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(closed)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        closed.chmod(0o500)
        if os.access(closed, os.W_OK):
            pytest.skip("neither a mount nor a permission can close a directory here")
    try:
        place.write(place.work("a"))
        done = place.run("run", "jobs.yaml", "--runs-dir", str(closed))
    finally:
        subprocess.run(["umount", "-l", str(closed)], capture_output=True, check=False)
    assert done.returncode == USAGE, done.stderr
    assert str(closed) in done.stderr
    assert "--runs-dir" in done.stderr
    assert not place.diary


def test_runs_that_is_a_file(place: Workplace) -> None:
    """A file where the directory of runs should be is named; exit 2."""
    (place.directory / "runs").write_text("mine")
    place.write(place.work("a"))
    done = place.run("run", "jobs.yaml")
    assert done.returncode == USAGE
    assert "runs" in done.stderr
    assert (place.directory / "runs").read_text() == "mine"


def test_two_runs_on_one_directory(place: Workplace) -> None:
    """The second is refused with the first one's pid; the first does not notice."""
    place.write(place.work("a", "go"))
    first = place.start("run", "jobs.yaml")
    wait_until(lambda: place.told("start") == 1)
    second = place.run("run", "jobs.yaml")
    assert second.returncode == USAGE
    assert str(first.pid) in second.stderr
    (place.directory / "go").touch()
    assert place.wait(first).returncode == 0
    assert place.names() == {"a": StateName.SUCCEEDED}
    assert place.told("start") == 1


def test_report_of_an_unknown_run(place: Workplace) -> None:
    """The message names the runs that there are; exit 2."""
    place.write(place.work("a"))
    assert place.run("run", "jobs.yaml").returncode == 0
    done = place.run("report", "jbos")
    assert done.returncode == USAGE
    assert "jobs" in done.stderr


def test_damaged_log(place: Workplace) -> None:
    """Damage in the middle of a log is an error with its line, and the log stays as it is."""
    place.write(place.work("a"))
    assert place.run("run", "jobs.yaml").returncode == 0
    log = place.paths().events
    lines = log.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"type": "submitted"}\n'
    log.write_bytes(b"".join(lines))
    done = place.run("run", "jobs.yaml")
    assert done.returncode == FAILED
    assert "events.jsonl:2" in done.stderr
    assert log.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("trouble", ["damaged", "a file in its place"])
def test_store_in_trouble(place: Workplace, trouble: str) -> None:
    """What outlives a run only helps the next one: without it a run warns and succeeds."""
    home = Path(place.environment["RMIXER_HOME"])
    if trouble == "damaged":
        home.mkdir()
        (home / "store.sqlite").write_bytes(b"no database" * 999)
    else:
        home.write_text("in the way")
    place.write(place.work("a"))
    done = place.run("run", "jobs.yaml")
    assert done.returncode == 0, done.stderr
    assert str(home) in done.stderr
