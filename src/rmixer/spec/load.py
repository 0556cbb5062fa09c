"""The ways into a run's jobs: a file, a command line, values from Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmixer import catalog
from rmixer.errors import UsageError
from rmixer.model import JobSpec
from rmixer.spec.build import Builder, Checked, check_defaults, check_entry
from rmixer.spec.dependencies import resolve
from rmixer.spec.document import Document, dotted, plain, read_document
from rmixer.spec.drafts import drafts_of
from rmixer.spec.identity import unique_ids
from rmixer.spec.problems import Problems, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFile:
    """A jobs file, checked.

    Attributes:
        jobs: every job, sweeps expanded, in the order of the file.
        policy: as `rmixer.catalog.build_policy` takes it, or None where the file names none.
        digest: SHA-256 of the content; comments and layout do not count.
        text: the file as it was read.
        path: where it was read; None for jobs that come from no file.
        base_dir: what its paths are relative to.
    """

    jobs: tuple[JobSpec, ...]
    policy: str | None = None
    digest: str = ""
    text: str = ""
    path: Path | None = None
    base_dir: Path


def load_jobs_file(path: Path | str, *, require_data: bool = True) -> JobsFile:
    """Read and check a jobs file. Nothing is started, and no data file is read.

    Args:
        path: the file.
        require_data: whether a job with ``model`` must have ``data``; an estimate can do without.

    Raises:
        SpecError: something is not right; the message has file, line and key of all that is wrong.
    """
    path = Path(path)
    document = read_document(path)
    base_dir = Path(os.path.abspath(path.parent))  # noqa: PTH100 - links stay as they are
    jobs, policy = _assemble(document, base_dir, require_data=require_data)
    return JobsFile(
        jobs=jobs,
        policy=policy,
        digest=document.digest,
        text=document.text,
        path=path,
        base_dir=base_dir,
    )


def jobs_from_dicts(
    jobs: Sequence[Mapping[str, Any]],
    base_dir: Path | str = ".",
    *,
    defaults: Mapping[str, Any] | None = None,
    require_data: bool = True,
) -> tuple[JobSpec, ...]:
    """Jobs from Python values with the keys of a jobs file, sweeps included.

    Args:
        jobs: the jobs.
        base_dir: what their paths are relative to.
        defaults: what every job has unless it says otherwise.
        require_data: as for `load_jobs_file`.

    Raises:
        SpecError: something is not right; the message has the key.
    """
    file = "jobs"
    tree = {"jobs": [plain(job, ("jobs", i), file) for i, job in enumerate(jobs)]}
    if defaults is not None:
        tree["defaults"] = plain(defaults, ("defaults",), file)
    return _assemble(Document(file, tree), Path(base_dir), require_data=require_data)[0]


def job_from_command(
    argv: Sequence[str], cwd: Path | str = ".", *, name: str | None = None, **keys: Any
) -> JobSpec:
    """The one job of a command line: its words are taken as they are.

    Args:
        argv: the program and its arguments.
        cwd: where it runs, and what paths are relative to.
        name: of the job; absent: after the script or the program.
        keys: further keys of a job, for example ``threads`` or ``memory``.

    Raises:
        CommandNotFoundError: there is no such program (exit code 127 on the command line).
        SpecError: something else is not right.
    """
    job = {"name": name or command_name(argv), "command": list(argv), **keys}
    document = Document("command line", {"jobs": [plain(job, (), "command line")]}, in_jobs=False)
    return _assemble(document, Path(cwd))[0][0]


def command_name(argv: Sequence[str]) -> str:
    """A name for a command: that of its script without suffix, else of its program."""
    for word in argv:
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    return Path(argv[0]).name if argv and Path(argv[0]).name else "command"


def _assemble(
    document: Document, base_dir: Path, *, require_data: bool = True
) -> tuple[tuple[JobSpec, ...], str | None]:
    problems = Problems(document)
    policy = _policy(document, problems)
    check_defaults(document.tree.get("defaults"), problems)
    checked = [
        entry
        for draft in drafts_of(document, problems)
        if (entry := check_entry(draft, problems)) is not None
    ]
    _check_names(checked, problems)
    names = [one.entry.name for one in checked]
    ids = unique_ids(names)
    builder = Builder(base_dir, problems, require_data=require_data)
    after: Sequence[tuple[str, ...]] = [()] * len(checked)
    if not problems:  # a job that is left out would be missed by others
        wanted = [one.entry.after or () for one in checked]
        after = resolve([one.draft for one in checked], names, ids, wanted, problems)
    jobs = tuple(
        builder.build(one, job_id=job_id, after=before)
        for one, job_id, before in zip(checked, ids, after, strict=True)
    )
    problems.raise_if_any()
    return jobs, policy


def _policy(document: Document, problems: Problems) -> str | None:
    written = document.tree.get("policy")
    if written is None:
        return None
    path = ("policy",)
    if isinstance(written, dict):
        options = {key: value for key, value in written.items() if key != "name"}
        if not isinstance(written.get("name"), str):
            problems.add(path, "the policy has no name; write for example {name: fixed, k: 2}")
            return None
        for key, value in options.items():
            if isinstance(value, dict | list) or value is None:
                problems.add((*path, key), f"{shown(value)} is not a single value")
                return None
        written = catalog.format_policy(written["name"], options)
    if not isinstance(written, str):
        problems.add(path, f"{shown(written)} is not a policy; write for example fixed:k=2")
        return None
    try:
        catalog.build_policy(written)
    except UsageError as error:
        problems.add(path, str(error))
    return written


def _check_names(checked: Sequence[Checked], problems: Problems) -> None:
    counts = Counter(one.entry.name for one in checked)
    first: dict[str, Checked] = {}
    for one in checked:
        name = one.entry.name
        if counts[name] == 1:
            continue
        if name not in first:
            first[name] = one
            continue
        other = first[name].draft
        place = other.path("name")
        line = problems.document.line(place)
        where = f"line {line}" if line else dotted(place)
        if other.index == one.draft.index:
            message = f"the sweep gives the name {name!r} twice; have every key of it in the name"
        else:
            message = f"the name {name!r} is already used in {where}; names are unique"
        problems.add(one.draft.path("name"), message)
