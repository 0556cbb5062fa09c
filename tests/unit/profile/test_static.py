"""Profiles from FLOPs, bytes and kernels, and the table of peaks."""

from __future__ import annotations

import pytest

from rmixer.errors import UnknownNameError
from rmixer.model import CPU, Profile
from rmixer.profile.label import label_of
from rmixer.profile.peaks import Peaks, known_peaks, peaks_of
from rmixer.profile.static import (
    BANDWIDTH_REACHED,
    FLOPS_REACHED,
    GRAIN_SECONDS,
    HOST_PER_KERNEL,
    SHORTEST_KERNEL,
    static_profile,
)

GPU = Peaks("X", 10e12, 1e12, 10e9, "")


def seconds_of(flops: float) -> float:
    return flops / (GPU.flops * FLOPS_REACHED)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-PCIE-16GB", "V100-PCIE"),
        ("tesla t4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_peaks_by_the_names_of_drivers_and_people(name: str, kind: str) -> None:
    """The row that says most of the name is taken."""
    found = peaks_of(name)
    assert found is not None
    assert found.kind == kind


def test_names_that_only_look_alike() -> None:
    """An L40 is no L4; an error names all that are known."""
    assert peaks_of("NVIDIA L40") is None
    with pytest.raises(UnknownNameError, match="known: A100"):
        known_peaks("T1000")


def test_large_kernels_set_the_step_and_small_ones_the_host() -> None:
    """Large products keep the GPU busy all the time; many tiny kernels leave it waiting."""
    large = static_profile("X", [(6e9, 1e6, 1, 10)], GPU)
    assert large is not None
    assert large.step_seconds == pytest.approx(10 * seconds_of(6e9))
    assert large.demand["compute"] == 1.0
    assert large.demand["cores"] == pytest.approx(10 * HOST_PER_KERNEL / large.step_seconds, 0.01)
    tiny = static_profile("X", [(10.0, 10.0, 1, 500)], GPU)
    assert tiny is not None
    assert tiny.step_seconds == pytest.approx(500 * HOST_PER_KERNEL)
    assert tiny.demand["compute"] == pytest.approx(SHORTEST_KERNEL / HOST_PER_KERNEL)
    assert tiny.demand["cores"] == 1.0
    assert (large.source, large.device_kind) == ("static", "X")


def test_stations_and_granularity() -> None:
    """Streaming is bandwidth, input is transfer; a visit's length is biased to the long ones."""
    moving = 3e9 / (GPU.bandwidth * BANDWIDTH_REACHED)
    found = static_profile("X", [(1e3, 3e9, 1, 5), (6e9, 1e3, 1, 1)], GPU, input_bytes=10**7)
    assert found is not None
    total = 5 * moving + seconds_of(6e9) + 1e-3
    assert found.demand["bandwidth"] == pytest.approx(5 * moving / total, abs=1e-3)
    assert found.demand["transfer"] == pytest.approx(1e-3 / total, abs=1e-3)
    assert found.granularity["bandwidth"] == pytest.approx(moving / GRAIN_SECONDS)
    mixed = static_profile("X", [(6e9, 0, 1, 1), (0.6e9, 0, 1, 10)], GPU)
    assert mixed is not None
    long, short = seconds_of(6e9), seconds_of(0.6e9)
    biased = (long**2 + 10 * short**2) / (long + 10 * short) / GRAIN_SECONDS
    assert mixed.granularity["compute"] == pytest.approx(biased, rel=1e-3)


def test_a_call_of_several_kernels_is_divided_among_them() -> None:
    """A fused optimizer over many tensors is not one long kernel."""
    one = static_profile("X", [(0.0, 8e9, 8, 1)], GPU)
    same = static_profile("X", [(0.0, 1e9, 1, 8)], GPU)
    assert one == same


def test_on_the_host() -> None:
    """One thread; what streams more than it computes is memory bandwidth; nothing is nothing."""
    host = Peaks(CPU, 100e9, 10e9, 0.0, "")
    found = static_profile(CPU, [(0.0, 7.5e6, 1, 2), (60e6, 1e3, 1, 2)], host)
    assert found is not None
    assert found.step_seconds == pytest.approx(4e-3, rel=0.01)
    assert found.demand == {"cores": 1.0, "memory_bandwidth": pytest.approx(0.5, abs=0.01)}
    assert static_profile(CPU, [], host) is None


@pytest.mark.parametrize(
    ("kind", "demand", "label"),
    [
        ("X", {"compute": 0.4, "bandwidth": 0.1, "cores": 1.0}, "compute"),
        ("X", {"compute": 0.1, "bandwidth": 0.4}, "memory"),
        ("X", {"compute": 0.05, "transfer": 0.07, "cores": 1.0}, "low"),
        (CPU, {"cores": 1.6, "memory_bandwidth": 0.2}, "compute"),
        (CPU, {"cores": 0.9, "memory_bandwidth": 0.6}, "memory"),
        (CPU, {"cores": 0.1, "storage": 0.01}, "low"),
        ("X", {"cores": 1.0}, None),
    ],
)
def test_labels(kind: str, demand: dict[str, float], label: str | None) -> None:
    """The largest demand names the type; on a GPU the host's thread does not count."""
    assert label_of(Profile(device_kind=kind, threads=2, demand=demand)) == label
