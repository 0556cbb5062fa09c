"""Commands: words without a shell, and a program that is looked up before anything starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmixer.errors import nearest
from rmixer.spec.problems import shown

_OPERATORS = frozenset({"|", "||", "|&", "&", "&&", ";", "<", "<<", ">", ">>", "&>", ">|"})
_REDIRECT = re.compile(r"[0-9]*(>>?|<)&?.*|&>.*")
_VARIABLE = re.compile(r"\$[A-Za-z_{(]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)")
_PYTHONS = ("python", "python3")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a command text, and the part of it that no quote protects."""

    text: str
    bare: str


def split_command(text: str) -> list[str]:
    """The words of a command text, as a shell would see them, without a shell.

    Raises:
        ValueError: quotes that do not close, or syntax that needs a shell.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)}: {str(error).lower()}") from error
    for word in _bare_words(text):
        needs = _needs_shell(word)
        if needs:
            raise ValueError(
                f"{needs} needs a shell, and a command is run without one; "
                'write ["bash", "-c", "..."], or quote it if it is meant literally'
            )
    return words


def resolve_program(
    argv: Sequence[str], *, python: str | None, workdir: Path, env: Mapping[str, str]
) -> list[str]:
    """The words with the interpreter put in, the program known to exist.

    Args:
        argv: the words.
        python: the interpreter that stands for a first word ``python`` or ``python3``.
        workdir: what a program with a slash is relative to.
        env: the job's own variables; its PATH counts if it has one.

    Raises:
        LookupError: no such program, or not executable.
    """
    program, path = argv[0], env.get("PATH", os.environ.get("PATH", os.defpath))
    if program in _PYTHONS:
        if python is not None:
            return [python, *argv[1:]]
        if shutil.which(program, path=path) is None:
            return [sys.executable, *argv[1:]]
        return list(argv)
    find_program(program, workdir=workdir, path=path)
    return list(argv)


def find_program(program: str, *, workdir: Path, path: str) -> str:
    """The full path of a program; one with a slash is relative to ``workdir``.

    Raises:
        LookupError: no such program, or not executable.
    """
    if os.sep in program:
        full = os.path.normpath(workdir / program)
        if not Path(full).exists():
            hint = "; ~ is not expanded" if program.startswith("~") else ""
            raise LookupError(f"no such program: {program!r} (looked for {full}){hint}")
        if Path(full).is_dir():
            raise LookupError(f"{program!r} is a directory, not a program")
        if not os.access(full, os.X_OK):
            raise LookupError(f"{program!r} is not executable; make it so with chmod +x")
        return full
    found = shutil.which(program, path=path)
    if found is None:
        raise LookupError(f"no such program on PATH: {program!r}{_program_hint(program, workdir)}")
    return found


def _program_hint(program: str, workdir: Path) -> str:
    assignment = _ASSIGNMENT.fullmatch(program)
    if assignment:
        return f"; set a variable with env: {{{assignment[1]}: ...}}"
    if (workdir / program).is_file():
        if program.endswith(".py"):
            return f"; write python {program}"
        return f"; write ./{program}"
    close = nearest(program, ("python", "python3", "torchrun", "bash"))
    return f"; did you mean {close!r}?" if close else ""


def _needs_shell(word: _Word) -> str | None:
    whole = word.bare == word.text
    if whole and word.text in _OPERATORS:
        return word.text
    if word.bare.endswith(";") and word.text.endswith(";"):
        return "';'"
    if _REDIRECT.fullmatch(word.bare) and word.text[0] == word.bare[0]:
        return word.text
    variable = _VARIABLE.search(word.bare)
    return variable and word.bare[variable.start() :]


def _bare_words(text: str) -> list[_Word]:
    """The words with their unprotected parts, by the quoting rules that `shlex.split` follows."""
    words: list[_Word] = []
    full: list[str] = []
    bare: list[str] = []
    quote, escaped, inside = "", False, False
    for letter in text:
        if escaped:
            full.append(letter)
            escaped = False
        elif quote:
            if letter == quote:
                quote = ""
            elif letter == "\\" and quote == '"':
                escaped = True
            else:
                full.append(letter)
        elif letter in " \t\r\n":
            if inside:
                words.append(_Word("".join(full), "".join(bare)))
            full, bare, inside = [], [], False
            continue
        elif letter in "'\"":
            quote = letter
        elif letter == "\\":
            escaped = True
        else:
            full.append(letter)
            bare.append(letter)
        inside = True
    return [*words, _Word("".join(full), "".join(bare))] if inside else words
