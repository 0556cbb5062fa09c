"""The way in: a batch of jobs, run to its end here and now."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmixer import catalog, dispatcher, paths
from rmixer import events as ev
from rmixer.errors import StorageError, UsageError
from rmixer.estimate.estimates import JobEstimate
from rmixer.execute.base import Executor
from rmixer.execute.process import ProcessExecutor
from rmixer.model import Active, JobSpec, Node, StateName
from rmixer.monitor import discover_node, measure_memory_bandwidth
from rmixer.paths import RunPaths
from rmixer.policies.base import Policy, placement_of
from rmixer.report.write import write_report
from rmixer.runner import admit
from rmixer.runner.folder import RunFolder, keep, open_folder, open_for_replacement
from rmixer.runner.loop import Loop, OnEvent, OnLook
from rmixer.runner.sharing import set_up
from rmixer.state import RunState
from rmixer.store import Store, machine_key

DEFAULT_POLICY = "complementary"
#: How long an attempt may take to stop before it is killed.
GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a batch is run. The defaults are those of the command line.

    Attributes:
        name: of the run; its directory is ``runs_dir/name``.
        runs_dir: where runs are kept.
        policy: as `rmixer.catalog.build_policy` takes it, or a `Policy`; None takes the default,
            or that of the run that is resumed.
        cores: use so many cores only.
        gpus: use the GPUs of these indices only.
        sharing: how jobs share a GPU, as `rmixer.runner.sharing` takes it.
        seed: for policies that draw.
        fail_fast: stop everything when a job has failed for good.
        fresh: begin anew although there is an unfinished run.
        retry_failed: go on with a run and give its failed jobs new tries.
        grace_seconds: from asking an attempt to stop to killing it.
        digest: of where the jobs come from; None derives it from the jobs.
        text: the jobs file, kept with the run.
    """

    name: str
    runs_dir: Path = Path(paths.RUNS_DIR)
    policy: str | Policy | None = None
    cores: int | None = None
    gpus: Sequence[int] | None = None
    sharing: str = "auto"
    seed: int = 0
    fail_fast: bool = False
    fresh: bool = False
    retry_failed: bool = False
    grace_seconds: float = GRACE_SECONDS
    digest: str | None = None
    text: str = ""


