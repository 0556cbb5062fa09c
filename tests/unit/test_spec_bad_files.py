"""Jobs files that are not right: each is answered with file, line, key, and what would be right."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmixer.errors import EXIT_USAGE, SpecError
from rmixer.spec import jobs_from_dicts, load_jobs_file
from rmixer.spec.schema import JOB_KEYS

DATA = "data: {format: generated, like: criteo, rows: 100}"

#: Name, text of the file, fragments of the message. A first fragment ":N:" is the line.
BAD = [
    ("empty", "", ["is empty", "jobs:"]),
    ("only a comment", "# nothing\n", ["is empty"]),
    ("a list", "- name: a\n", [":1:", "is a list", "`jobs`"]),
    ("a word", "hello\n", [":1:", "is a single value"]),
    ("does not parse", "jobs:\n  - {name: a, command: [true\n", [":3:", "does not parse as YAML"]),
    ("tab", "jobs:\n\t- name: a\n", [":2:", "does not parse", r"'\t'"]),
    ("two documents", "jobs: []\n---\njobs: []\n", [":2:", "another document"]),
    ("unknown alias", "jobs: *x\n", [":1:", "undefined alias"]),
    ("duplicate key", "jobs:\n  - name: a\n    command: 'true'\n    name: b\n", [":4:", "name", "twice", "line 2"]),
    ("key is a number", "jobs:\n  - name: a\n    params: {5: 6}\n", [":3:", "jobs[0].params.5", "quotes"]),
    ("infinite", "jobs:\n  - name: a\n    seed: .inf\n", [":3:", "jobs[0].seed", "finite"]),
    ("tagged", "jobs:\n  - name: !!python/name:os.system x\n", [":2:", "jobs[0].name", "quotes"]),
    ("alias of itself", "jobs:\n  - &a {name: x, params: {y: *a}}\n", [":2:", "jobs[0]"]),
    ("no jobs", "defaults: {}\n", [":1:", "jobs", "a list of jobs should be"]),
    ("jobs is empty", "jobs: []\n", [":1:", "jobs", "a list of jobs"]),
    ("jobs is a mapping", "jobs:\n  a: {command: 'true'}\n", [":1:", "a mapping where a list"]),
    ("a job is a word", "jobs:\n  - train\n", [":2:", "jobs[0]", "'train' is not a job"]),
    ("unknown key on top", "job:\n  - 1\njobs: []\n", [":1:", "unknown key 'job'", "did you mean 'jobs'"]),
    ("a job's key on top", "retries: 2\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "'retries' (2)", "under `jobs` or `defaults`"]),
    ("schema version", "schema_version: 2\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "schema_version: 2; this RMixer reads 1"]),
    ("defaults is a list", "defaults: [1]\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "defaults", "not a mapping"]),
    ("unknown default", "defaults: {retry: 2}\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "defaults.retry", "'retry' (2)", "did you mean 'retries'"]),
    ("a bad default that no job uses", f"defaults: {{batch_size: 0, {DATA}}}\njobs:\n  - {{name: a, command: 'true'}}\n", [":1:", "defaults.batch_size", "0 is out of range; it must be at least 1"]),
    ("a default with a name", "defaults: {name: x}\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "defaults.name", "unknown key"]),
    ("unknown key", "jobs:\n  - name: a\n    command: 'true'\n    epoch: 3\n", [":4:", "jobs[0].epoch", "'epoch' (3)", "did you mean 'epochs'"]),
    ("no name", "jobs:\n  - command: 'true'\n", [":2:", "jobs[0].name", "the key is missing"]),
    ("name is a number", "jobs:\n  - {name: 5, command: 'true'}\n", [":2:", "jobs[0].name", "5 is not text; put it in quotes"]),
    ("name has a line break", 'jobs:\n  - {name: "a\\nb", command: "true"}\n', ["jobs[0].name", "line break"]),
    ("no kind", "jobs:\n  - name: a\n", [":2:", "neither `model` nor `command`"]),
    ("both kinds", f"jobs:\n  - name: a\n    model: dlrm\n    command: 'true'\n    {DATA}\n", [":4:", "not both"]),
    ("model key on a command", "jobs:\n  - name: a\n    command: 'true'\n    batch_size: 4\n", [":4:", "jobs[0].batch_size", "this one has `command`"]),
    ("duplicate names", "jobs:\n  - {name: a, command: 'true'}\n  - {name: a, command: 'false'}\n", [":3:", "'a' is already used in line 2"]),
    ("unknown model", f"jobs:\n  - name: a\n    model: drlm\n    {DATA}\n", [":3:", "jobs[0].model", "unknown model 'drlm'; did you mean 'dlrm'", "din, dlrm, dmr"]),
    ("unknown parameter", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    params:\n      embeding_dim: 4\n", [":6:", "jobs[0].params.embeding_dim", "4", "did you mean 'embedding_dim'"]),
    ("unknown optimizer", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    optimizer: adamm\n", [":5:", "unknown optimizer 'adamm'; did you mean 'adam'"]),
    ("optimizer's name is a list", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    optimizer: {{name: [x]}}\n", [":5:", "jobs[0].optimizer.name", "not a name"]),
    ("lr is 0", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    optimizer: {{name: sgd, lr: 0}}\n", [":5:", "jobs[0].optimizer.lr", "0 is not a number above 0"]),
    ("unknown setting", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    optimizer: {{name: sgd, momentun: 0.9}}\n", [":5:", "jobs[0].optimizer.momentun", "0.9", "did you mean 'momentum'"]),
    ("no data", "jobs:\n  - name: a\n    model: dlrm\n", [":2:", "needs `data`"]),
    ("no format", "jobs:\n  - name: a\n    model: dlrm\n    data: {valid: {}}\n", [":4:", "jobs[0].data.format", "is missing"]),
    ("unknown format", "jobs:\n  - name: a\n    model: dlrm\n    data: {format: cvs}\n", [":4:", "jobs[0].data.format", "'cvs'; did you mean 'csv'"]),
    ("unknown data key", "jobs:\n  - name: a\n    model: dlrm\n    data:\n      format: generated\n      like: criteo\n      row: 5\n", [":7:", "jobs[0].data.row", "5", "did you mean 'rows'"]),
    ("data file absent", "jobs:\n  - name: a\n    model: dlrm\n    data: {format: criteo, path: absent.tsv}\n", [":4:", "jobs[0].data.path", "no such file", "absent.tsv"]),
    ("data file is a directory", "jobs:\n  - name: a\n    model: dlrm\n    data: {format: criteo, path: .}\n", [":4:", "is a directory"]),
    ("data file empty", "jobs:\n  - name: a\n    model: dlrm\n    data: {format: criteo, path: empty.tsv}\n", [":4:", "is empty"]),
    ("batch size", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    batch_size: 0\n", [":5:", "jobs[0].batch_size", "0 is out of range; it must be at least 1"]),
    ("epochs is true", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    epochs: true\n", [":5:", "true is not a whole number"]),
    ("steps is a fraction", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    steps: 1.5\n", [":5:", "1.5 is not a whole number"]),
    ("seed below 0", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    seed: -1\n", [":5:", "-1 is out of range; it must be at least 0"]),
    ("params is a list", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    params: [1]\n", [":5:", "a list of 1 is not a mapping"]),
    ("retries", "jobs:\n  - {name: a, command: 'true', retries: 101}\n", [":2:", "101 is out of range; it must be at most 100"]),
    ("threads", "jobs:\n  - {name: a, command: 'true', threads: 0}\n", ["jobs[0].threads", "at least 1"]),
    ("threads is text", "jobs:\n  - {name: a, command: 'true', threads: '2'}\n", ["jobs[0].threads", "'2' is not a whole number"]),
    ("gpus", "jobs:\n  - {name: a, command: 'true', gpus: -1}\n", ["jobs[0].gpus", "at least 0"]),
    ("gpus on the cpu", "jobs:\n  - {name: a, command: 'true', gpus: 1, device: cpu}\n", ["jobs[0].gpus", "exclude each other"]),
    ("device", "jobs:\n  - {name: a, command: 'true', device: cuda}\n", ["jobs[0].device", "'cuda'", "auto, cpu, gpu", "UUID"]),
    ("memory", "jobs:\n  - {name: a, command: 'true', memory: 6 gigs}\n", ["jobs[0].memory", "'6 gigs' is not a size", "6GiB"]),
    ("memory without unit", "jobs:\n  - {name: a, command: 'true', gpu_memory: 1.5}\n", ["jobs[0].gpu_memory", "1.5 is not a size"]),
    ("memory is 0", "jobs:\n  - {name: a, command: 'true', memory: 0}\n", ["jobs[0].memory", "at least 1 byte"]),
    ("timeout", "jobs:\n  - {name: a, command: 'true', timeout: soon}\n", ["jobs[0].timeout", "'soon' is not a duration"]),
    ("priority", "jobs:\n  - {name: a, command: 'true', priority: high}\n", ["jobs[0].priority", "'high' is not a whole number"]),
    ("fuse", f"jobs:\n  - {{name: a, model: dlrm, fuse: off, {DATA}}}\n", ["jobs[0].fuse", "'off' is not auto, never, or"]),
    ("profile", "jobs:\n  - {name: a, command: 'true', profile: {step_second: 1}}\n", ["jobs[0].profile.step_second", "did you mean 'step_seconds'"]),
    ("share", "jobs:\n  - {name: a, command: 'true', profile: {demand: {compute: 2}}}\n", ["jobs[0].profile.demand", "compute: 2 is not a share", "from 0 to 1"]),
    ("granularity", "jobs:\n  - {name: a, command: 'true', profile: {granularity: {compute: 0}}}\n", ["jobs[0].profile.granularity", "compute: 0 is not a number above 0"]),
    ("profile device", "jobs:\n  - {name: a, command: 'true', profile: {devices: {gpu: {solo: 1}}}}\n", ["jobs[0].profile.devices.gpu.solo", "did you mean 'solo_seconds'"]),
    ("station", "jobs:\n  - {name: a, command: 'true', profile: {demand: {core: 1}}}\n", ["jobs[0].profile.demand", "unknown station 'core'; did you mean 'cores'"]),
    ("env is a list", "jobs:\n  - {name: a, command: 'true', env: [A=1]}\n", ["jobs[0].env", "write a mapping"]),
    ("env has no value", "jobs:\n  - {name: a, command: 'true', env: {A: }}\n", ["jobs[0].env", "A: nothing is not text"]),
    ("env name", "jobs:\n  - {name: a, command: 'true', env: {A-B: 1}}\n", ["jobs[0].env", "'A-B' cannot be the name"]),
    ("workdir", "jobs:\n  - {name: a, command: 'true', workdir: nowhere}\n", [":2:", "jobs[0].workdir", "nowhere' does not exist"]),
    ("workdir is a file", "jobs:\n  - {name: a, command: 'true', workdir: empty.tsv}\n", ["jobs[0].workdir", "is not a directory"]),
    ("python", "jobs:\n  - {name: a, command: python x.py, python: ./nope/python}\n", ["jobs[0].python", "no such program"]),
    ("no such program", "jobs:\n  - {name: a, command: no-such-program-here -x}\n", [":2:", "jobs[0].command", "no such program on PATH: 'no-such-program-here'"]),
    ("no such script", "jobs:\n  - {name: a, command: ./no-such.sh}\n", [":2:", "no such program: './no-such.sh'"]),
    ("not executable", "jobs:\n  - {name: a, command: ./empty.tsv}\n", ["not executable"]),
    ("command is empty", "jobs:\n  - {name: a, command: ' '}\n", ["jobs[0].command", "is empty"]),
    ("command is an empty list", "jobs:\n  - {name: a, command: []}\n", ["jobs[0].command", "list of words"]),
    ("quotes do not close", "jobs:\n  - {name: a, command: \"echo 'x\"}\n", ["jobs[0].command", "no closing quotation"]),
    ("after unknown", "jobs:\n  - {name: prepare, command: 'true'}\n  - {name: b, command: 'true', after: prepar}\n", [":3:", "jobs[1].after", "unknown job 'prepar'; did you mean 'prepare'"]),
    ("after itself", "jobs:\n  - {name: a, command: 'true', after: a}\n", [":2:", "a -> a"]),
    ("cycle", "jobs:\n  - {name: a, command: 'true', after: b}\n  - {name: b, command: 'true', after: [c]}\n  - {name: c, command: 'true', after: a}\n", [":2:", "jobs[0].after", "a -> b -> c -> a"]),
    ("template without sweep", "jobs:\n  - {name: 'a-{lr}', command: 'true'}\n", [":2:", "jobs[0].name", "{lr}", "no `sweep`", "{{lr}}"]),
    ("template key unknown", "jobs:\n  - name: 'a-{lrr}'\n    command: 'true'\n    sweep: {lr: [1], seed: [2]}\n", [":2:", "jobs[0].name", "{lrr}; did you mean {lr}?", "known: {lr}, {seed}"]),
    ("sweep has no value", "jobs:\n  - name: a\n    command: 'true'\n    sweep: {lr: []}\n", [":4:", "jobs[0].sweep.lr", "no value"]),
    ("sweep is null", "jobs:\n  - name: a\n    command: 'true'\n    sweep:\n", [":4:", "jobs[0].sweep", "no value"]),
    ("sweep is empty", "jobs:\n  - name: a\n    command: 'true'\n    sweep: {}\n", [":4:", "jobs[0].sweep", "no key"]),
    ("sweep is a list", "jobs:\n  - name: a\n    command: 'true'\n    sweep: [1, 2]\n", [":4:", "a mapping of lists"]),
    ("sweep of no list", "jobs:\n  - name: a\n    command: 'true'\n    sweep: {lr: 0.1}\n", [":4:", "jobs[0].sweep.lr", "write [0.1]"]),
    ("sweep twice a value", "jobs:\n  - name: a\n    command: 'true'\n    sweep: {lr: [0.1, 1e-1]}\n", [":4:", "the value 0.1 is there twice"]),
    ("sweep key", "jobs:\n  - name: a\n    command: 'true'\n    sweep: {a-b: [1]}\n", [":4:", "letters, digits and _"]),
    ("swept value out of range", f"jobs:\n  - name: a\n    model: dlrm\n    {DATA}\n    batch_size: '{{b}}'\n    sweep: {{b: [128, 0]}}\n", [":5:", "jobs[0].batch_size", "0 is out of range", "with b=0"]),
    ("policy unknown", "policy: fixd\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "policy", "unknown policy 'fixd'; did you mean 'fixed'"]),
    ("policy form", "policy: 'fixed:k'\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "fixed:k=2,threads=1"]),
    ("policy option", "policy: {name: fixed, kk: 2}\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "'kk'; did you mean 'k'"]),
    ("policy has no name", "policy: {k: 2}\njobs:\n  - {name: a, command: 'true'}\n", [":1:", "no name"]),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the file under test lies, with an empty data file beside it."""
    (tmp_path / "empty.tsv").touch(mode=0o644)
    return tmp_path


