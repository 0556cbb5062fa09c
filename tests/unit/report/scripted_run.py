"""Logs of runs that never were, written event by event, for the tests of the report."""

from __future__ import annotations

import random
from typing import Any

from rmixer import events as ev
from rmixer.model import Device, Estimate, JobSpec, Node, Outcome, Placement, Progress, StateName
from rmixer.resources import GIB, MIB

WALL = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class ScriptedRun:
    """Writes a consistent log; every method appends and says at which second."""

    def __init__(
        self, cores: int = 4, memory: int = 4 * GIB, policy: str = "complementary", **node: Any
    ) -> None:
        self.node = Node(name="box", cores=tuple(range(cores)), memory=memory, **node)
        self.events: list[ev.Event] = [
            ev.Began(
                wall=WALL, run="r-1", name="demo", node=self.node, policy=policy, seed=7,
                version="0.1.0",
            )
        ]  # fmt: skip
        self.tries: dict[str, int] = {}
        self.samples: list[dict[str, Any]] = []

    def add(self, kind: type, at: float, **fields: Any) -> None:
        self.events.append(kind(at=at, wall=WALL + at, **fields))

    def submit(
        self, *ids: str, name: str | None = None, memory: int = 300 * MIB, **spec: Any
    ) -> None:
        for id_ in ids:
            fields = {"name": name or id_, "kind": "model", "family": id_.rstrip("0123456789.-")}
            self.add(
                ev.Submitted, 0.0, spec=JobSpec(id=id_, **(fields | spec)),
                estimate=Estimate(memory=memory),
            )  # fmt: skip

    def token(self, job: str) -> str:
        return f"{job}#{self.tries[job]}"

    def place(self, at: float, job: str, cores: tuple[int, ...] = (), **placement: Any) -> None:
        self.tries[job] = self.tries.get(job, 0) + 1
        where = {"cpu": float(len(cores) or 1), "threads": len(cores) or None, "memory": 400 * MIB}
        self.add(
            ev.Placed, at, job=job, attempt=self.tries[job], token=self.token(job),
            placement=Placement(cores=cores, **(where | placement)),
        )  # fmt: skip
        self.add(ev.Spawned, at, job=job, token=self.token(job), pid=4000)

    def rebook(self, at: float, job: str, cores: tuple[int, ...], **placement: Any) -> None:
        where = {"cpu": float(len(cores) or 1), "threads": len(cores) or None, "memory": 400 * MIB}
        place = Placement(cores=cores, **(where | placement))
        self.add(ev.Rebooked, at, job=job, token=self.token(job), placement=place)

    def progress(self, at: float, job: str, step: int, total: int, samples: int) -> None:
        progress = Progress(at=at, step=step, total_steps=total, samples=samples)
        self.add(ev.Progressed, at, job=job, token=self.token(job), progress=progress)

    def exit(
        self, at: float, job: str, outcome: Outcome, result: dict[str, Any] | None = None
    ) -> None:
        self.add(
            ev.Exited, at, job=job, token=self.token(job), outcome=outcome, result=result or {}
        )

    def succeed(
        self, at: float, job: str, samples: int = 100_000, peak: int = 350 * MIB, **metrics: Any
    ) -> None:
        outcome = Outcome(state=StateName.SUCCEEDED, exit_code=0, memory_peak_bytes=peak)
        self.exit(at, job, outcome, {"samples": samples, "metrics": metrics})
        self.add(ev.Ended, at, job=job, outcome=outcome)

    def fail(
        self,
        at: float,
        job: str,
        message: str = "boom",
        *,
        retry_at: float | None = None,
        **outcome: Any,
    ) -> None:
        fields = {"state": StateName.FAILED, "reason": "exit 1", "exit_code": 1} | outcome
        outcome_ = Outcome(message=message, **fields)
        self.exit(at, job, outcome_)
        if retry_at is not None:
            self.add(ev.Requeued, at, job=job, outcome=outcome_, not_before=retry_at)
        else:
            self.add(ev.Ended, at, job=job, outcome=outcome_)

    def end(self, at: float, job: str, state: StateName, reason: str = "") -> None:
        self.add(ev.Ended, at, job=job, outcome=Outcome(state=state, reason=reason))

    def finish(self, at: float, *, interrupted: bool = False) -> None:
        self.add(ev.Finished, at, interrupted=interrupted)

    def sample(self, at: float, jobs: dict[str, dict[str, Any]], cpu: float, rss: int) -> None:
        for job, values in jobs.items():
            values.setdefault("token", self.token(job))
        node = {"cpu": cpu, "rss_bytes": rss, "memory_available_bytes": GIB}
        self.samples.append({"at": at, "jobs": jobs, "node": node})

    def measure(self, every: float, seed: int = 1) -> None:
        """Plausible telemetry of all that ran: memory that grows, cores a bit below the booking."""
        rng = random.Random(seed)
        running = _intervals(self.events)
        end = self.events[-1].at
        for step in range(int(end / every)):
            at = step * every
            here = [(j, s, p) for j, s, e, p in running if s <= at < e]
            jobs, cpu, rss = {}, 0.0, 0
            for job, start, place in here:
                used = place.cpu * rng.uniform(0.72, 1.0)
                bytes_ = int(place.memory * min(0.85, 0.3 + (at - start) / 12))
                jobs[job] = {
                    "phase": "training", "rate": 0.9, "cpu": used, "rss_bytes": bytes_,
                    "samples": int(4000 * (at - start)), "samples_per_second": 4000.0,
                }  # fmt: skip
                cpu, rss = cpu + used, rss + bytes_
            self.sample(at, jobs, cpu, rss)