@dataclass(slots=True)
class Run:
    """A run in this process: go through it with `execute`, ask it to stop from anywhere.

    Attributes:
        jobs: what runs.
        settings: how.
        on_event: is told each event once it is on disk, with the state of the run.
        on_look: is shown each look at the running jobs.
        on_report: is given the report. A runner that is killed before this returns has not come to
            its end: the next one reports again, instead of running everything anew.
        document: the report, once the run is over.
    """

    jobs: Sequence[JobSpec]
    settings: Settings
    on_event: OnEvent | None = None
    on_look: OnLook | None = None
    on_report: Callable[[dict[str, Any]], None] | None = None
    document: dict[str, Any] = field(default_factory=dict)
    state: RunState = field(default_factory=RunState)
    _loop: Loop | None = None
    _early: list[Callable[[float, float], ev.Observed]] = field(default_factory=list)
    _traced: dict[str, JobEstimate] | None = None

    @property
    def paths(self) -> RunPaths:
        """The run's files."""
        return RunPaths(self.settings.runs_dir / self.settings.name)

    @property
    def exit_code(self) -> int:
        """0 all succeeded, 1 a job did not, 130 interrupted."""
        return dispatcher.exit_code(self.state)

    def cancel(self, job: str) -> None:
        """Cancel a job by id or name. May be called from any thread, also from ``on_event``.

        Raises:
            UsageError: there is no such job.
        """
        found = [spec.id for spec in self.jobs if job in (spec.id, spec.name)]
        if not found:
            raise UsageError(f"no job {job!r} in this run")
        for id in found:  # noqa: A001
            self._request(_cancel(id))

    def interrupt(self, *, force: bool = False) -> None:
        """Stop gracefully, as Ctrl-C does; with ``force`` at once. From any thread or handler."""
        self._request(lambda at, wall: ev.Interrupted(at=at, wall=wall, force=force))

    def execute(self) -> dict[str, Any]:
        """Run to the end; the report's document.

        Raises:
            NeverFitsError: a job needs more than the machine has. Nothing was started.
            UsageError: the run's directory or policy is not right. Nothing was started.
            StorageError: the log could not be written. All jobs have been stopped.
        """
        folder = self._open()
        try:
            if folder.only_report:
                self.state = folder.state
            else:
                self._go_through(folder)
            self.document = write_report(folder.paths)
            if self.on_report is not None:
                self.on_report(self.document)
            folder.mark(reported=True)
        finally:
            folder.discard()
            folder.close()
        return self.document

    # --- inside -----------------------------------------------------------------------------

    def _request(self, make: Callable[[float, float], ev.Observed]) -> None:
        if self._loop is None:
            self._early.append(make)
        else:
            self._loop.request(make)

    @property
    def _digest(self) -> str:
        if self.settings.digest is not None:
            return self.settings.digest
        content = repr([(spec.id, spec.signature) for spec in self.jobs])
        return hashlib.sha256(content.encode()).hexdigest()

    def _open(self) -> RunFolder:
        settings = self.settings
        root = self.paths.root
        if settings.fresh:
            folder = open_for_replacement(root)
            try:
                if folder.past:
                    self._check_fits(folder)
                    _end_leftovers(folder)
                    keep(folder)
            finally:
                folder.close()
        return open_folder(
            root,
            digest=self._digest,
            text=settings.text,
            policy=_policy_text(settings.policy),
            retry_failed=settings.retry_failed,
            before_keep=self._check_fits,
        )

    def _check_fits(self, folder: RunFolder) -> None:
        """Refuse jobs that can never fit before an earlier run of theirs is put away."""
        node = self._node(folder)
        store = Store(paths.store_path())
        admit.admit(self.jobs, node, store, self._traces(node, store))

    def _traces(self, node: Node, store: Store) -> dict[str, JobEstimate]:
        """Estimates of jobs of which nothing was measured; made once."""
        if self._traced is None:
            asked = self._early  # Ctrl-C, or a job cancelled, before the loop runs
            self._traced = admit.trace_unknown(
                self.jobs, node, store, should_stop=lambda: bool(asked)
            )
        return self._traced

    def _node(self, folder: RunFolder) -> Node:
        """This machine; what jobs that outlived their runner have booked is free for them."""
        held = sum(placement_of(job).memory for job in folder.state.active)
        return discover_node(cores=self.settings.cores, gpus=self.settings.gpus, held_memory=held)

    def _go_through(self, folder: RunFolder) -> None:
        """Do what there is to do on this machine."""
        store = Store(paths.store_path())
        settings = self.settings
        node, mps = set_up(self._node(folder), settings.sharing, folder.paths, jobs=len(self.jobs))
        executor = ProcessExecutor(
            folder.paths, node, grace_seconds=settings.grace_seconds, mps=mps
        )
        try:
            self._go(folder, node, executor, store)
        finally:
            if not executor.roots():
                mps.quit()
            executor.close()

    def _go(self, folder: RunFolder, node: Node, executor: Executor, store: Store) -> None:
        bandwidth = store.memory_bandwidth(
            machine_key(node.name, len(node.cores)), measure_memory_bandwidth, time.time()
        )
        began = folder.state.began
        core = dispatcher.Dispatcher(self._policy(began), folder.state)
        make_first = self._resume if began else self._begin
        first = make_first(folder, node, store)
        loop = Loop(
            core,
            executor,
            folder.paths,
            store,
            began_wall=began.wall if began else time.time(),
            bandwidth=bandwidth,
            on_event=self.on_event,
            on_look=self.on_look,
        )
        self._loop, self.state = loop, core.state
        for make in self._early:
            loop.request(make)
        adopted = list(_adopt(loop, executor)) if began else []
        loop.run([*(make(loop.now(), time.time()) for make in first), *adopted])

    def _policy(self, began: ev.Began | None) -> Policy:
        chosen = self.settings.policy
        if chosen is not None and not isinstance(chosen, str):
            return chosen
        text = chosen or (began.policy if began else DEFAULT_POLICY)
        policy: Policy = catalog.build_policy(text)
        return policy

    def _begin(self, folder: RunFolder, node: Node, store: Store) -> list[_Make]:
        """The first events of a new run. Raises before anything is written if a job cannot fit."""
        settings = self.settings
        admitted = admit.admit(self.jobs, node, store, self._traces(node, store))
        _write_text(folder.paths.jobs_file, settings.text)
        return [
            lambda at, wall: ev.Began(
                at=at,
                wall=wall,
                run=uuid.uuid4().hex[:12],
                name=settings.name,
                node=node,
                policy=_policy_text(settings.policy) or DEFAULT_POLICY,
                seed=settings.seed,
                fail_fast=settings.fail_fast,
                grace_seconds=settings.grace_seconds,
                jobs_digest=self._digest,
                version=_version(),
            ),
            *(_submit(one) for one in admitted),
            lambda at, wall: ev.QueueClosed(at=at, wall=wall),
        ]

    def _resume(self, folder: RunFolder, node: Node, store: Store) -> list[_Make]:
        """The first events of a run that goes on, and what a crash kept from being submitted."""
        state, retry_failed = folder.state, self.settings.retry_failed
        missing = [spec for spec in self.jobs if spec.id not in state.jobs]
        traced = self._traces(node, store) if missing else {}
        admitted = admit.admit(missing, node, store, traced)
        makes: list[_Make] = [
            lambda at, wall: ev.Resumed(at=at, wall=wall, node=node, retry_failed=retry_failed),
            *(_submit(one) for one in admitted),
        ]
        if not state.queue_closed:
            makes.append(lambda at, wall: ev.QueueClosed(at=at, wall=wall))
        return makes


