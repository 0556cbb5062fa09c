"""What ``rmixer profile`` does with its options: profiles, from all sources that there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rmixer import paths
from rmixer.errors import RmixerError
from rmixer.estimate.contexts import context_key, context_of
from rmixer.estimate.estimates import JobEstimate
from rmixer.estimate.estimator import Estimator, Target
from rmixer.model import CPU, Device, JobSpec, Node, Profile
from rmixer.monitor import (
    GpuMetrics,
    GpuSample,
    discover_node,
    measure_core_flops,
    measure_memory_bandwidth,
    usable_memory,
)
from rmixer.profile.merge import known_profile, merged
from rmixer.profile.peaks import Peaks, peaks_of
from rmixer.profile.places import Place, own_device, place_of
from rmixer.profile.probe import Bench, probe
from rmixer.profile.results import Answer, JobProfile
from rmixer.profile.static import static_profile
from rmixer.store import Store, machine_key

#: Of one job, unless asked for otherwise.
SECONDS = 30.0
#: What a member of a family is believed to share with the one that was profiled.
FAMILY_CONFIDENCE = 0.5
#: Between two looks at a GPU.
_GPM_PAUSE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The options of the verb.

    Attributes:
        device: ``cpu``, ``gpu``, a kind of GPU, or None: what each job says.
        seconds: a probe of one job may take; 0: nothing is run.
        should_stop: asked often.
        say: gets a line for people when something begins that takes long.
    """

    device: str | None = None
    seconds: float = SECONDS
    should_stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda _: None


def profile_jobs(jobs: Sequence[JobSpec], options: ProfileOptions) -> Answer:
    """The profiles of jobs, which are kept for runs to come.

    One member of each family is looked at; the others start from what it showed.

    Raises:
        UsageError: the device is not there, or no kind that is known.
    """
    node = discover_node()
    store = Store(paths.store_path())
    places = {job.id: place_of(options.device or own_device(job), node) for job in jobs}
    found: dict[str, JobProfile] = {}
    for place in dict.fromkeys(places.values()):
        members = [job for job in jobs if places[job.id] == place]
        found |= _Profiler(place, node, store, options).profiles(members)
    gpus = {place.device for place in places.values() if place.device and place.kind != CPU}
    return Answer([found[job.id] for job in jobs], _looked_at(gpus))


