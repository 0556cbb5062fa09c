"""From a draft to a `JobSpec`: what depends on the machine's files and on several keys at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rmixer.model import JobSpec
from rmixer.spec.command import find_program, resolve_program, split_command
from rmixer.spec.drafts import Draft
from rmixer.spec.findings import validation_problems
from rmixer.spec.identity import command_digests, model_digests
from rmixer.spec.problems import CommandNotFoundError, Problems
from rmixer.spec.schema import Defaults, JobEntry
from rmixer.spec.sweep import has_template
from rmixer.spec.training import TrainingBuilder


@dataclass(frozen=True, slots=True)
class Checked:
    """A job whose keys are right each by itself."""

    draft: Draft
    entry: JobEntry


def check_defaults(defaults: Any, problems: Problems) -> None:
    """Check the defaults by themselves: none of them may be wrong, used or not."""
    if not isinstance(defaults, dict):
        return
    values = {
        key: {"name": value} if key == "optimizer" and isinstance(value, str) else value
        for key, value in defaults.items()
        if key in Defaults.model_fields and not has_template(value)
    }
    try:
        Defaults.model_validate(values)
    except ValidationError as error:
        for rest, message in validation_problems(error, values):
            problems.add(("defaults", *rest), message)


def check_entry(draft: Draft, problems: Problems) -> Checked | None:
    """The job's keys with their types, or None if something is wrong."""
    try:
        return Checked(draft, JobEntry.model_validate(draft.values))
    except ValidationError as error:
        for rest, message in validation_problems(error, draft.values):
            problems.add(draft.path(*rest), message, draft.note(*rest))
    return None


class Builder:
    """Builds the jobs of one document.

    Args:
        base_dir: what paths in the document are relative to.
        problems: where everything that is wrong goes.
        require_data: whether a training of ours must say what data it trains on.
    """

    def __init__(self, base_dir: Path, problems: Problems, *, require_data: bool = True) -> None:
        self.base_dir = Path(os.path.abspath(base_dir))  # noqa: PTH100 - links stay as they are
        self.problems = problems
        self.training = TrainingBuilder(self._absolute, problems, require_data=require_data)

    def build(self, checked: Checked, *, job_id: str, after: tuple[str, ...]) -> JobSpec:
        """The job. With problems noted, what is returned is of no use."""
        draft, entry = checked.draft, checked.entry
        if entry.gpus and entry.device == "cpu":
            self._add(draft, f"{entry.gpus} GPUs and device cpu exclude each other", "gpus")
        workdir = self._workdir(draft, entry)
        python = self._python(draft, entry, workdir)
        payload: dict[str, Any] = {"workdir": str(workdir), "env": dict(entry.env or {})}
        if entry.command is not None:
            payload["argv"] = self._argv(draft, entry, workdir, python)
            signature, family = command_digests(payload, entry.threads)
        else:
            payload |= self.training.payload(draft, entry)
            payload |= {} if python is None else {"python": python}
            signature, family = model_digests(payload, entry.threads)
        for key in ("fuse", "profile"):
            if getattr(entry, key) is not None:
                dumped = entry.model_dump(mode="json", include={key}, exclude_none=True)
                payload[key] = dumped[key]
        return JobSpec(
            id=job_id,
            name=entry.name,
            kind="model" if entry.command is None else "command",
            payload=payload,
            signature=signature,
            family=family,
            device=entry.device or "auto",
            gpus=entry.gpus,
            threads=entry.threads,
            memory=entry.memory,
            gpu_memory=entry.gpu_memory,
            retries=entry.retries or 0,
            timeout_seconds=entry.timeout,
            priority=entry.priority or 0,
            after=after,
            total_steps=entry.steps if entry.command is None else None,
        )

    def _add(self, draft: Draft, message: str, *rest: str | int) -> None:
        self.problems.add(draft.path(*rest), message, draft.note(*rest))

    def _absolute(self, path: str) -> Path:
        return Path(os.path.normpath(self.base_dir / os.path.expanduser(path)))  # noqa: PTH111

    def _workdir(self, draft: Draft, entry: JobEntry) -> Path:
        workdir = self._absolute(entry.workdir or ".")
        if not workdir.is_dir():
            what = "is not a directory" if workdir.exists() else "does not exist"
            self._add(draft, f"{str(workdir)!r} {what}", "workdir")
        return workdir

    def _python(self, draft: Draft, entry: JobEntry, workdir: Path) -> str | None:
        if entry.python is None:
            return None
        named = entry.python
        if os.sep in named:
            named = str(self._absolute(named))
        try:
            path = (entry.env or {}).get("PATH", os.environ.get("PATH", os.defpath))
            return find_program(named, workdir=workdir, path=path)
        except LookupError as error:
            self._add(draft, str(error.args[0]), "python")
        return named

    def _argv(self, draft: Draft, entry: JobEntry, workdir: Path, python: str | None) -> list[str]:
        command = entry.command or ""
        try:
            argv = split_command(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            self._add(draft, str(error), "command")
            return []
        if not argv or not argv[0]:
            self._add(draft, "the command names no program", "command")
            return argv
        if any("\0" in word for word in argv):
            self._add(draft, "a zero byte cannot be in a command", "command")
            return argv
        try:
            return resolve_program(argv, python=python, workdir=workdir, env=entry.env or {})
        except LookupError as error:
            note = draft.note("command")
            path = draft.path("command")
            self.problems.add(path, str(error.args[0]), note, CommandNotFoundError)
        return argv
