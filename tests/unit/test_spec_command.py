"""Commands: splitting without a shell, and finding the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmixer.spec import jobs_from_dicts
from rmixer.spec.command import find_program, resolve_program, split_command


def script(path: Path) -> Path:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
        ("awk '{print $1}' file", ["awk", "{print $1}", "file"]),
        ("echo 'a | b' \"c && d\" e\\;", ["echo", "a | b", "c && d", "e;"]),
        ("bash -c 'cd x && echo $HOME > y'", ["bash", "-c", "cd x && echo $HOME > y"]),
        ('bash -c "echo $HOME"', ["bash", "-c", "echo $HOME"]),
        ("echo '|' \\> '$HOME'", ["echo", "|", ">", "$HOME"]),
        ("curl http://x/?a=1&b=2", ["curl", "http://x/?a=1&b=2"]),
        ("echo --x='a b' # no", ["echo", "--x=a b", "#", "no"]),
        ("echo a->b 5% $1 $", ["echo", "a->b", "5%", "$1", "$"]),
    ],
)
def test_a_text_is_split_as_a_shell_would(text: str, words: list[str]) -> None:
    """Quotes protect what a shell would act on."""
    assert split_command(text) == words


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cat a | grep b", r"\|"),
        ("a && b", "&&"),
        ("a || b", r"\|\|"),
        ("a ; b", ";"),
        ("cd x; python y", ";"),
        ("a > out.txt", ">"),
        ("a >out.txt", ">out.txt"),
        ("a 2>&1", "2>&1"),
        ("a &> log", "&>"),
        ("a < in", "<"),
        ("a &", "&"),
        ("a --out $HOME/x", r"\$HOME/x"),
        ("a --out=${HOME}/x", r"\$\{HOME\}/x"),
        ("a $(date)", r"\$\(date\)"),
    ],
)
def test_what_needs_a_shell_is_told(text: str, what: str) -> None:
    """The message has the piece and the way to have a shell."""
    with pytest.raises(ValueError, match=rf"{what}.* needs a shell.*\"bash\", \"-c\""):
        split_command(text)


@given(st.lists(st.from_regex(r"[a-zA-Z0-9 |;&<>$'\"\\{}]{1,8}", fullmatch=True), min_size=1))
def test_quoted_words_always_survive(words: list[str]) -> None:
    """Whatever `shlex.join` protects comes out as it went in."""
    import shlex  # noqa: PLC0415

    assert split_command(shlex.join(words)) == words


def test_python_is_the_jobs_interpreter(tmp_path: Path) -> None:
    """``python:`` stands for a first word python or python3, with or without a directory."""
    mine = script(tmp_path / "env" / "bin" / "python")
    jobs = jobs_from_dicts(
        [
            {"name": "a", "command": "python x.py", "python": "env/bin/python"},
            {"name": "b", "command": ["python3", "x.py"], "python": str(mine)},
            {"name": "c", "command": "echo python", "python": "env/bin/python"},
        ],
        tmp_path,
    )
    assert [job.payload["argv"][0] for job in jobs] == [str(mine), str(mine), "echo"]


def test_the_link_of_a_virtual_environment_is_kept(tmp_path: Path) -> None:
    """Its python is a link, and what it is called by decides what it imports."""
    (tmp_path / "env").mkdir()
    link = tmp_path / "env" / "python"
    link.symlink_to(sys.executable)
    job = jobs_from_dicts(
        [{"name": "a", "command": "python x", "python": "./env/python"}], tmp_path
    )
    assert job[0].payload["argv"][0] == str(link)


def test_python_that_is_not_on_path_is_ours(tmp_path: Path) -> None:
    """Without any python on the job's PATH the interpreter that runs RMixer is used."""
    env = {"PATH": str(tmp_path)}
    argv = resolve_program(["python", "x"], python=None, workdir=tmp_path, env=env)
    assert argv == [sys.executable, "x"]
    script(tmp_path / "python")
    argv = resolve_program(["python", "x"], python=None, workdir=tmp_path, env=env)
    assert argv == ["python", "x"]


def test_a_training_of_ours_gets_the_interpreter_in_its_payload(tmp_path: Path) -> None:
    """``python:`` names the interpreter of the training process, too."""
    mine = script(tmp_path / "py")
    data = {"format": "generated", "like": "criteo", "rows": 10}
    jobs = jobs_from_dicts(
        [{"name": "a", "model": "dlrm", "data": data, "python": "./py"}], tmp_path
    )
    assert jobs[0].payload["python"] == str(mine)


def test_the_jobs_own_path_counts(tmp_path: Path) -> None:
    """A program is looked up where the job will look."""
    script(tmp_path / "bin" / "mytool")
    job = {"name": "a", "command": "mytool", "env": {"PATH": str(tmp_path / "bin")}}
    assert jobs_from_dicts([job], tmp_path)[0].payload["argv"] == ["mytool"]
    assert find_program("mytool", workdir=tmp_path, path=str(tmp_path / "bin")).endswith("mytool")
    with pytest.raises(LookupError, match="no such program on PATH"):
        find_program("mytool", workdir=tmp_path, path=os.defpath)


def test_a_program_with_a_slash_is_relative_to_the_working_directory(tmp_path: Path) -> None:
    """Not to the jobs file."""
    script(tmp_path / "work" / "run.sh")
    job = {"name": "a", "command": "./run.sh 1", "workdir": "work"}
    assert jobs_from_dicts([job], tmp_path)[0].payload["argv"] == ["./run.sh", "1"]


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("LR=1", r"env: \{LR: \.\.\.\}"),
        ("train.py", "write python train.py"),
        ("tool", "write ./tool"),
        ("pyhton", "did you mean 'python'"),
        ("sub/", "is a directory"),
    ],
)
def test_a_program_that_is_not_found_gets_a_hint(tmp_path: Path, program: str, hint: str) -> None:
    """What people write instead is recognised."""
    (tmp_path / "train.py").touch()
    (tmp_path / "tool").touch()
    (tmp_path / "sub").mkdir()
    with pytest.raises(LookupError, match=hint):
        find_program(program, workdir=tmp_path, path=os.defpath)