@dataclass(slots=True)
class _Profiler:
    """Profiles jobs in one place."""

    place: Place
    node: Node
    store: Store
    options: ProfileOptions
    _traces: dict[str, JobEstimate] = field(default_factory=dict)
    _peaks: Peaks | None = None

    def profiles(self, jobs: Sequence[JobSpec]) -> dict[str, JobProfile]:
        """One per job, by id."""
        first = {job.family or job.id: job for job in reversed(jobs)}
        chosen = [job for job in jobs if first[job.family or job.id].id == job.id]
        self._peaks = self._device_peaks()
        self._traces = self._trace([job for job in chosen if self._is_traced(job)])
        shown = {job.id: self._profile(job) for job in chosen}
        return {
            job.id: shown.get(job.id) or _like(job, shown[first[job.family or job.id].id])
            for job in jobs
        }

    def _is_traced(self, job: JobSpec) -> bool:
        """Trainings of ours; a command only where it is not run for real."""
        return job.kind == "model" or not self._can_probe(job)

    def _can_probe(self, job: JobSpec) -> bool:
        if not self.options.seconds or self.place.device is None:
            return False
        return self.place.kind == CPU or job.kind == "command"

    def _device_peaks(self) -> Peaks | None:
        """Of the device; of the CPU as they are measured, for one core."""
        if self.place.kind != CPU:
            return peaks_of(self.place.kind)
        key, now = machine_key(self.node.name, len(self.node.cores)), time.time()
        flops = self.store.core_flops(key, measure_core_flops, now)
        bandwidth = self.store.memory_bandwidth(key, measure_memory_bandwidth, now)
        return Peaks(CPU, flops, bandwidth, 0.0, "measured") if flops and bandwidth else None

    def _trace(self, jobs: Sequence[JobSpec]) -> dict[str, JobEstimate]:
        if not jobs:
            return {}
        kind = self.place.kind
        context = context_of(self.store.context(context_key(kind)))
        target = (
            Target(host_memory=usable_memory())
            if kind == CPU
            else Target(device=kind, host_memory=usable_memory(), context=context)
        )
        found = Estimator(self.store).estimate(
            jobs,
            target,
            parse=True,
            commands=True,
            known=True,
            should_stop=self.options.should_stop,
            say=self.options.say,
        )
        return {one.id: one for one in found}

    def _profile(self, job: JobSpec) -> JobProfile:
        """From all sources, and kept."""
        began = time.monotonic()
        sources: list[Profile] = []
        notes: list[str] = []
        failure = ""
        trace = self._traces.get(job.id)
        if trace is not None:
            static, why = self._static(job, trace)
            sources += [static] if static else []
            notes += [why] if why else []
        memory = trace.bytes.get("total") if trace is not None and self.place.kind != CPU else None
        if self._can_probe(job) and not self.options.should_stop():
            measured, more, failure, held = self._probe(job)
            sources += [measured] if measured else []
            notes += more
            memory = held if held is not None else memory
        elif self.place.kind != CPU and self.place.device is not None and self.options.seconds:
            notes.append("not measured: this version trains its own models on the CPU")
        for profile in sources:
            self._keep(job, profile)
        known = known_profile(self.store, job.signature, job.family, self._key)
        every = sorted([*sources, *([known] if known else [])], key=_surest)
        if trace is not None and trace.failure and not failure and not sources:
            failure = trace.failure
        return JobProfile(
            spec=job,
            kind=self.place.kind,
            profile=merged(every),
            sources=[
                p for i, p in enumerate(every) if p.source not in {q.source for q in every[:i]}
            ],
            device_memory=memory or None,
            notes=tuple(dict.fromkeys(notes)),
            failure=failure,
            seconds=time.monotonic() - began + (trace.seconds if trace else 0.0),
        )

    @property
    def _key(self) -> str:
        return machine_key(self.node.name, len(self.node.cores), self.place.kind)

    def _keep(self, job: JobSpec, profile: Profile) -> None:
        self.store.keep_profile(job.signature, job.family, self._key, profile, time.time())

    def _static(self, job: JobSpec, trace: JobEstimate) -> tuple[Profile | None, str]:
        """From its trace; None and why where that cannot be."""
        if not trace.calls:
            return None, "; ".join(trace.notes) or "it was not traced"
        if self._peaks is None:
            return None, f"what a {self.place.kind} can do is not known: no static profile"
        found = static_profile(
            self.place.kind,
            trace.calls,
            self._peaks,
            input_bytes=trace.bytes.get("inputs", 0),
            memory=trace.own_host_bytes,
        )
        return replace(found, total_steps=job.total_steps or 0) if found else None, ""

    def _probe(self, job: JobSpec) -> tuple[Profile | None, list[str], str, int | None]:
        """The measured profile, notes, why it cannot run, and its memory on the device."""
        assert self.place.device is not None
        bandwidth = self._peaks.bandwidth if self._peaks and self.place.kind == CPU else 0.0
        bench = Bench(
            node=self.node,
            device=self.place.device,
            memory_bandwidth=bandwidth,
            seconds=self.options.seconds,
            should_stop=self.options.should_stop,
        )
        self.options.say(f"{job.name}: running it for up to {self.options.seconds:.0f} s")
        try:
            found, seen = probe(job, bench)
        except RmixerError as error:
            return None, [], str(error), None
        notes = [one.note for one in seen if one.note]
        held = [one.gpu.memory_peak_bytes for one in seen if one.gpu.memory_peak_bytes]
        failure = next((one.failure for one in seen if one.failure), "")
        if found is not None and found.step_seconds is None:
            notes.append("it shows no steps: what it uses is known, its speed is not")
        if failure and found is not None:  # with fewer threads it ran
            notes.append(f"with {seen[-1].threads} threads it ended: {failure}")
            failure = ""
        return found, notes, failure, max(held, default=None)


def _surest(profile: Profile) -> float:
    return -profile.confidence


def _like(job: JobSpec, shown: JobProfile) -> JobProfile:
    """A member of a family, by the one that was looked at."""
    profile = shown.profile
    return replace(
        shown,
        spec=job,
        profile=profile and replace(profile, confidence=FAMILY_CONFIDENCE * profile.confidence),
        notes=(f"like {shown.spec.name}, of the same family",),
        seconds=0.0,
    )


def _looked_at(devices: set[Device]) -> list[tuple[Device, GpuSample]]:
    """A look at each GPU, after the probes have ended."""
    if not devices:
        return []
    meter = GpuMetrics()
    try:
        for device in devices:
            meter.sample(device.id, pcie=False)  # GPM tells of the time between two looks
        time.sleep(_GPM_PAUSE)
        ordered = sorted(devices, key=lambda device: device.index or 0)
        return [(device, meter.sample(device.id)) for device in ordered]
    finally:
        meter.close()
