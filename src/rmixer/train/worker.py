"""``python -m rmixer.train.worker CONFIG.json``: the process in which one job is trained.

It reads its job from a file, shows its progress in a page (`rmixer.launch.page`), and writes
``result.json`` and the model when it is done. SIGTERM ends it at the next step, without a model but
with a checkpoint, from which the next attempt of the job goes on (`rmixer.train.checkpoint`).

Exit codes: 0 done; 1 the training failed; 65 the job or its data are not right (no use in trying
again); 71 out of memory; 74 a file cannot be written, for example because the disk is full;
143 stopped by SIGTERM.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmixer.errors import DataError, RmixerError, StorageError, UsageError
from rmixer.launch import page
from rmixer.monitor import own_memory
from rmixer.train.config import JobConfig

if TYPE_CHECKING:
    from rmixer.data.dataset import Dataset
    from rmixer.train.loop import Result

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_NOT_RIGHT = 65  # EX_DATAERR
EXIT_DIVERGED = 70  # EX_SOFTWARE; the same seed diverges again
EXIT_OUT_OF_MEMORY = 71  # EX_OSERR
EXIT_STORAGE = 74  # EX_IOERR
EXIT_STOPPED = 128 + signal.SIGTERM

_SAY_SECONDS = 5.0
#: What torch says when the system has no more memory.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def main(arguments: list[str] | None = None) -> int:
    """Train the job of a configuration file; the result is the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: python -m rmixer.train.worker CONFIG.json", file=sys.stderr)  # noqa: T201
        return EXIT_NOT_RIGHT
    stop = _Stop()
    try:
        run(JobConfig.read(Path(arguments[0])), stop)
    except Exception as error:
        if stop.asked:
            print(f"stopped: {error}", file=sys.stderr)  # noqa: T201
            return EXIT_STOPPED
        code, message = _explain(error)
        if code is None:
            raise
        print(f"error: {message}", file=sys.stderr)  # noqa: T201
        return code
    return EXIT_OK


def run(config: JobConfig, stop: _Stop) -> None:
    """Everything from the configuration to ``result.json`` and the model."""
    progress = page.ProgressWriter(str(config.progress_path))
    if config.threads:
        # polars and the libraries under torch read these when they are imported.
        os.environ.setdefault("POLARS_MAX_THREADS", str(config.threads))
    folder = _prepare_data(config, progress, stop)

    import torch  # noqa: PLC0415 - slow, and it must come after the thread settings

    from rmixer.data.dataset import Dataset  # noqa: PLC0415
    from rmixer.models.model import build  # noqa: PLC0415
    from rmixer.train import artifact, optimizers  # noqa: PLC0415
    from rmixer.train.checkpoint import Checkpoints  # noqa: PLC0415
    from rmixer.train.loop import Settings, train  # noqa: PLC0415

    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    dataset = Dataset(folder)
    model = build(config.model, config.params, dataset.info)
    settings = Settings(
        batch_size=config.batch_size,
        epochs=config.epochs,
        steps=config.steps,
        seed=config.seed,
        stop_seconds=config.stop_grace_seconds / 2,
    )
    optimizer = optimizers.build(config.optimizer, model)
    checkpoints = None
    if config.checkpoint_dir is not None:
        checkpoints = Checkpoints(config.checkpoint_dir, _identity(config, folder), _say)
    result = train(
        model,
        dataset,
        optimizer,
        settings,
        progress=progress,
        should_stop=stop,
        say=_say,
        checkpoints=checkpoints,
    )
    _show(progress, page.SAVING)
    artifact.save(
        config.model_dir,
        model,
        model=config.model,
        params=config.params,
        data=config.data,
        info=dataset.info,
        data_folder=folder,
        extra={"name": config.name, "optimizer": config.optimizer, "training": asdict(settings)},
    )
    sizes = [(p.numel(), p.nbytes) for p in model.parameters()]
    document = _document(
        result, dataset, parameters=sum(s[0] for s in sizes), size=sum(s[1] for s in sizes)
    )
    document["memory"] = own_memory()
    _write_json(config.result_path, document)
    if checkpoints is not None:
        checkpoints.remove()
    _show(progress, page.DONE)
    progress.close()
    metrics = document["metrics"]
    _say(f"done: {result.steps} steps, {result.train_seconds:.1f} s, {json.dumps(metrics)}")


def _identity(config: JobConfig, folder: Path) -> str:
    """What must be equal for one attempt to go on from another's checkpoint."""
    import torch  # noqa: PLC0415 - it has been imported by then

    names = ("model", "params", "optimizer", "batch_size", "epochs", "steps", "seed")
    parts = [getattr(config, name) for name in names]
    text = json.dumps([*parts, folder.name, str(torch.__version__)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class _Stop:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, *_: object) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


def _prepare_data(config: JobConfig, progress: page.ProgressWriter, stop: _Stop) -> Path:
    from rmixer.data import cache, schema  # noqa: PLC0415

    _show(progress, page.LOADING)
    said = time.monotonic()

    def report(what: str, rows: int) -> None:
        nonlocal said
        if time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            waiting = "waiting for another job to parse the data"
            _say(waiting if what == "waiting" else f"parsed {rows} rows")
        progress.publish()

    spec = schema.parse(config.data)
    return cache.prepare(spec, config.cache_dir, should_stop=stop, report=report)


def _document(result: Result, dataset: Dataset, *, parameters: int, size: int) -> dict[str, Any]:
    info = dataset.info
    return {
        "schema_version": 1,
        "steps": result.steps,
        "samples": result.samples,
        "resumed_samples": result.resumed_samples,
        "epochs": result.epochs,
        "train_seconds": result.train_seconds,
        "metrics": {
            "auc": _finite(result.auc),
            "logloss": _finite(result.logloss),
            "train_loss": _finite(result.train_loss),
            "first_train_loss": _finite(result.first_loss),
        },
        "data": {
            "rows": info.rows,
            "train_rows": info.train_rows,
            "valid_rows": info.valid_rows,
        },
        "model": {"parameters": parameters, "bytes": size},
    }


def _is_divergence(error: RmixerError) -> bool:
    from rmixer.train.loop import DivergedError  # noqa: PLC0415 - it has been imported by then

    return isinstance(error, DivergedError)


def _explain(error: Exception) -> tuple[int | None, str]:
    """Exit code and message; no code where it is a fault of ours and the traceback is wanted."""
    from rmixer.data.cache import storage_error  # noqa: PLC0415

    message = str(error)
    if isinstance(error, DataError | UsageError):
        return EXIT_NOT_RIGHT, message
    if isinstance(error, StorageError):
        return EXIT_STORAGE, message
    if isinstance(error, OSError):
        place = Path(str(error.filename or "."))
        return EXIT_STORAGE, str(storage_error(error, place))
    if isinstance(error, RmixerError):
        return EXIT_DIVERGED if _is_divergence(error) else EXIT_FAILED, message
    if isinstance(error, MemoryError) or any(t in message.lower() for t in _OUT_OF_MEMORY):
        return EXIT_OUT_OF_MEMORY, f"out of memory: {message}"
    return None, message


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _show(progress: page.ProgressWriter, phase: int) -> None:
    progress.phase = phase
    progress.publish()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
