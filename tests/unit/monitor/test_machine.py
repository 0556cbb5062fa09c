"""What a machine has for jobs, read from faked ``/proc`` and ``/sys`` trees and from the real one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmixer.catalog import build_policy
from rmixer.errors import UsageError
from rmixer.model import CPU, Device, Estimate, Job, JobSpec, Node, Pending, Reason
from rmixer.monitor import (
    boot_id,
    discover_gpus,
    discover_node,
    measure_memory_bandwidth,
    memory_available,
    usable_memory,
)
from rmixer.policies.base import Snapshot
from rmixer.resources import GIB, MIB

V1_MOUNTS = (
    "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "31 25 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n"
)
V2_MOUNTS = "30 25 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


class Machine:
    """A faked machine of 64 cores and 512 GiB."""

    def __init__(self, directory: Path) -> None:
        self.proc, self.sys = directory / "proc", directory / "sys"
        self.write(self.proc / "meminfo", f"MemTotal: 1 kB\nMemAvailable: {512 * GIB // 1024} kB\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def groups(self, own: str, mounts: str, **files: str) -> None:
        """Our group, the mounts, and files below /sys/fs/cgroup (``a__b`` is a/b)."""
        self.write(self.proc / "self/cgroup", own)
        self.write(self.proc / "self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + mounts)
        for name, text in files.items():
            path = name.replace("__", "/").replace("_dot_", ".")
            self.write(self.sys / "fs/cgroup" / path, text)

    def node(self, cores: int | None = None) -> Node:
        return discover_node(
            cores=cores, proc=str(self.proc), sys=str(self.sys), affinity=range(64)
        )

    @property
    def memory(self) -> int:
        return memory_available(proc=str(self.proc), sys=str(self.sys))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_control_groups_all_is_ours(machine: Machine) -> None:
    """No groups: the cores of the affinity and the available memory, less the margin."""
    node = machine.node()
    assert node.cores == tuple(range(64))
    assert node.memory == 512 * GIB - int(512 * GIB * 0.05)
    assert node.devices[0].id == CPU


def test_limits_of_our_own_group(machine: Machine) -> None:
    """Version 2: 4 cores and 8 GiB of a machine of 64 and 512."""
    machine.groups(
        "0::/pod\n", V2_MOUNTS,
        pod__cpu_dot_max="400000 100000\n", pod__memory_dot_max=f"{8 * GIB}\n",
        pod__memory_dot_current=f"{GIB}\n",
    )  # fmt: skip
    assert machine.node().cores == (0, 1, 2, 3)
    assert machine.memory == 7 * GIB


def test_limits_of_an_ancestor(machine: Machine) -> None:
    """The smallest limit on the way to the root holds; "max" on the leaf is none."""
    machine.groups(
        "0::/slice/pod\n", V2_MOUNTS,
        slice__cpu_dot_max="400000 100000\n", slice__memory_dot_max=f"{8 * GIB}\n",
        slice__memory_dot_current=f"{2 * GIB}\n",
        slice__pod__cpu_dot_max="max 100000\n", slice__pod__memory_dot_max="max\n",
        slice__pod__memory_dot_current=f"{GIB}\n",
    )  # fmt: skip
    assert machine.node().cores == (0, 1, 2, 3)
    assert machine.memory == 6 * GIB


def test_limits_of_version_1(machine: Machine) -> None:
    """Quota and limit in the files of version 1; near 2^63, and -1, are no limit."""
    files = {
        "cpu,cpuacct__pod__cpu_dot_cfs_quota_us": "250000\n",
        "cpu,cpuacct__pod__cpu_dot_cfs_period_us": "100000\n",
        "cpu,cpuacct__cpu_dot_cfs_quota_us": "-1\n",
        "cpu,cpuacct__cpu_dot_cfs_period_us": "100000\n",
        "memory__pod__memory_dot_limit_in_bytes": f"{8 * GIB}\n",
        "memory__pod__memory_dot_usage_in_bytes": f"{GIB}\n",
        "memory__memory_dot_limit_in_bytes": "9223372036854771712\n",
    }
    own = "5:cpu,cpuacct:/pod\n4:memory:/pod\n1:name=systemd:/\n"
    machine.groups(own, V1_MOUNTS, **files)
    assert machine.node().cores == (0, 1)
    assert machine.memory == 7 * GIB


def test_group_inside_a_container(machine: Machine) -> None:
    """A path that is named from the host's root is found below the mount's own root."""
    mounts = V2_MOUNTS.replace("0:26 / ", "0:26 /docker/abc ")
    machine.groups("0::/docker/abc/job\n", mounts, job__cpu_dot_max="300000 100000\n")
    assert machine.node().cores == (0, 1, 2)
    machine.groups("0::/elsewhere\n", V2_MOUNTS, cpu_dot_max="200000 100000\n")
    assert machine.node().cores == (0, 1)


def test_page_cache_is_not_used_memory(machine: Machine) -> None:
    """A group full of file pages has its room all the same."""
    machine.groups(
        "0::/pod\n", V2_MOUNTS,
        pod__memory_dot_max=f"{8 * GIB}\n", pod__memory_dot_current=f"{8 * GIB}\n",
        pod__memory_dot_stat=f"anon {GIB}\ninactive_file {4 * GIB}\nactive_file {3 * GIB}\n",
    )  # fmt: skip
    assert machine.memory == 7 * GIB


def test_less_than_one_core_is_one(machine: Machine) -> None:
    """Half a core's quota still leaves one core to run on."""
    machine.groups("0::/pod\n", V2_MOUNTS, pod__cpu_dot_max="50000 100000\n")
    assert machine.node().cores == (0,)


