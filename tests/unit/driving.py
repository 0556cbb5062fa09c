"""Words for telling a dispatcher what happens, and for asking what it decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.model import Active, Estimate, JobSpec, Node, Outcome, Pending, StateName
from rmixer.policies.base import Policy
from rmixer.policies.baselines import Fixed

TWO_CORES = Node(cores=(0, 1), memory=100)
OK = Outcome(state=StateName.SUCCEEDED)
BAD = Outcome(state=StateName.FAILED, reason="exit 1", exit_code=1)
OOM = Outcome(state=StateName.OUT_OF_MEMORY, reason="host", memory_peak_bytes=40)


class Driver:
    """Speaks to a dispatcher in the fewest words; keeps what it decided.

    What is reserved for a job is its hint, else 10 bytes by default, unless ``estimates`` has it.
    """

    def __init__(
        self,
        *jobs: JobSpec,
        policy: Policy | None = None,
        node: Node = TWO_CORES,
        estimates: Mapping[str, Estimate] | None = None,
        **began: Any,
    ) -> None:
        self.core = Dispatcher(policy or Fixed(k=2))
        self.at = 0.0
        self.said: list[ev.Action] = []
        self.tell(ev.Began(wall=0, run="r", name="n", node=node, policy="p", **began))
        for spec in jobs:
            estimate = (estimates or {}).get(spec.id) or _said(spec)
            self.tell(self.make(ev.Submitted, spec=spec, estimate=estimate))
        self.tell(self.make(ev.QueueClosed))

    def make(self, kind: Any, **fields: Any) -> Any:
        return kind(at=self.at, wall=self.at, **fields)

    def tell(self, event: Any) -> list[ev.Action]:
        actions = self.core.handle(event)
        self.said += actions
        return actions

    def about(self, kind: Any, job: str, after: float = 0.0, **fields: Any) -> list[ev.Action]:
        """News of a job's running attempt."""
        self.at += after
        state = self.core.state.jobs[job].state
        assert isinstance(state, Active), f"{job} does not run"
        return self.tell(self.make(kind, job=job, token=state.attempt.token, **fields))

    def ends(self, job: str, outcome: Outcome, after: float = 0.0) -> list[ev.Action]:
        return self.about(ev.Exited, job, after, outcome=outcome)

    def wake(self) -> list[ev.Action]:
        """Let the time pass up to the newest wake that was asked for."""
        self.at = [action.at for action in self.said if isinstance(action, ev.Wake)][-1]
        return self.tell(self.make(ev.Woke))

    def states(self) -> dict[str, StateName]:
        return {job.id: job.state.name for job in self.core.state.jobs.values()}

    def reason(self, job: str) -> str:
        state = self.core.state.jobs[job].state
        assert isinstance(state, Pending)
        return str(state.reason)


def _said(spec: JobSpec) -> Estimate:
    return Estimate(memory=spec.memory or 10, source="hint" if spec.memory else "default")


def job(name: str, **fields: Any) -> JobSpec:
    return JobSpec(id=name, name=name, kind="command", **fields)


def kinds(actions: Iterable[ev.Action], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]
