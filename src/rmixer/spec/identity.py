"""Who a job is: an id that is safe as a file name, its signature and its family."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rmixer.resources import MIB

MAX_ID = 100
#: A script that is larger is data.
MAX_SCRIPT_BYTES = MIB
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]")

#: Options of a command that a family does not care about: rate, seed, name, where output goes.
_VARIED = frozenset({
    "lr", "learning-rate", "seed", "name", "run-name", "exp-name", "experiment-name",
    "out", "output", "output-dir", "output-path", "out-dir", "outdir",
    "save", "save-dir", "save-path", "save-model", "log-dir", "logdir", "checkpoint-dir",
})  # fmt: skip
_OPTION = re.compile(r"(?P<key>-{0,2}[A-Za-z_][\w.-]*)=.*", re.DOTALL)


def unique_ids(names: Iterable[str]) -> list[str]:
    """One id per name: at most `MAX_ID` letters, safe as a file name, none twice."""
    taken: set[str] = set()
    ids: list[str] = []
    for name in names:
        safe = _UNSAFE.sub("_", name)[:MAX_ID]
        if safe.startswith("."):
            safe = "_" + safe[1:]
        unique, number = safe, 1
        while unique in taken:
            number += 1
            suffix = f"-{number}"
            unique = safe[: MAX_ID - len(suffix)] + suffix
        taken.add(unique)
        ids.append(unique)
    return ids


def model_digests(payload: Mapping[str, Any], threads: int | None) -> tuple[str, str]:
    """Signature and family of a training of ours.

    The signature is the digest of model, parameters, optimizer, data and its file's state, batch
    size, length, seed, threads, environment, interpreter, and the versions of RMixer and torch. The
    family leaves out seed and learning rate.
    """
    content = {key: value for key, value in payload.items() if key not in ("fuse", "profile")}
    path = (payload["data"] or {}).get("path")
    content["data_state"] = file_state(Path(path)) if isinstance(path, str) else None
    content["threads"] = threads
    content["versions"] = {name: version(name) for name in ("rmixer", "torch")}
    optimizer = {key: value for key, value in payload["optimizer"].items() if key != "lr"}
    return _digest(content), _digest({**content, "optimizer": optimizer, "seed": None})


def command_digests(payload: Mapping[str, Any], threads: int | None) -> tuple[str, str]:
    """Signature and family of a command.

    The signature is the digest of its words, working directory, environment, threads, the program
    that is found, and the content of the first script that it names. The family leaves out seed,
    learning rate, name and output paths where they are options by their usual names.
    """
    path = payload["env"].get("PATH", os.environ.get("PATH", os.defpath))
    content = {
        "argv": payload["argv"],
        "workdir": payload["workdir"],
        "env": payload["env"],
        "threads": threads,
        "program": shutil.which(payload["argv"][0], path=path) if payload["argv"] else None,
        "script": script_digest(payload["argv"], Path(payload["workdir"])),
    }
    return _digest(content), _digest({**content, "argv": family_words(payload["argv"])})


def family_words(argv: Sequence[str]) -> list[str]:
    """The words of a command with the values of varied options replaced by ``*``."""
    words: list[str] = []
    hide_next = False
    for word in argv:
        joined = _OPTION.fullmatch(word)
        if hide_next and not word.startswith("--"):
            words.append("*")
            hide_next = False
            continue
        hide_next = False
        if joined and _is_varied(joined["key"]):
            words.append(f"{joined['key']}=*")
            continue
        hide_next = word.startswith("--") and _is_varied(word)
        words.append(word)
    return words


def script_digest(argv: Sequence[str], workdir: Path) -> str | None:
    """SHA-256 of the first ``.py`` or ``.sh`` file among the words, if it is small enough."""
    for word in argv:
        if not word.endswith((".py", ".sh")):
            continue
        try:
            script = workdir / word
            if script.is_file() and script.stat().st_size < MAX_SCRIPT_BYTES:
                return hashlib.sha256(script.read_bytes()).hexdigest()
        except (OSError, ValueError):
            continue
    return None


def file_state(path: Path) -> list[int] | None:
    """Size in bytes and time of the last change in ns: enough to notice another content.

    Of a folder: of all that is in it.
    """
    try:
        states = [path.stat()]
        if path.is_dir():
            states += [part.stat() for part in path.rglob("*")]
    except OSError:
        return None
    return [sum(s.st_size for s in states), max(s.st_mtime_ns for s in states)]


@cache
def version(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_varied(option: str) -> bool:
    name = option.lstrip("-").replace("_", "-").rpartition(".")[2]
    return name in _VARIED


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