def _intervals(events: list[ev.Event]) -> list[tuple[str, float, float, Placement]]:
    begun: dict[str, tuple[float, Placement]] = {}
    done = []
    for event in events:
        match event:
            case ev.Placed(job=job, placement=place, at=at):
                begun[job] = (at, place)
            case ev.Rebooked(job=job, placement=place, at=at):
                done.append((job, begun[job][0], at, begun[job][1]))
                begun[job] = (at, place)
            case ev.Requeued(job=job, at=at) | ev.Ended(job=job, at=at) if job in begun:
                start, place = begun.pop(job)
                done.append((job, start, at, place))
    return done + [(job, s, events[-1].at, p) for job, (s, p) in begun.items()]


def eight_jobs() -> ScriptedRun:
    """Eight jobs: retries, a failure, a dependant that was cancelled, a core that is shared."""
    run = ScriptedRun()
    run.submit("dlrm-0.1", "dlrm-0.03", "dlrm-0.01", "dlrm-0.003")
    run.submit("deepfm", memory=500 * MIB)
    run.submit("din", retries=2)
    run.submit(
        "plain_dcn",
        kind="command",
        payload={"argv": ["python", "plain_dcn.py", "--lr", "0.1"]},
        retries=1,
    )
    run.submit(
        "evaluate",
        kind="command",
        payload={"argv": ["python", "evaluate.py"]},
        after=("plain_dcn",),
    )
    run.place(0.4, "dlrm-0.1", (0,))
    run.place(0.5, "deepfm", (1, 2), memory=600 * MIB)
    run.place(0.6, "din", (3,), cpu=0.5, threads=1)
    run.place(0.7, "plain_dcn", (3,), cpu=0.5, threads=1)
    run.fail(
        14.0, "din", "RuntimeError: data loader died", retry_at=16.0, reason="SIGKILL", signal=9
    )
    run.place(17.0, "din", (3,), cpu=0.5, threads=1)
    log = 'Traceback (most recent call last):\n  File "plain_dcn.py", line 41, in <module>\nValueError: <script>alert(1)</script> is not a number'
    run.fail(21.0, "plain_dcn", log, retry_at=22.0)
    run.succeed(24.0, "dlrm-0.1", auc=0.7712, logloss=0.4711)
    run.place(24.1, "dlrm-0.03", (0,))
    run.place(24.2, "plain_dcn", (3,), cpu=0.5, threads=1)
    run.succeed(39.0, "deepfm", samples=250_000, peak=560 * MIB, auc=0.7841, logloss=0.4602)
    run.place(39.1, "dlrm-0.01", (1,))
    run.place(39.1, "dlrm-0.003", (2,))
    run.fail(44.0, "plain_dcn", log)
    run.end(44.0, "evaluate", StateName.CANCELLED, "DependencyFailed")
    run.rebook(44.1, "din", (3,), cpu=1.0, threads=1)
    run.succeed(47.5, "dlrm-0.03", auc=0.7755, logloss=0.4688)
    run.rebook(48.0, "din", (0, 3), threads=2)
    run.succeed(58.0, "dlrm-0.01", auc=0.7690, logloss=0.4733)
    run.succeed(61.0, "dlrm-0.003", auc=0.7602, logloss=0.4799)
    run.succeed(66.0, "din", samples=180_000, auc=0.8031, logloss=0.4417)
    run.finish(66.1)
    run.measure(0.5)
    return run


def many_jobs(
    count: int = 300, cores: int = 16, *, pinned: bool = True, seed: int = 3
) -> ScriptedRun:
    """A sweep over seconds to minutes, some failures among it."""
    rng = random.Random(seed)
    run = ScriptedRun(cores=cores, memory=32 * GIB)
    names = [f"{rng.choice(['dlrm', 'deepfm', 'din', 'dcn'])}-lr{i:03}" for i in range(count)]
    for name in names:
        run.submit(name, family=name.split("-")[0])
    free = [(0.0, core) for core in range(cores)]
    ends: list[tuple[float, str]] = []
    todo: list[tuple[float, int, str]] = []
    for name in names:
        free.sort()
        at, core = free.pop(0)
        seconds = rng.lognormvariate(3.4, 0.6)
        todo.append((at + 0.2, core, name))
        ends.append((at + seconds, name))
        free.append((at + seconds, core))
    moments = [(at, 1, name, core) for at, core, name in todo] + [
        (at, 0, name, 0) for at, name in ends
    ]
    for at, begin, name, core in sorted(moments):
        if begin:
            run.place(at, name, (core,) if pinned else ())
        elif rng.random() < 0.06:
            run.fail(at, name, "loss is not finite at step 120")
        else:
            run.succeed(at, name, auc=rng.uniform(0.7, 0.8), logloss=rng.uniform(0.4, 0.5))
    run.finish(max(ends)[0] + 0.1)
    run.measure(1.0)
    return run


GPU = Device(id="GPU-1", kind="NVIDIA H200", index=0, memory=8 * GIB)
