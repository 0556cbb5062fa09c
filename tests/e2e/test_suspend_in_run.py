"""Two real jobs that harm each other: one stands still until the other has ended, also after kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import MAIN, PYTHON, Workplace, wait_until, workplace

from rmixer import events as ev
from rmixer.model import StateName

pytestmark = pytest.mark.e2e

#: Makes steps of 10 ms; of 30 ms while another one has made a step within the last 200 ms.
STEPPER = """
import os, sys, time
from pathlib import Path
from rmixer.launch.page import TRAINING, ProgressWriter
name, steps = sys.argv[1], int(sys.argv[2])
page = ProgressWriter(os.environ["RMIXER_PROGRESS"])
page.phase, page.total_steps, page.first_step_at = TRAINING, steps, time.time()
own = Path(name + ".beat")
for step in range(steps):
    own.touch()
    beats = [path for path in Path().glob("*.beat") if path != own]
    crowded = any(time.time() - path.stat().st_mtime < 0.2 for path in beats)
    time.sleep(0.03 if crowded else 0.01)
    page.step = step + 1
    page.publish()
own.unlink()
"""
#: Less patience than usual, before it is settled what a company does.
HASTY = (
    "from rmixer.interference import regime; from rmixer.runner import rates\n"
    "regime.SETTLE_SECONDS, rates.FIRST_SECONDS = 0.2, 1.0\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with workplace(tmp_path) as made:
        (made.directory / "stepper.py").write_text(STEPPER)
        made.write(
            *(
                {
                    "name": name, "command": [PYTHON, "stepper.py", name, "200"], "threads": 1,
                    "profile": {"step_seconds": 0.011, "demand": {"cores": 0.3}},
                }
                for name in "ab"
            )
        )  # fmt: skip
        yield made


def stands(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_harmful_pair_is_taken_apart_and_a_killed_runner_changes_nothing(
    place: Workplace,
) -> None:
    """Suspended, taken over while it stands, continued after the other's end; told in the report."""
    process = place.start("run", "jobs.yaml", program=HASTY + MAIN)

    def suspended() -> list[ev.Suspended]:
        return [e for e in place.events() if isinstance(e, ev.Suspended)]

    (order,) = wait_until(suspended, "for a suspension")
    folder = place.paths().job(order.job).attempt(1)
    pid = json.loads(folder.started.read_text())["job_pid"]
    wait_until(lambda: stands(pid), "for it to stand still")
    place.kill(process)
    assert stands(pid), "it stands on while a runner may still come back"
    result = place.run("run", "jobs.yaml", "--json", program=HASTY + MAIN)
    assert result.returncode == 0, result.stderr
    assert place.names() == dict.fromkeys("ab", StateName.SUCCEEDED)
    assert all(len(job.attempts) == 1 for job in place.state().jobs.values())
    told = [type(e).__name__ for e in place.events() if getattr(e, "job", "") == order.job]
    assert told.index("Suspended") < told.index("Adopted") < told.index("Continued")
    jobs = {job["id"]: job for job in json.loads(result.stdout)["jobs"]}
    assert jobs[order.job]["suspended_seconds"] > 0.5
    assert [j["suspended_seconds"] for id_, j in jobs.items() if id_ != order.job] == [0.0]
