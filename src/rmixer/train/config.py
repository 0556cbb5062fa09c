"""What one training process is told: the configuration file that the runner writes for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmixer.data import schema
from rmixer.errors import UsageError
from rmixer.models import params
from rmixer.train import optimizers_table


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """One job, as the runner writes it. Paths are absolute."""

    name: str
    model: str
    optimizer: dict[str, Any]
    data: dict[str, Any]
    cache_dir: Path
    progress_path: Path
    result_path: Path
    model_dir: Path
    params: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 2048
    epochs: int = 1
    steps: int | None = None
    seed: int = 0
    threads: int | None = None
    stop_grace_seconds: float = 10.0
    checkpoint_dir: Path | None = None

    @classmethod
    def read(cls, path: Path) -> JobConfig:
        """The job in a file; keys that are not known are for somebody else.

        Raises:
            UsageError: it cannot be read, or lacks something.
        """
        try:
            value = json.loads(path.read_text())
            known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
            for name in ("cache_dir", "progress_path", "result_path", "model_dir"):
                known[name] = Path(known[name])
            if known.get("checkpoint_dir") is not None:
                known["checkpoint_dir"] = Path(known["checkpoint_dir"])
            config = cls(**known)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: no job that can be read: {error}") from error
        config.check()
        return config

    def check(self) -> None:
        """Hold every part against its table.

        Raises:
            UsageError: naming the key, the value, and what would be right.
        """
        problems = [(f"data.{key}", message) for key, message in schema.validate(self.data)]
        for key, message in params.validate(self.model, self.params):
            problems.append((f"params.{key}" if key else "model", message))
        for key, message in optimizers_table.validate(self.optimizer):
            problems.append((f"optimizer.{key}", message))
        if self.batch_size < 1 or self.epochs < 0 or (self.steps is not None and self.steps < 0):
            problems.append(
                ("batch_size, epochs, steps", "must not be negative, the first above 0")
            )
        if problems:
            raise UsageError("; ".join(f"{key}: {message}" for key, message in problems))