@pytest.mark.parametrize(("text", "fragments"), [row[1:] for row in BAD], ids=[r[0] for r in BAD])
def test_a_bad_file_is_answered_with_place_and_remedy(
    folder: Path, text: str, fragments: list[str]
) -> None:
    """Every row: exit code 2, the file's name, the line, the key, and what would be right."""
    file = folder / "jobs.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_jobs_file(file)
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE
    assert message.startswith(str(file))
    for fragment in fragments:
        assert fragment in message, message


def test_all_problems_are_told_at_once_by_line(folder: Path) -> None:
    """Three mistakes in one file give three lines, in the file's order."""
    file = folder / "jobs.yaml"
    file.write_text(
        "jobs:\n"
        "  - {name: a, command: 'true', retries: 1000}\n"
        "  - {name: b, command: 'true', memry: 1GiB}\n"
        "  - {name: c, command: absent-program}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_jobs_file(file)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "3", "4"]
    assert caught.value.line == 2
    assert caught.value.key == "jobs[0].retries"


def test_a_mistake_in_a_sweep_is_told_once(folder: Path) -> None:
    """What is wrong in every combination is one problem."""
    file = folder / "jobs.yaml"
    file.write_text(
        "jobs:\n  - {name: a, command: absent-program, sweep: {x: [1, 2, 3]}, retries: -1}\n"
        "  - {name: b, command: absent-program, sweep: {x: [1, 2, 3]}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_jobs_file(file)
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_is_answered_with_the_nearest_name(folder: Path) -> None:
    """A typo in the file's name is recognised."""
    (folder / "quickstart.yaml").touch()
    with pytest.raises(SpecError, match=r"no such file; did you mean '.*quickstart\.yaml'"):
        load_jobs_file(folder / "quickstrat.yaml")
    with pytest.raises(SpecError, match=r"no such file$"):
        load_jobs_file(folder / "zzz")
    with pytest.raises(SpecError, match="its directory does not exist"):
        load_jobs_file(folder / "absent" / "jobs.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"jobs:\n  - \xff\n", r"jobs.yaml:2: byte 0xff is not UTF-8"),
        (b"\x7fELF\x00\x00", "is a binary file"),
        ("jobs: []".encode("utf-16"), "is a binary file|is not UTF-8"),
        (b"jobs: []\n# \x01\n", r"jobs.yaml:2: not text"),
        (b"[" * 1500, "nested too deeply|does not parse"),
    ],
)
def test_what_is_no_text_is_refused(folder: Path, content: bytes, message: str) -> None:
    """Binary content and other encodings are named as such."""
    file = folder / "jobs.yaml"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        load_jobs_file(file)


def test_a_directory_and_an_unreadable_file_are_refused(folder: Path) -> None:
    """What cannot be read says why."""
    with pytest.raises(SpecError, match="is a directory"):
        load_jobs_file(folder)
    with pytest.raises(SpecError, match="cannot be read: Input/output error"):
        load_jobs_file("/proc/self/mem")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(folder: Path) -> None:
    """No permission is told as such."""
    file = folder / "jobs.yaml"
    file.touch(mode=0)
    with pytest.raises(SpecError, match="cannot be read: Permission denied"):
        load_jobs_file(file)


def test_a_data_file_is_not_taken_for_a_jobs_file(folder: Path) -> None:
    """A file of many MiB is refused by its size, without being parsed."""
    file = folder / "train.tsv"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(SpecError, match=r"is larger than 16 MiB"):
        load_jobs_file(file)


def test_an_alias_bomb_is_refused(folder: Path) -> None:
    """Aliases that multiply into millions of values do not eat the memory."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    file = folder / "jobs.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(SpecError, match="more than 300000 values"):
        load_jobs_file(file)


@pytest.mark.parametrize(
    "text",
    [
        "jobs:\n  - {name: a, command: absent-program, env: {TOKEN: hunter2}}\n",
        "jobs:\n  - {name: a, command: 'true', env: {TOKEN: [hunter2]}}\n",
        "jobs:\n  - {name: a, command: 'true', env: {TO-KEN: hunter2}}\n",
        "jobs:\n  - {name: a, command: 'true', env: hunter2}\n",
        "jobs:\n  - {name: a, command: 'true', evn: {TOKEN: hunter2}}\n",
        "jobs:\n  - {name: a, command: 'true', TOKEN: hunter2}\n",
        "jobs:\n  - name: a\n    command: 'true'\n    env:\n      TOKEN: hunter2\n      TOKEN: hunter2\n",
        "defaults: {env: {TOKEN: hunter2, X: }}\njobs:\n  - {name: a, command: 'true'}\n",
        "jobs:\n  - {name: a, command: 'true', env: {TOKEN: 'hunter2{x}'}}\n",
    ],
)
def test_values_of_environment_variables_are_never_shown(folder: Path, text: str) -> None:
    """Whatever is wrong around ``env``, its values stay out of the message."""
    file = folder / "jobs.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_jobs_file(file)
    assert "hunter2" not in str(caught.value)


def test_a_sweep_that_explodes_is_refused_before_it_is_expanded(folder: Path) -> None:
    """The number of combinations is counted, not made."""
    keys = ", ".join(f"k{n}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" for n in range(12))
    file = folder / "jobs.yaml"
    file.write_text(f"jobs:\n  - {{name: a, command: 'true', sweep: {{{keys}}}}}\n")
    with pytest.raises(SpecError, match="the sweep makes 1000000000000 jobs; at most 10000"):
        load_jobs_file(file)


_words = st.sampled_from([
    "a", "dlrm", "adam", "generated", "criteo", "csv", "x.tsv", "{lr}", "{{lr}}", "1GiB", "cpu",
    "echo 1", "auto", "item", "",
])  # fmt: skip
_leaves = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(-1, 1), _words)
_keys = st.sampled_from([
    *JOB_KEYS, "lr", "format", "path", "rows", "like", "schema", "label", "sparse", "sequence",
    "valid", "fraction", "by", "transform", "dense", "embedding_dim", "top_mlp", "momentum",
    "demand", "shares", "columns",
])  # fmt: skip
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=8,
)
_jobs = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "a-{lr}"])},
    optional={
        **{key: _values for key in JOB_KEYS if key != "name"},
        "model": st.sampled_from(["dlrm", "din", "deepfm"]),
        "data": st.fixed_dictionaries(
            {"format": st.sampled_from(["generated", "criteo", "csv"])},
            optional=dict.fromkeys(("path", "schema", "valid", "transform", "rows"), _values),
        ),
        "optimizer": st.fixed_dictionaries({"name": _values}, optional={"lr": _values}),
    },
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(_jobs, max_size=2), st.dictionaries(_keys, _values, max_size=3))
def test_any_values_give_jobs_or_a_spec_error(
    jobs: list[dict[str, Any]], defaults: dict[str, Any]
) -> None:
    """No combination of keys and types ends in another exception."""
    with contextlib.suppress(SpecError):
        for job in jobs_from_dicts(jobs, defaults=defaults):
            json.dumps(dict(job.payload))
