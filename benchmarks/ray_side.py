"""Ray Tune with a fraction of a core per trial; runs in an environment with `ray[tune]`.

    python ray_side.py COMMANDS CPUS_PER_TRIAL     one command a line; ends when all have ended

A trial starts one command and waits for it. Ray gives it as many threads as it has whole cores, at
least one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import ray
from ray import tune


def main() -> None:
    commands = Path(sys.argv[1]).read_text().splitlines()
    cpus = float(sys.argv[2])
    environment = dict(os.environ)

    def trial(config: dict[str, str]) -> dict[str, float]:
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        done = subprocess.run(
            shlex.split(config["command"]), env={**environment, **threads}, check=True
        )
        return {"code": done.returncode}

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": cpus}),
        param_space={"command": tune.grid_search(commands)},
        run_config=tune.RunConfig(verbose=0),
    )
    tuner.fit()


if __name__ == "__main__":
    main()
