"""RMixer trains many recommendation models at once on the machine that you have.

    import rmixer
    run = rmixer.run([{"name": "dlrm", "model": "dlrm", "data": {...}}], name="mine")
    model = rmixer.load("runs/mine/jobs/dlrm")
    peak = rmixer.estimate(build, device="cuda")

and in a program that is a job itself:

    with rmixer.job() as job:
        job.report(step, samples)

Everything is imported when it is first used: ``import rmixer`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmixer import estimate, simulate
    from rmixer.api import Job, Sweep, run
    from rmixer.errors import RmixerError
    from rmixer.launch.rmixer_job import job
    from rmixer.runner.run import Run
    from rmixer.train.artifact import load  # noqa: TID251 - for the type checker alone

__all__ = ["Job", "RmixerError", "Run", "Sweep", "estimate", "job", "load", "run", "simulate"]

_HOMES = {
    "Job": "rmixer.api",
    "RmixerError": "rmixer.errors",
    "Run": "rmixer.runner.run",
    "Sweep": "rmixer.api",
    "estimate": "rmixer.estimate",
    "job": "rmixer.launch.rmixer_job",
    "load": "rmixer.train.artifact",
    "run": "rmixer.api",
    "simulate": "rmixer.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rmixer' has no attribute {name!r}")
    if name in ("estimate", "simulate"):  # packages that can be called
        return import_module(_HOMES[name])
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
