"""A job with ``model``: its training configuration, checked without torch."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmixer import catalog
from rmixer.errors import UsageError
from rmixer.spec.drafts import Draft
from rmixer.spec.problems import Problems, shown
from rmixer.spec.schema import JobEntry

BATCH_SIZE = 2048
EPOCHS = 1


class TrainingBuilder:
    """Builds training configurations.

    Args:
        absolute: makes a path of the jobs file absolute.
        problems: where everything that is wrong goes.
        require_data: whether there must be ``data``.
    """

    def __init__(
        self, absolute: Callable[[str], Path], problems: Problems, *, require_data: bool
    ) -> None:
        self.absolute = absolute
        self.problems = problems
        self.require_data = require_data

    def payload(self, draft: Draft, entry: JobEntry) -> dict[str, Any]:
        """What `rmixer.train.worker` needs of the job, without the paths of the run."""
        return {
            "model": entry.model,
            "params": self._params(draft, entry),
            "optimizer": self._optimizer(draft, entry),
            "batch_size": entry.batch_size or BATCH_SIZE,
            "epochs": entry.epochs or EPOCHS,
            "steps": entry.steps,
            "seed": entry.seed or 0,
            "data": self._data(draft, entry),
        }

    def _params(self, draft: Draft, entry: JobEntry) -> dict[str, Any]:
        params, model = dict(entry.params or {}), entry.model or ""
        try:
            catalog.lookup("model", model)
        except UsageError as error:
            self._add(draft, str(error), "model")
        else:
            self._gather(draft, "params", params, catalog.check_params(model, params))
        return params

    def _optimizer(self, draft: Draft, entry: JobEntry) -> dict[str, Any]:
        given = (entry.optimizer or {}).items()
        optimizer = {key: value for key, value in given if value is not None}
        if not isinstance(optimizer.get("name", ""), str):
            self._add(draft, f"{shown(optimizer['name'])} is not a name", "optimizer", "name")
            return optimizer
        found = catalog.check_optimizer(optimizer)
        self._gather(draft, "optimizer", optimizer, found)
        return optimizer if found else catalog.complete_optimizer(optimizer)

    def _data(self, draft: Draft, entry: JobEntry) -> dict[str, Any] | None:
        if entry.data is None:
            if self.require_data:
                example = "data: {format: criteo, path: train.tsv}"
                message = f"a job with `model` needs `data`; write for example {example}"
                self.problems.add(draft.path(), message)
            return None
        data = dict(entry.data)
        if isinstance(data.get("path"), str) and data["path"]:
            data["path"] = str(self.absolute(data["path"]))
        found = catalog.check_data(data)
        self._gather(draft, "data", data, found)
        if isinstance(data.get("path"), str) and "path" not in dict(found):
            problem = file_problem(data["path"], folder=catalog.data_takes_folder(data))
            if problem:
                self._add(draft, problem, "data", "path")
        if not found:
            lacking = catalog.check_features(entry.model or "", data)
            self._gather(draft, "data", data, lacking)
        return data

    def _gather(
        self, draft: Draft, key: str, values: dict[str, Any], found: list[catalog.Problem]
    ) -> None:
        """Note what a check found; the value is told where the check's words do not."""
        for inner, message in found:
            rest = [part for part in inner.split(".") if part]
            value: Any = values
            for part in rest:
                value = value.get(part) if isinstance(value, dict) else None
            told = isinstance(value, dict | list | None) or str(value) in message
            self._add(draft, message if told else f"{shown(value)}: {message}", key, *rest)

    def _add(self, draft: Draft, message: str, *rest: str) -> None:
        self.problems.add(draft.path(*rest), message, draft.note(*rest))


def file_problem(path: str, *, folder: bool = False) -> str | None:
    """What is wrong with a data file, seen from outside: its content is not looked at.

    Args:
        path: of it.
        folder: whether it may be a folder.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
        if folder and stat.S_ISDIR(mode):
            return None if os.listdir(path) else f"{path!r} is an empty folder"  # noqa: PTH208
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            return f"{path!r} is {what}; name a data file"
        with open(path, "rb") as stream:  # noqa: PTH123
            return None if stream.read(1) else f"{path!r} is empty"
    except FileNotFoundError:
        return f"no such file: {path!r}"
    except OSError as error:
        return f"{path!r} cannot be read: {error.strerror}"
    except ValueError as error:
        return f"{path!r} cannot be a path: {error}"
