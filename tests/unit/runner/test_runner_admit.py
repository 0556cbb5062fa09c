"""What is reserved for a job before it has run, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmixer.errors import NeverFitsError, UsageError
from rmixer.model import Device, JobSpec, Node, Profile
from rmixer.resources import GIB, MIB
from rmixer.runner.admit import DEFAULT_MEMORY, admit, estimate_memory
from rmixer.state import MEMORY_MARGIN
from rmixer.store import AttemptFacts, Store

NODE = Node(name="box", cores=(0, 1), memory=4 * GIB)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.sqlite")


def job(**fields: Any) -> JobSpec:
    values = {"id": "a", "name": "a", "kind": "command", "signature": "s", "family": "f"}
    return JobSpec(**{**values, **fields})


def record(store: Store, peak: int, signature: str = "s") -> None:
    store.record(
        AttemptFacts(
            token=signature, signature=signature, family="f", machine="box/2/cpu",
            state="SUCCEEDED", ended=1.0, threads=1, seconds=1.0, was_alone=True,
            memory_peak_bytes=peak, profile=None,
        )
    )  # fmt: skip


def test_unknown_job_gets_the_default(store: Store) -> None:
    """Nothing measured, no hint: the default, or the whole of a smaller machine."""
    assert estimate_memory(job(), NODE, store).memory == DEFAULT_MEMORY
    small = Node(memory=GIB // 2)
    assert estimate_memory(job(), small, store).memory == GIB // 2


def test_measured_peak_of_the_job_or_its_family(store: Store) -> None:
    """A peak that was seen is reserved with room above it; a sibling's counts too."""
    record(store, 100 * MIB, signature="sibling")
    estimate = estimate_memory(job(), NODE, store)
    assert (estimate.memory, estimate.source) == (int(100 * MIB * MEMORY_MARGIN), "history")


@pytest.mark.parametrize(
    ("hint", "expected", "source"), [(50 * MIB, 120 * MIB, "history"), (GIB, GIB, "hint")]
)
def test_hint_counts_only_if_larger(store: Store, hint: int, expected: int, source: str) -> None:
    """The user's hint beats a measurement from below only."""
    record(store, 100 * MIB)
    estimate = estimate_memory(job(memory=hint), NODE, store)
    assert (estimate.memory, estimate.source) == (expected, source)


def test_measurement_of_a_larger_machine_still_fits(store: Store) -> None:
    """What ran once is not refused because of the room above it."""
    record(store, NODE.memory)
    assert admit([job()], NODE, store)[0].estimate.memory == NODE.memory


def test_every_job_that_never_fits_is_named(store: Store) -> None:
    """With what it needs and what there is; one is enough to refuse the batch."""
    jobs = [
        job(id="m", name="much", memory=8 * GIB),
        job(id="t", name="wide", threads=3),
        job(id="g", name="gpu", device="gpu"),
        job(id="ok", name="fine"),
    ]
    with pytest.raises(NeverFitsError) as caught:
        admit(jobs, NODE, store)
    message = str(caught.value)
    assert "job much can never fit on box: HostMemory(8.0 GiB>4.0 GiB)" in message
    assert "job wide can never fit on box: Cpu(3>2 cores)" in message
    assert "job gpu can never fit" in message
    assert "fine" not in message
    assert caught.value.exit_code == 4


def test_own_training_on_a_gpu_is_refused(store: Store) -> None:
    """The trainer uses the CPU: a model job that must have a GPU is told so; a command is not."""
    node = Node(memory=GIB, devices=(Device(), Device(id="GPU-1", kind="X", index=0, memory=GIB)))
    with pytest.raises(UsageError, match="trains its own models on the CPU"):
        admit([job(kind="model", device="gpu")], node, store)
    assert admit([job(device="gpu")], node, store)


def test_profiles_per_kind_of_device_only_where_all_are_known(store: Store) -> None:
    """A kind that is missing would be one where the job cannot train: then none is told."""
    gpu = Device(id="GPU-0", kind="NVIDIA T4", index=0, memory=16 * GIB)
    node = Node(name="box", cores=(0, 1), memory=4 * GIB, devices=(Device(), gpu))
    measured = Profile(device_kind="NVIDIA T4", demand={"compute": 0.3}, source="probe")
    store.keep_profile("s", "f", "box/2/NVIDIA T4", measured, 1.0)
    (anywhere,) = admit([job()], node, store)
    (on_gpu,) = admit([job(device="gpu")], node, store)
    assert (anywhere.profile, anywhere.profiles) == (None, {})
    assert on_gpu.profiles == {"NVIDIA T4": measured}
    store.keep_profile("s", "f", "box/2/cpu", Profile(source="probe"), 1.0)
    (anywhere,) = admit([job()], node, store)
    assert anywhere.profile == Profile(source="probe")
    assert set(anywhere.profiles) == {"cpu", "NVIDIA T4"}
    assert admit([job(device="cpu")], node, store)[0].profiles == {}


def test_what_a_job_declares_counts_for_more_than_a_trace(store: Store) -> None:
    """A static profile is believed where the job says nothing; a measured one always."""
    says = job(payload={"profile": {"step_seconds": 0.5}})
    store.keep_profile("s", "f", "box/2/cpu", Profile(source="static", confidence=0.3), 1.0)
    believed = [admit([spec], NODE, store)[0].profile for spec in (says, job())]
    assert [profile and profile.source for profile in believed] == ["declared", "static"]
    store.keep_profile("s", "f", "box/2/cpu", Profile(source="probe", confidence=0.9), 2.0)
    measured = admit([says], NODE, store)[0].profile
    assert measured is not None
    assert measured.source == "probe"