def test_a_group_that_is_over_its_limit_has_nothing(machine: Machine) -> None:
    """Memory is never negative."""
    machine.groups("0::/p\n", V2_MOUNTS, p__memory_dot_max="10\n", p__memory_dot_current="20\n")
    assert machine.memory == 0
    assert machine.node().memory == 0


def test_margin_and_held_memory(machine: Machine) -> None:
    """At least 256 MiB are left alone; what jobs of ours hold is theirs to use."""
    machine.write(machine.proc / "meminfo", f"MemAvailable: {GIB // 1024} kB\n")
    where: dict[str, Any] = {"proc": str(machine.proc), "sys": str(machine.sys)}
    assert usable_memory(**where) == GIB - 256 * MIB
    assert usable_memory(held_memory=GIB, **where) == 2 * GIB - 256 * MIB


def test_fewer_cores_on_request(machine: Machine) -> None:
    """A number of cores is taken from those allowed; more than there are is an error."""
    assert machine.node(cores=2).cores == (0, 1)
    for wrong in (0, 65):
        with pytest.raises(UsageError, match="1 to 64"):
            machine.node(cores=wrong)


def test_gpus_are_those_of_the_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is named by its UUID, its memory is what is free; a choice keeps the indices."""
    import pynvml  # noqa: PLC0415

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}".encode(),
        "nvmlDeviceGetName": lambda index: "NVIDIA H200",
        "nvmlDeviceGetComputeRunningProcesses": lambda index: [],
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(used=GIB, free=GIB, total=2 * GIB),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    where: dict[str, Any] = {"proc": str(machine.proc), "sys": str(machine.sys)}
    first, second = discover_gpus()
    assert first == Device(id="GPU-0", kind="NVIDIA H200", index=0, memory=GIB)
    assert discover_node(gpus=[1], **where).devices == (Device(), second)
    assert discover_node(gpus=[], **where).devices == (Device(),)


def test_unknown_gpus_are_an_error(machine: Machine) -> None:
    """A GPU that is not there cannot be asked for."""
    with pytest.raises(UsageError, match="GPU 99"):
        discover_node(gpus=[99], proc=str(machine.proc), sys=str(machine.sys))


def test_this_machine() -> None:
    """The real trees can be read."""
    node = discover_node()
    assert set(node.cores) <= os.sched_getaffinity(0)
    assert 0 < node.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert len(boot_id()) == 36


def test_memory_bandwidth_is_plausible() -> None:
    """A core copies between 100 MB/s and 10 TB/s."""
    assert 1e8 < measure_memory_bandwidth() < 1e13


def test_limits_on_ancestors_of_version_1(machine: Machine) -> None:
    """The smallest of the ancestry, also one that a container sees in the statistics alone."""
    files = {
        "cpu,cpuacct__a__cpu_dot_cfs_quota_us": "400000\n",
        "cpu,cpuacct__a__cpu_dot_cfs_period_us": "100000\n",
        "cpu,cpuacct__a__b__cpu_dot_cfs_quota_us": "-1\n",
        "cpu,cpuacct__a__b__cpu_dot_cfs_period_us": "100000\n",
        "memory__a__b__memory_dot_limit_in_bytes": "9223372036854771712\n",
        "memory__a__b__memory_dot_usage_in_bytes": f"{GIB}\n",
        "memory__a__b__memory_dot_stat": f"cache 0\nhierarchical_memory_limit {8 * GIB}\n",
    }
    machine.groups("5:cpu,cpuacct:/a/b\n4:memory:/a/b\n", V1_MOUNTS, **files)
    assert machine.node().cores == (0, 1, 2, 3)
    assert machine.memory == 7 * GIB


def test_a_name_that_only_begins_like_the_root_is_another_group(machine: Machine) -> None:
    """``/pods/x`` is not below a mount of ``/pod``; ``..`` leads out of what can be seen."""
    mounts = V2_MOUNTS.replace("0:26 / ", "0:26 /pod ")
    machine.groups(
        "0::/pods/x\n", mounts,
        pods__x__cpu_dot_max="200000 100000\n", s__x__cpu_dot_max="100000 100000\n",
    )  # fmt: skip
    assert machine.node().cores == (0, 1)
    machine.groups("0::/../pods/x\n", mounts)
    assert machine.node().cores == (0, 1)


@pytest.mark.parametrize(
    ("own", "mounts", "files"),
    [
        ("0::/s/p\n", V2_MOUNTS, {
            "s__cpu_dot_max": "400000 100000", "s__memory_dot_max": f"{8 * GIB}",
            "s__memory_dot_current": "0", "s__p__cpu_dot_max": "max 100000",
            "s__p__memory_dot_max": "max", "s__p__memory_dot_current": "0",
        }),
        ("3:cpu,cpuacct:/p\n2:memory:/p\n", V1_MOUNTS, {
            "cpu,cpuacct__p__cpu_dot_cfs_quota_us": "400000",
            "cpu,cpuacct__p__cpu_dot_cfs_period_us": "100000",
            "memory__p__memory_dot_limit_in_bytes": f"{8 * GIB}",
            "memory__p__memory_dot_usage_in_bytes": "0",
        }),
    ],
    ids=["v2, on a parent", "v1"],
)  # fmt: skip
def test_what_is_booked_stays_within_the_container(
    machine: Machine, own: str, mounts: str, files: dict[str, str]
) -> None:
    """20 jobs of 1 GiB on a host of 64 cores and 512 GiB: at most 4 cores and 8 GiB are booked."""
    machine.groups(own, mounts, **files)
    node = machine.node()
    jobs = tuple(
        Job(
            spec=JobSpec(id=f"j{i}", name=f"j{i}", kind="command"),
            state=Pending(Reason("Submitted"), since=0.0),
            queued_at=0.0,
            estimate=Estimate(memory=GIB),
        )
        for i in range(20)
    )
    for policy in ("complementary", "all-at-once", "fixed:k=8,threads=1"):
        snapshot = Snapshot(now=0.0, node=node, pending=jobs, active=(), total_jobs=20)
        placed = build_policy(policy).plan(snapshot).starts.values()
        assert placed
        assert sum(place.cpu for place in placed) <= 4
        assert sum(place.memory for place in placed) <= 8 * GIB
        assert {core for place in placed for core in place.cores} <= set(range(4))