_Make = Callable[[float, float], ev.Observed]


def _submit(one: admit.Admitted) -> _Make:
    return lambda at, wall: ev.Submitted(
        at=at,
        wall=wall,
        spec=one.spec,
        estimate=one.estimate,
        profile=one.profile,
        profiles=one.profiles,
    )


def _cancel(job: str) -> _Make:
    return lambda at, wall: ev.CancelRequested(at=at, wall=wall, job=job)


def _adopt(loop: Loop, executor: Executor) -> Iterator[ev.Observed]:
    """Take over what an earlier runner left: what runs is watched, the rest is told by `poll`."""
    for job in loop.state.active:
        assert isinstance(job.state, Active)
        attempt = job.state.attempt
        pid = executor.adopt(job.spec, attempt.number, attempt.token, job.state.stopping)
        if pid is not None:
            loop.watch(
                job.id,
                attempt.number,
                attempt.token,
                attempt.placement,
                attempt.started_at,
                adopted=True,
            )
            if job.state.name == StateName.SUSPENDED:
                loop.suspend(attempt.token)
            else:
                executor.go_on(attempt.token)  # its runner may have died before it could say so
            yield ev.Adopted(
                at=loop.now(), wall=time.time(), job=job.id, token=attempt.token, pid=pid
            )


def _end_leftovers(folder: RunFolder) -> None:
    """Kill what an earlier runner of an unfinished run left running."""
    began = folder.state.began
    if began is None:
        return
    executor = ProcessExecutor(folder.paths, began.node, grace_seconds=began.grace_seconds)
    try:
        for job in folder.state.active:
            assert isinstance(job.state, Active)
            token = job.state.attempt.token
            if executor.adopt(job.spec, job.state.attempt.number, token) is not None:
                executor.stop(token, force=True)
        while executor.roots():
            executor.poll()
            time.sleep(0.02)
    finally:
        executor.close()


def _policy_text(policy: str | Policy | None) -> str | None:
    if policy is None or isinstance(policy, str):
        return policy
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  # slow to import

    return version("rmixer")


@contextmanager
def stop_on_signals(run: Run) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP stop the run: the first gracefully, the second at once.

    SIGHUP stays ignored where it was, under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def handle(number: int, frame: object) -> None:  # noqa: ARG001
        nonlocal count
        count += 1
        run.interrupt(force=count > 1)

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
