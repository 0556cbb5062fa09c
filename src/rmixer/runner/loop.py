"""The loop of a real run: what happens goes to the dispatcher and the log, then is acted upon."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from rmixer import events as ev
from rmixer.dispatcher import Dispatcher
from rmixer.errors import RmixerError
from rmixer.execute.base import NEVER_STARTED, RENEW_SECONDS, End, ExecutionError, Executor, LostEnd
from rmixer.execute.outcome import cage_peak
from rmixer.health import Remarkable, remark
from rmixer.interference import UNKNOWN, host_sharing, predict_rates
from rmixer.log import EventLog, SampleLog
from rmixer.model import Active, Estimate, Job, Outcome, Placement, StateName
from rmixer.paths import RunPaths
from rmixer.policies.live import rates_of_company
from rmixer.runner.watch import Look, Watcher
from rmixer.state import RunState
from rmixer.store import AttemptFacts, Store, machine_key

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 0.5
#: How often ``samples.jsonl`` gets a line.
SAMPLE_LOG_SECONDS = 1.0
#: How long to wait for killed jobs when the run itself cannot go on.
ABANDON_SECONDS = 20.0

OnEvent = Callable[[ev.Event, RunState], None]
OnLook = Callable[[RunState, Look], None]


class Loop:
    """Drives one dispatcher with real time and an executor until the run is finished.

    Args:
        dispatcher: decides.
        executor: acts.
        paths: the run's files.
        store: what outlives the run.
        began_wall: unix time at which the run began; ``at`` counts from there.
        bandwidth: of the machine's memory, bytes per second.
        on_event: is told each event after it is on disk.
        on_look: is shown each look at the running jobs.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        paths: RunPaths,
        store: Store,
        *,
        began_wall: float,
        bandwidth: float = 0.0,
        on_event: OnEvent | None = None,
        on_look: OnLook | None = None,
    ) -> None:
        self.dispatcher, self.executor, self.paths, self.store = dispatcher, executor, paths, store
        self._on_event, self._on_look = on_event, on_look
        self._zero = time.monotonic() - max(dispatcher.state.at, time.time() - began_wall)
        self._log = EventLog(paths.events)
        self._samples = SampleLog(paths.samples)
        self._watcher = Watcher(bandwidth)
        self._requests: deque[Callable[[float, float], ev.Observed]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._bell_lock = threading.RLock()  # a signal handler may come while it is held
        self._wake_at: float | None = None
        self._look_at = 0.0
        self._sampled_at = -SAMPLE_LOG_SECONDS
        self._shared: set[str] = set()
        self._renew_at = 0.0
        self._applied: dict[str, tuple[tuple[int, ...], int]] = {}  # cores and memory limit

    @property
    def state(self) -> RunState:
        return self.dispatcher.state

    def now(self) -> float:
        """Seconds since the run began; never goes back, whatever the wall clock does."""
        return time.monotonic() - self._zero

    # --- from outside: any thread, any signal handler ---------------------------------------

    def request(self, make: Callable[[float, float], ev.Observed]) -> None:
        """Feed an event, made of (at, wall), at the next turn of the loop; none after its end."""
        self._requests.append(make)
        with self._bell_lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    # --- the loop ---------------------------------------------------------------------------

    def run(self, first: Iterable[ev.Observed]) -> None:
        """Feed the first events, then go on until the run is finished.

        Raises:
            StorageError: the log cannot be written. All jobs have been stopped.
        """
        try:
            self.feed(*first)
            while self.state.finished is None:
                self._turn()
        except BaseException:
            self._abandon()
            raise
        finally:
            self._log.close()
            self._samples.close()
            self._watcher.close()
            with self._bell_lock:
                bell, self._bell = self._bell, -1
                os.close(bell)

    def feed(self, *events: ev.Observed) -> None:
        """Hand events to the dispatcher, log them with what it decided, then act."""
        queue = deque(events)
        while queue:
            batch = list(queue)
            queue.clear()
            decided: list[ev.Decided] = []
            lines: list[ev.Event] = []
            for event in batch:
                lines.append(event)
                for action in self.dispatcher.handle(event):
                    if isinstance(action, ev.Wake):
                        asked = action.at if self._wake_at is None else self._wake_at
                        self._wake_at = min(action.at, asked)
                    else:
                        decided.append(action)
                        lines.append(action)
            self._log.append(lines)
            for line in lines:
                self._tell(line)
            for action in decided:
                queue.extend(self._carry_out(action))

    def _turn(self) -> None:
        """Wait for something, then handle all that has happened."""
        wake_at = self._look_at if self._wake_at is None else self._wake_at
        self._wait(min(self._look_at, wake_at) - self.now())
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self._requests:
            self.feed(self._requests.popleft()(self.now(), time.time()))
        ends = [self._end_event(end) for end in self.executor.poll()]
        if ends:
            self.feed(*ends)
        now = self.now()
        if self._wake_at is not None and self._wake_at <= now:
            self._wake_at = None
            self.feed(ev.Woke(at=now, wall=time.time()))
        if now >= self._look_at and self.state.finished is None:
            self._look()

    def _wait(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            for descriptor in self.executor.filenos():
                selector.register(descriptor, selectors.EVENT_READ)
            selector.select(max(0.0, seconds))

    # --- telemetry --------------------------------------------------------------------------

    def _look(self) -> None:
        now = self.now()
        self._look_at = now + SAMPLE_SECONDS
        self._renew(now)
        look = self._watcher.look(now, self.executor.roots(), self.state.node.devices)
        self._add_rates(look.sample["jobs"])
        wall = time.time()
        news: list[ev.Observed] = []
        for token, profile in look.profiles:
            job = self._job_of(token)
            news.append(ev.Profiled(at=now, wall=wall, job=job, token=token, profile=profile))
        for token, memory in look.grown:
            job = self._job_of(token)
            news.append(ev.MemoryGrew(at=now, wall=wall, job=job, token=token, memory=memory))
        for token, memory in look.grown_on_device:
            job = self._job_of(token)
            news.append(ev.DeviceMemoryGrew(at=now, wall=wall, job=job, token=token, memory=memory))
        for token, progress in look.progress:
            job = self._job_of(token)
            news.append(ev.Progressed(at=now, wall=wall, job=job, token=token, progress=progress))
        news += self._measured(look, now, wall)
        news += self._of_devices(look, now, wall)
        if now - self._sampled_at >= SAMPLE_LOG_SECONDS:
            self._sampled_at = now
            self._samples.append(look.sample)
        if self._on_look is not None:
            self._on_look(self.state, look)
        if news:
            self.feed(*news)

    def _measured(self, look: Look, now: float, wall: float) -> Iterator[ev.Measured]:
        """The rates of the companies that were watched long enough."""
        state = self.state
        for company in look.paces:
            paces = {self._job_of(token): pace for token, pace in company.paces.items()}
            jobs = rates_of_company(
                company.device, state.node, state.active, state.companies, paces
            )
            yield ev.Measured(
                at=now, wall=wall, device=company.device, jobs=jobs, seconds=company.seconds
            )

    def _of_devices(self, look: Look, now: float, wall: float) -> Iterator[ev.Observed]:
        """What has changed about GPUs, and who has picked one for itself."""
        for one in look.devices:
            yield ev.DeviceSeen(
                at=now, wall=wall, device=one.device, problem=one.problem,
                capacity=one.capacity, foreign=one.foreign, processes=one.processes,
            )  # fmt: skip
        for stray in look.strays:
            yield ev.Strayed(
                at=now, wall=wall, job=self._job_of(stray.token), token=stray.token,
                device=stray.device, memory=stray.memory,
            )  # fmt: skip

    def _say(self, event: ev.Event) -> None:
        """Tell people at once what the report will tell them of GPUs."""
        if not isinstance(event, Remarkable):
            return
        job = self.state.jobs.get(event.job) if isinstance(event, ev.Strayed) else None
        placed = job.state.attempt.placement.device if job and isinstance(job.state, Active) else ""
        text = remark(event, self.state.node, job.spec.name if job else "", placed)
        if text:
            logger.warning("%s", text)

    def _add_rates(self, lines: dict[str, Any]) -> None:
        """Put the predicted rate of each job whose use is known into its line."""
        active = [job for job in self.state.active if job.state.name != StateName.SUSPENDED]
        profiles = [job.profile or UNKNOWN for job in active]
        rates = predict_rates(profiles, host_sharing(self.state.node))
        for job, rate in zip(active, rates, strict=True):
            if job.id in lines and job.profile is not None:
                lines[job.id]["rate"] = round(float(rate), 3)

    def _job_of(self, token: str) -> str:
        for job in self.state.active:
            if _token(job) == token:
                return job.id
        return ""

    # --- acting -----------------------------------------------------------------------------

    def _carry_out(self, action: ev.Decided) -> list[ev.Observed]:
        """Do what was decided; the events that follow at once."""
        match action:
            case ev.Placed():
                return [self._start(action)]
            case ev.Suspended():
                self.suspend(action.token)
            case ev.Continued():
                self._go_on(action)
            case ev.Rebooked():
                self._rebook(action.token, action.placement)
            case ev.Stopping():
                with contextlib.suppress(KeyError):  # it has just ended by itself
                    self.executor.stop(action.token, force=action.force, outcome=action.outcome)
        return []

    def suspend(self, token: str) -> None:
        """Let an attempt stand still, and look at it accordingly."""
        self._watcher.stand(token, still=True)
        with contextlib.suppress(KeyError):  # it has just ended
            self.executor.suspend(token)

    def _go_on(self, continued: ev.Continued) -> None:
        self._rebook(continued.token, continued.placement)
        self._watcher.stand(continued.token, still=False)
        with contextlib.suppress(KeyError):  # it has just ended
            self.executor.go_on(continued.token)

    def _renew(self, now: float) -> None:
        """Say again of those that stand still that they are to."""
        if now < self._renew_at:
            return
        self._renew_at = now + RENEW_SECONDS
        for job in self.state.active:
            if job.state.name == StateName.SUSPENDED:
                self.suspend(_token(job))

    def _start(self, placed: ev.Placed) -> ev.Observed:
        spec = self.state.jobs[placed.job].spec
        try:
            pid = self.executor.start(spec, placed.attempt, placed.token, placed.placement)
        except ExecutionError as error:  # a full disk is no fault of the job: it ends the run
            outcome = Outcome(state=StateName.FAILED, reason="not started", message=str(error))
            return ev.Exited(
                at=self.now(), wall=time.time(), job=placed.job, token=placed.token, outcome=outcome
            )
        self.watch(placed.job, placed.attempt, placed.token, placed.placement, placed.at)
        return ev.Spawned(
            at=self.now(), wall=time.time(), job=placed.job, token=placed.token, pid=pid
        )

    def watch(
        self,
        job: str,
        attempt: int,
        token: str,
        placement: Placement,
        started_at: float,
        *,
        adopted: bool = False,
    ) -> None:
        """Begin to watch an attempt that has a process. An adopted one may have had company."""
        paths = self.paths.job(job).attempt(attempt)
        self._watcher.attach(job, token, paths, placement, started_at)
        self._applied[token] = placement.cores, placement.memory_limit
        active = [_token(other) for other in self.state.active]
        if adopted or len(active) > 1:
            self._shared.update(active)

    def _rebook(self, token: str, placement: Placement) -> None:
        self._watcher.rebook(token, placement)
        wanted = placement.cores, placement.memory_limit
        if self._applied.get(token) != wanted:
            self._applied[token] = wanted
            with contextlib.suppress(KeyError):  # it has just ended
                self.executor.rebook(token, placement)

    # --- ends -------------------------------------------------------------------------------

    def _end_event(self, end: End | LostEnd) -> ev.Observed:
        now, wall = self.now(), time.time()
        job = self._job_of(end.token)
        if isinstance(end, LostEnd):
            self._watcher.detach(end.token)
            ran = end.message != NEVER_STARTED
            return ev.Lost(
                at=now, wall=wall, job=job, token=end.token, message=end.message, ran=ran
            )
        outcome = self._with_memory(end)
        self._remember(self.state.jobs[job], end, outcome, now, wall)
        return ev.Exited(
            at=now, wall=wall, job=job, token=end.token, outcome=outcome,
            result=end.result, usage=end.usage,
        )  # fmt: skip

    def _with_memory(self, end: End) -> Outcome:
        """The outcome with the memory that the job held: what telemetry saw of its whole tree.

        The kernel's own mark also counts mapped files, which jobs share; it stands in where the job
        ended before it was looked at, and after an out-of-memory end. A full cage is exact. Our
        trainer tells its own peak: a spike between two looks counts too.
        """
        kernel = end.outcome.memory_peak_bytes
        seen, on_device = self._watcher.detach(end.token, kernel)
        seen = max(seen, _told_peak(end))
        outcome = replace(end.outcome, device_peak_bytes=on_device)
        if outcome.state == StateName.OUT_OF_MEMORY and cage_peak(end.usage):
            return outcome
        if seen and outcome.state != StateName.OUT_OF_MEMORY:
            return replace(outcome, memory_peak_bytes=seen)
        return replace(outcome, memory_peak_bytes=max(seen, kernel))

    def _remember(self, job: Job, end: End, outcome: Outcome, now: float, wall: float) -> None:
        """Keep in the store what the attempt showed."""
        assert isinstance(job.state, Active)
        attempt = job.state.attempt
        profile = job.profile
        own = profile is not None and (profile.source, profile.confidence) == ("live", 1.0)
        node = self.state.node
        self.store.record(
            AttemptFacts(
                token=end.token,
                signature=job.spec.signature,
                family=job.spec.family,
                machine=machine_key(node.name, len(node.cores)),
                state=str(outcome.state),
                ended=wall,
                threads=attempt.placement.threads,
                seconds=min(now - attempt.started_at, _own_seconds(end)),
                was_alone=end.token not in self._shared,
                memory_peak_bytes=outcome.memory_peak_bytes,
                device_peak_bytes=outcome.device_peak_bytes,
                profile=profile if own else None,
            )
        )
        if outcome.state == StateName.SUCCEEDED:
            self._keep_errors(end.token, job.estimate, outcome, wall)

    def _keep_errors(self, token: str, estimate: Estimate, outcome: Outcome, wall: float) -> None:
        """How the estimates of host and device compare with what was measured."""
        pairs = [
            (token, estimate.expected_from, estimate.expected, outcome.memory_peak_bytes),
            (
                f"{token}/device",
                estimate.device_expected_from,
                estimate.device_expected,
                outcome.device_peak_bytes,
            ),
        ]
        for key, source, expected, measured in pairs:
            if expected and measured:
                self.store.keep_error(key, source, expected, measured, wall)

    def _tell(self, event: ev.Event) -> None:
        self._say(event)
        if self._on_event is not None:
            self._on_event(event, self.state)

    def _abandon(self) -> None:
        """The run cannot go on: leave nothing running."""
        for token in self.executor.roots():
            with contextlib.suppress(KeyError, OSError):
                self.executor.stop(token, force=True)
        deadline = time.monotonic() + ABANDON_SECONDS
        while self.executor.roots() and time.monotonic() < deadline:
            self._wait(0.1)
            with contextlib.suppress(RmixerError):
                self.executor.poll()


def _token(job: Job) -> str:
    assert isinstance(job.state, Active)
    return job.state.attempt.token


def _told_peak(end: End) -> int:
    """What our trainer says of its peak, without the pages of files; 0 where it says nothing."""
    told = end.result.get("memory")
    if not isinstance(told, dict):
        return 0
    peak, files = told.get("peak_bytes"), told.get("file_bytes")
    if not isinstance(peak, int) or not isinstance(files, int):
        return 0
    return max(0, peak - files)


def _own_seconds(end: End) -> float:
    """How long the attempt ran, by its shim: its runner may have been dead for longer."""
    seconds = end.usage.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else math.inf
