"""What happens, and what is decided: the lines of ``events.jsonl``.

Both kinds are facts in one order: *observed* events come from outside (a process ended, a timer,
Ctrl-C), *decided* ones from the dispatcher (a job is placed, requeued, ended). The state of a run
is the replay of all of them; a decided event is also the order to the executor, carried out after
it is on disk. `Wake` alone is an order without a fact.

Every event carries ``at``, seconds since the run began, and ``wall``, unix time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rmixer.model import (
    Estimate,
    JobSpec,
    Node,
    Outcome,
    Placement,
    Profile,
    Progress,
    Rate,
    Reason,
)

# --- observed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A run began on a node. ``run`` is unique; ``policy`` and ``seed`` are part of what it is."""

    at: float = 0.0
    wall: float
    run: str
    name: str
    node: Node
    policy: str
    seed: int = 0
    fail_fast: bool = False
    grace_seconds: float = 10.0
    jobs_digest: str = ""
    version: str = ""
    type: Literal["began"] = "began"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Another runner process took the run over; the machine may have changed meanwhile."""

    at: float
    wall: float
    node: Node
    retry_failed: bool = False
    type: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job joined the queue, with what is believed of it."""

    at: float
    wall: float
    spec: JobSpec
    estimate: Estimate
    profile: Profile | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    type: Literal["submitted"] = "submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClosed:
    """No more jobs will come: the run ends when the last one has."""

    at: float
    wall: float
    type: Literal["queue_closed"] = "queue_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """An attempt has a process."""

    at: float
    wall: float
    job: str
    token: str
    pid: int
    type: Literal["spawned"] = "spawned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """An attempt that outlived its runner is watched again."""

    at: float
    wall: float
    job: str
    token: str
    pid: int
    type: Literal["adopted"] = "adopted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A job is further; sent now and then, the finer steps go to ``samples.jsonl``."""

    at: float
    wall: float
    job: str
    token: str
    progress: Progress
    type: Literal["progressed"] = "progressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a job uses has been measured."""

    at: float
    wall: float
    job: str
    token: str
    profile: Profile
    type: Literal["profiled"] = "profiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How fast each of the jobs on a device went, while nothing changed there.

    ``jobs`` has them by id, all that ran there; ``seconds`` is how long that was watched.
    """

    at: float
    wall: float
    device: str
    jobs: Mapping[str, Rate]
    seconds: float
    type: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrew:
    """A running job's host memory passed what is reserved for it."""

    at: float
    wall: float
    job: str
    token: str
    memory: int
    type: Literal["memory_grew"] = "memory_grew"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryGrew:
    """A running job's memory on its GPU came near to, or passed, what is reserved for it there."""

    at: float
    wall: float
    job: str
    token: str
    memory: int
    type: Literal["device_memory_grew"] = "device_memory_grew"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeen:
    """What is seen of a GPU has changed: whether it can be read, or what others hold of it.

    ``problem`` is why it cannot be read, empty where it can; ``capacity`` its memory without the
    driver's own, ``foreign`` what processes hold there that this run has not placed there, bytes;
    ``processes`` names them.
    """

    at: float
    wall: float
    device: str
    problem: str = ""
    capacity: int = 0
    foreign: int = 0
    processes: tuple[str, ...] = ()
    type: Literal["device_seen"] = "device_seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strayed:
    """An attempt holds memory of a GPU that it was not placed on: it has picked one itself."""

    at: float
    wall: float
    job: str
    token: str
    device: str
    memory: int
    type: Literal["strayed"] = "strayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """An attempt's process tree is gone.

    ``result`` is what the job wrote about itself, ``usage`` what the operating system counted.
    """

    at: float
    wall: float
    job: str
    token: str
    outcome: Outcome
    result: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    type: Literal["exited"] = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An attempt vanished without a word, through no fault of the job (reboot, shim killed).

    ``ran`` is false where it was placed but the runner died before it started.
    """

    at: float
    wall: float
    job: str
    token: str
    message: str
    ran: bool = True
    type: Literal["lost"] = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """Somebody wants a job gone."""

    at: float
    wall: float
    job: str
    type: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """Ctrl-C. The first asks for a graceful stop, with ``force`` everything is killed at once."""

    at: float
    wall: float
    force: bool = False
    type: Literal["interrupted"] = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Woke:
    """The time asked for with `Wake` has come."""

    at: float
    wall: float
    type: Literal["woke"] = "woke"


# --- decided -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Order: start this attempt here. Nothing else may start it."""

    at: float
    wall: float
    job: str
    attempt: int
    token: str
    placement: Placement
    profiling: bool = False
    type: Literal["placed"] = "placed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebooked:
    """What a running job books has changed; where its cores changed, order: pin it anew."""

    at: float
    wall: float
    job: str
    token: str
    placement: Placement
    type: Literal["rebooked"] = "rebooked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """Order: let this attempt stand still. It keeps its memory and gives up its cores."""

    at: float
    wall: float
    job: str
    token: str
    reason: Reason
    type: Literal["suspended"] = "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """Order: let a suspended attempt go on, on the cores of this placement."""

    at: float
    wall: float
    job: str
    token: str
    placement: Placement
    type: Literal["continued"] = "continued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a pending job waits has changed."""

    at: float
    wall: float
    job: str
    reason: Reason
    type: Literal["waiting"] = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Order: end this attempt; ``force`` skips the grace. ``outcome`` is what it will count as."""

    at: float
    wall: float
    job: str
    token: str
    outcome: Outcome
    force: bool = False
    type: Literal["stopping"] = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """An attempt ended and the job waits for another."""

    at: float
    wall: float
    job: str
    outcome: Outcome
    not_before: float
    counted: bool = True
    type: Literal["requeued"] = "requeued"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDrained:
    """A GPU is given up: it takes no job any more. ``jobs`` are the names of those that show it."""

    at: float
    wall: float
    device: str
    fault: str
    jobs: tuple[str, ...]
    type: Literal["device_drained"] = "device_drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job ended for good."""

    at: float
    wall: float
    job: str
    outcome: Outcome
    type: Literal["ended"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is over: no job will run any more."""

    at: float
    wall: float
    interrupted: bool = False
    type: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Order: send `Woke` at that time. Not a fact, and so not in the log."""

    at: float


Observed = (
    Began | Resumed | Submitted | QueueClosed | Spawned | Adopted | Progressed | Profiled
    | Measured | MemoryGrew | DeviceMemoryGrew | DeviceSeen | Strayed | Exited | Lost
    | CancelRequested | Interrupted | Woke
)  # fmt: skip
Decided = (
    Placed | Rebooked | Suspended | Continued | Waiting | Stopping | Requeued | DeviceDrained
    | Ended | Finished
)  # fmt: skip
Event = Observed | Decided
Action = Decided | Wake
