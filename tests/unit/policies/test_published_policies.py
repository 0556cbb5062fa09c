"""The published rules and those of peers, one scenario each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rmixer import catalog
from rmixer.model import Device, Job, Node, Placement, Profile
from rmixer.policies.base import Snapshot
from rmixer.policies.muri import group_seconds, matching, use
from rmixer.resources import GIB
from rmixer.testing.policies import make_active, make_job

GPU = Device(id="GPU-0", kind="V100", index=0, memory=32 * GIB)


def job(name: str, compute: float, gib: float = 1.0, seconds: float = 10.0, **spec: Any) -> Job:
    profiles = {
        "V100": Profile(device_kind="V100", demand={"compute": compute}, solo_seconds=seconds),
        "cpu": Profile(solo_seconds=3 * seconds),
    }
    made = make_job(name, **spec)
    return replace(
        made, profiles=profiles, estimate=replace(made.estimate, device_memory=int(gib * GIB))
    )


def on(job: Job, device: str = "GPU-0") -> Job:
    return make_active(
        job, Placement(device=device, cpu=1, device_memory=job.estimate.device_memory)
    )


def started(
    policy: str,
    pending: list[Job],
    active: Sequence[Job] = (),
    *,
    gpus: int = 1,
    cpu: int = 0,
) -> list[tuple[str, str]]:
    devices = [replace(GPU, id=f"GPU-{i}", index=i) for i in range(gpus)]
    if cpu:
        devices.insert(0, Device(places=cpu))
    node = Node(cores=tuple(range(32)), memory=999 * GIB, devices=tuple(devices))
    every = [*pending, *active]
    snapshot = Snapshot(
        now=0.0, node=node, pending=tuple(pending), active=tuple(active), total_jobs=len(every),
        jobs={one.id: one for one in every},
    )  # fmt: skip
    plan = catalog.build_policy(policy).plan(snapshot)
    return [(name, placement.device) for name, placement in plan.starts.items()]


#: Two of each published type: compute, memory, low; by utilisation descending.
SIX = [
    job("c1", 0.5, 1), job("c2", 0.4, 4), job("m1", 0.07, 3), job("m2", 0.06, 5),
    job("l1", 0.05, 1.5), job("l2", 0.04, 0.5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("published-sequential:places=3", ["c2", "c1", "m2"]),
        ("published-intensity:places=4", ["c1", "l2", "c2", "l1"]),
        ("published-memory:places=4", ["m2", "l2", "c2", "c1"]),
        ("published-cognn:places=3", ["m2", "l2", "c2"]),
        ("published-type:places=4", ["m2", "c2", "m1", "l1"]),
        ("published-mix:places=4", ["c1", "m1", "m2", "c2"]),
        ("mps-rounds:places=2", ["c1", "c2"]),
        ("monolithic", ["c1"]),
        ("shortest-first:places=2", ["l2", "l1"]),
    ],
)
def test_what_each_rule_takes_first(policy: str, names: list[str]) -> None:
    """Order of the queue and pick, on one empty GPU; ties of types count compute, memory, low."""
    seconds = [replace(one, profiles=_lasting(one, 20 - i)) for i, one in enumerate(SIX)]
    assert [name for name, _ in started(policy, seconds)] == names


def _lasting(one: Job, seconds: float) -> dict[str, Profile]:
    return {kind: replace(p, solo_seconds=seconds) for kind, p in one.profiles.items()}


def test_rounds_have_a_barrier_and_the_others_have_none() -> None:
    """While one job of a round runs, `static` starts nothing; `type` does."""
    running = [on(job("r", 0.2))]
    assert started("published-static", SIX, running) == []
    assert started("monolithic", SIX, running, gpus=2) == []
    assert len(started("published-type", SIX, running)) == 3


@pytest.mark.parametrize(
    ("device", "chosen"),
    [("first", "GPU-0"), ("fewest-workers", "GPU-1"), ("most-memory", "GPU-0"),
     ("lowest-utilisation", "GPU-2"), ("mix", "GPU-0")],
)  # fmt: skip
def test_device_policies(device: str, chosen: str) -> None:
    """GPU 0 has two small jobs, GPU 1 one that is large and busy, GPU 2 two large idle ones."""
    running = [
        on(job("a", 0.2, 1)), on(job("b", 0.2, 1)), on(job("c", 0.5, 20), "GPU-1"),
        on(job("d", 0.05, 9), "GPU-2"), on(job("e", 0.05, 9), "GPU-2"),
    ]  # fmt: skip
    found = started(f"published-random:device={device}", [job("x", 0.1)], running, gpus=3, cpu=2)
    assert found == [("x", chosen)]


def test_memory_is_admitted_with_the_published_margin() -> None:
    """1.2 * job + booked < total: 13 GiB beside 16 booked fit at 1.05 and not at 1.2."""
    running = [on(job("r", 0.2, 16))]
    assert started("published-sequential", [job("x", 0.3, 13.4)], running) == []
    assert started("published-sequential:margin=1.05", [job("x", 0.3, 13.4)], running)
    assert started("published-sequential", [job("x", 0.3, 31)])  # alone it always may


def test_mix_uses_the_cpu_for_the_lightest_while_many_are_left() -> None:
    """N = 12, one GPU of 4 places, 2 CPU places: the CPU takes jobs from place 8 of 12 on."""
    many = [job(f"j{i:02}", 0.60 - 0.04 * i) for i in range(12)]
    found = started("published-mix:beta=1", many, cpu=2)
    assert [name for name, device in found if device == "cpu"] == ["j11", "j10"]
    assert started("published-mix:beta=3", many, cpu=2) == found[:4]  # none left to wait for


def test_lucid_pairs_by_score_and_length() -> None:
    """Tiny joins jumbo, jumbo joins nobody, a job twice as long as its mate waits."""
    running = [on(job("r", 0.9, seconds=10))]
    assert started("lucid", [job("tiny", 0.05, seconds=15)], running) == [("tiny", "GPU-0")]
    assert started("lucid", [job("jumbo", 0.9)], running) == []
    assert started("lucid", [job("long", 0.05, seconds=25)], running) == []


def test_carma_caps_the_utilisation_and_keeps_the_order() -> None:
    """A GPU over the cap takes nothing; nobody overtakes the head of the queue."""
    running = [on(job("r", 0.85, 1))]
    assert started("carma", [job("x", 0.1)], running) == []
    wide = [on(job("r", 0.2, 20))]
    assert started("carma", [job("big", 0.1, 11), job("small", 0.1, 1)], wide) == []


def test_muri_interleaves_complementary_stages() -> None:
    """A GPU-bound and a host-bound job take turns in about one step; two alike gain nothing."""
    gpu, host = (0.0, 0.1, 0.9, 0.0), (0.0, 0.9, 0.1, 0.0)
    assert group_seconds([gpu, host]) == pytest.approx(1.1)
    assert group_seconds([gpu, gpu]) == pytest.approx(1.9)
    assert use([gpu, host]) > use([gpu, gpu])
    assert matching(4, [(0, 1, 1.0), (1, 2, 1.5), (2, 3, 1.0)]) == [(0, 1), (2, 3)]
    many = [(i, i + 1, 1.0 + 0.1 * (i % 3)) for i in range(19)]
    found = matching(20, many)
    assert len({i for pair in found for i in pair}) == 2 * len(found)
    assert sum(w for i, j, w in many if (i, j) in found) > 5.5  # half of the best at least
    pending = [job("g1", 0.9), job("h1", 0.1), job("g2", 0.9), job("h2", 0.1)]
    assert len(started("muri", pending, gpus=2)) == 4
    assert len(started("muri", pending)) == 4  # one group of four
