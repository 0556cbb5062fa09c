"""What the model of the machine says of a run: solo times, one by one, and the limit.

A job's time alone is measured where the store knew it; else it is predicted: its time beside others
is multiplied, second by second, by the rate that the network model gives it in that company. The
prediction is for the number of threads that the job had; where a profile has its speeds by number
of threads, for the best of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rmixer import events as ev
from rmixer.bound import Load, makespan_bound
from rmixer.interference import UNKNOWN, host_sharing, predict_rates
from rmixer.model import CPU, Active, Final, Job, Profile, StateName
from rmixer.report.document import Predictions
from rmixer.state import RunState


@dataclass(slots=True)
class _Work:
    """What the successful attempt of a job took."""

    solo_seconds: float = 0.0
    elapsed: float = 0.0
    core_seconds: float | None = None
    threads: int = 1
    done: bool = False


@dataclass(slots=True)
class _Fold:
    """The events once more, with what was learned by their end as belief from the start."""

    beliefs: Mapping[str, Profile]
    state: RunState = field(default_factory=RunState)
    work: dict[str, _Work] = field(default_factory=dict)

    def take(self, event: ev.Event) -> None:
        self._advance(event.at)
        match event:
            case ev.Placed(job=job):
                self.work[job] = _Work(threads=event.placement.threads or 1)
            case ev.Exited(job=job) if job in self.work:
                used = event.usage
                seconds = [used.get("user_seconds"), used.get("system_seconds")]
                if all(isinstance(s, int | float) for s in seconds):
                    self.work[job].core_seconds = sum(float(s or 0) for s in seconds)
                own = used.get("seconds")
                if isinstance(own, int | float):  # its runner may have been dead for longer
                    self.work[job].solo_seconds = min(self.work[job].solo_seconds, float(own))
                self.work[job].done = event.outcome.state == StateName.SUCCEEDED
        self.state.apply(event)

    def _advance(self, at: float) -> None:
        """Give every running job its share of the time since the last event."""
        elapsed = at - self.state.at
        running = self.state.active
        if elapsed <= 0 or not running:
            return
        profiles = [self._belief(job) for job in running]
        rates = predict_rates(profiles, host_sharing(self.state.node))
        for job, rate in zip(running, rates, strict=True):
            self.work[job.id].solo_seconds += elapsed * float(rate)
            self.work[job.id].elapsed += elapsed

    def _belief(self, job: Job) -> Profile:
        assert isinstance(job.state, Active)
        threads = job.state.attempt.placement.threads or 1
        known = self.beliefs.get(job.id)
        return known or replace(UNKNOWN, threads=threads, demand={"cores": float(threads)})


def predict(events: Iterable[ev.Event]) -> Predictions:
    """Predictions for a run by its log. Nothing is predicted of jobs that did not succeed."""
    events = list(events)
    beliefs: dict[str, Profile] = {}
    measured: dict[str, float] = {}
    for event in events:
        if isinstance(event, ev.Profiled):
            before = beliefs.get(event.job)
            speeds = event.profile.speeds or (before.speeds if before else {})
            beliefs[event.job] = replace(event.profile, speeds=speeds)
        elif isinstance(event, ev.Submitted) and event.profile is not None:
            beliefs.setdefault(event.spec.id, event.profile)
            if event.profile.solo_seconds is not None and event.profile.confidence == 1.0:
                measured[event.spec.id] = event.profile.solo_seconds
    fold = _Fold(beliefs)
    for event in events:
        fold.take(event)
    done = {job: work for job, work in fold.work.items() if work.done}
    best = {job: _at_best(work, beliefs.get(job)) for job, work in done.items()}
    solo = {job: measured.get(job, best[job] or work.solo_seconds) for job, work in done.items()}
    found = _predictions(fold, done, solo, measured)
    known = all(job in measured or best[job] is not None for job in done)
    return replace(found, sequential_threads="best" if done and known else "same")


def _at_best(work: _Work, profile: Profile | None) -> float | None:
    """A job's time alone at its best number of threads; None where its curve does not tell.

    Starting up takes as long with any number.
    """
    if profile is None or profile.best_threads is None:
        return None
    ratio = profile.speed_ratio(work.threads, profile.best_threads)
    if ratio is None:
        return None
    startup = min(profile.startup_seconds, work.solo_seconds)
    return startup + (work.solo_seconds - startup) * ratio


def _predictions(
    fold: _Fold,
    done: Mapping[str, _Work],
    solo: Mapping[str, float],
    measured: Mapping[str, float],
) -> Predictions:
    if not done:
        return Predictions()
    if any(job.state.name != StateName.SUCCEEDED for job in fold.state.jobs.values()):
        return Predictions(solo_seconds=dict(solo))  # a limit or a sum of a part would mislead
    cores = len(fold.state.node.cores)
    jobs = []
    for job, work in done.items():
        alone = measured.get(job, work.solo_seconds)  # with its threads: so were core seconds
        own = min(alone, work.elapsed)  # it was done in that, whatever was measured before
        demand = fold.beliefs[job].demand if job in fold.beliefs else {}
        spent = {station: own * share for station, share in demand.items() if station != "cores"}
        if work.core_seconds is not None:
            spent["cores"] = work.core_seconds
        # More threads can shorten the work on cores, never the waiting.
        on_cores = min(own, work.core_seconds if work.core_seconds is not None else own)
        shortest = own - on_cores + on_cores / cores
        jobs.append({CPU: Load(solo_seconds=shortest, work=spent)})
    capacity = {"cores": float(cores), "memory_bandwidth": 1.0, "storage": 1.0}
    bound = makespan_bound(jobs, capacity)
    return Predictions(
        bound_seconds=min(bound.seconds, _makespan(fold.state)),  # what was done can be done
        bottleneck=bound.bottleneck,
        sequential_seconds=sum(solo.values()),
        sequential_source="measured" if all(job in measured for job in done) else "predicted",
        solo_seconds=dict(solo),
    )


def _makespan(state: RunState) -> float:
    """When the last job ended."""
    return max((j.state.at for j in state.jobs.values() if isinstance(j.state, Final)), default=0.0)
