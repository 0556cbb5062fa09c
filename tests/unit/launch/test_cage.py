"""The memory cage by itself: which kind a machine allows, on fake control groups; real data limits."""

from __future__ import annotations

import ast
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_groups import Kernel

from rmixer.launch import cage
from rmixer.resources import GIB, MIB
from waiting import wait_until

SOURCE = Path(cage.__file__).read_text(encoding="utf-8")
LIMIT = 100 * MIB


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def made(kernel: Kernel, name: str = "run.job.1", **more: Any) -> cage.Cage:
    return cage.make(LIMIT, name, proc=str(kernel.proc), sys=str(kernel.sys), **more)


def path_of(one: cage.Cage) -> Path:
    return Path(one.document()["path"])


def text(path: Path, name: str) -> str:
    return (path / name).read_text().strip()


# --- which kind -----------------------------------------------------------------------------------


def test_version_1_below_our_own_group(kernel: Kernel) -> None:
    """The group is named after the attempt and limits memory, and memory and swap together."""
    own = kernel.mount_v1("/box/7")
    one = made(kernel)
    path = path_of(one)
    assert one.document() == {"kind": "cgroup1", "path": str(own / "rmixer-run.job.1")}
    assert text(path, "memory.limit_in_bytes") == str(LIMIT)
    assert text(path, "memory.memsw.limit_in_bytes") == str(LIMIT)


def test_version_1_without_swap_accounting(kernel: Kernel) -> None:
    """A kernel that does not count swap limits memory all the same."""
    own = kernel.mount_v1()
    kernel.refused["memory.oom_control"] = errno.EPERM
    one = made(kernel)
    (path_of(one) / "memory.memsw.limit_in_bytes").unlink()
    one.resize(2 * LIMIT)
    assert text(own / "rmixer-run.job.1", "memory.limit_in_bytes") == str(2 * LIMIT)


def test_version_1_is_never_left_without_the_killer(kernel: Kernel) -> None:
    """Where the group inherits that nobody is killed, a job at its limit would stand still."""
    own = kernel.mount_v1()
    (own / "memory.oom_control").write_text("oom_kill_disable 1\nunder_oom 0\noom_kill 0\n")
    assert text(path_of(made(kernel)), "memory.oom_control").startswith("oom_kill_disable 0")


def test_version_2_beside_our_own_group(kernel: Kernel) -> None:
    """A group with processes has no children; where its parent hands memory on, ours is beside it."""
    own = kernel.mount_v2("/user/app/scope")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids")
    path = path_of(made(kernel))
    assert path == own.parent / "rmixer-run.job.1"
    assert (text(path, "memory.max"), text(path, "memory.swap.max")) == (str(LIMIT), "0")


def test_version_2_in_the_root_group(kernel: Kernel) -> None:
    """The root group may have processes and children: the controller is handed on there."""
    own = kernel.mount_v2("/")
    path = path_of(made(kernel))
    assert path.parent == own
    assert text(path, "memory.max") == str(LIMIT)


@pytest.mark.parametrize(
    ("name", "value"), [("memory.max", "1000"), ("memory.high", "9"), ("cpu.max", "5 100")]
)
def test_limits_of_our_own_group_are_not_escaped(kernel: Kernel, name: str, value: str) -> None:
    """What somebody has set for us is for our jobs too, so they are not put beside us."""
    own = kernel.mount_v2("/app/scope")
    (own.parent / "cgroup.subtree_control").write_text("memory")
    (own / name).write_text(value)
    assert made(kernel).document()["kind"] == "rlimit"


def test_version_2_goes_first(kernel: Kernel) -> None:
    """With both, the newer is taken; without its memory controller, the older."""
    kernel.mount_v1()
    own = kernel.mount_v2("/", controllers="hugetlb")
    assert made(kernel).document()["kind"] == "cgroup1"
    (own / "cgroup.controllers").write_text("memory hugetlb")
    assert made(kernel).document()["kind"] == "cgroup2"


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS])
def test_groups_that_are_not_ours(kernel: Kernel, error: int) -> None:
    """Where groups cannot be made, data is limited, and nothing is left."""
    own = kernel.mount_v1("/box")
    kernel.refused["box"] = error
    assert made(kernel).document() == {"kind": "rlimit", "path": None}
    assert not list(own.glob("rmixer-*"))


def test_limit_that_is_refused_leaves_no_group(kernel: Kernel) -> None:
    """A group whose limit cannot be set is removed again."""
    own = kernel.mount_v1("/box")
    kernel.refused["memory.limit_in_bytes"] = errno.EACCES
    kernel.refused["memory.memsw.limit_in_bytes"] = errno.EACCES
    assert made(kernel).document()["kind"] == "rlimit"
    assert not list(own.glob("rmixer-*"))


def test_machine_without_groups(kernel: Kernel) -> None:
    """Nothing mounted, nothing readable: data is limited."""
    assert made(kernel).document()["kind"] == "rlimit"


def test_no_kind_at_all(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel too old to limit data, without groups: an error with every reason."""
    kernel.mount_v1("/box")
    kernel.refused["box"] = errno.EROFS
    monkeypatch.setattr(cage, "_release", lambda: (4, 6))
    with pytest.raises(OSError, match=r"Read-only file system.*does not limit data"):
        made(kernel)


def test_hidden_group_of_a_container(kernel: Kernel) -> None:
    """A group that the mount does not show is taken to be the mount's own root."""
    own = kernel.mount_v1()
    (kernel.proc / "self/cgroup").write_text("4:memory:/docker/12ab\n")
    assert path_of(made(kernel)).parent == own


# --- one group per attempt ------------------------------------------------------------------------


def test_announced_before_it_is_made(kernel: Kernel) -> None:
    """Whoever is killed at any moment has written down what he leaves behind."""
    kernel.mount_v1()
    seen: list[tuple[str, bool]] = []
    one = made(
        kernel, announce=lambda about: seen.append((about["path"], Path(about["path"]).exists()))
    )
    assert seen == [(str(path_of(one)), False)]


def test_name_that_is_taken(kernel: Kernel) -> None:
    """A group that is in use stays as it is; ours gets another name. An empty one is made anew."""
    kernel.mount_v1()
    first = path_of(made(kernel))
    (first / "memory.max_usage_in_bytes").write_text("77\n")
    again = made(kernel)
    assert (path_of(again), again.peak_bytes()) == (first, 0)
    (first / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert path_of(made(kernel)).name == first.name + "-2"


def test_any_name_is_a_file_name(kernel: Kernel) -> None:
    """Slashes and long names of attempts make one directory right below ours."""
    own = kernel.mount_v1()
    path = path_of(made(kernel, "../a b/ü" + "x" * 500))
    assert path.parent == own
    assert path.is_dir()


def test_found_again_by_its_document(kernel: Kernel) -> None:
    """From what was announced the runner gets the same cage; other paths are left alone."""
    kernel.mount_v1()
    one = made(kernel)
    found = cage.find(one.document())
    assert found is not None
    assert found.document() == one.document()
    for stranger in ({}, {"kind": "cgroup1", "path": "/home/me"}, {"kind": "cgroup1"}):
        assert cage.find(stranger) is None
    assert isinstance(cage.find({"kind": "rlimit", "path": None}), cage.DataLimit)


def test_limit_of_version_1_goes_up_and_down(kernel: Kernel) -> None:
    """Memory may never exceed memory and swap, whichever is written first."""
    kernel.mount_v1()
    one = made(kernel)
    for limit in (GIB, 10 * MIB, 20 * MIB):
        one.resize(limit)
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        assert [text(path_of(one), name) for name in names] == [str(limit)] * 2


@pytest.mark.parametrize(
    ("version", "events", "peak"),
    [(1, "memory.oom_control", "memory.max_usage_in_bytes"), (2, "memory.events", "memory.peak")],
)
def test_counters(kernel: Kernel, version: int, events: str, peak: str) -> None:
    """Kills and peak are the group's own; None where the kernel does not count them."""
    mount = kernel.mount_v1 if version == 1 else kernel.mount_v2
    mount("/")
    one = made(kernel)
    assert (one.oom_kills(), one.peak_bytes()) == (0, 0)
    (path_of(one) / events).write_text("oom 3\noom_kill 2\noom_group_kill 1\n")
    (path_of(one) / peak).write_text("4096\n")
    assert (one.oom_kills(), one.peak_bytes()) == (2, 4096)
    for name in (events, peak):
        (path_of(one) / name).unlink()
    assert (one.oom_kills(), one.peak_bytes()) == (None, None)


def test_entering_writes_the_pid(kernel: Kernel) -> None:
    """The process that enters is the one in the group."""
    kernel.mount_v1()
    one = made(kernel)
    one.enter()
    assert text(path_of(one), "cgroup.procs") == str(os.getpid())
    assert one.is_there()


def test_group_that_cannot_be_entered_is_gone(kernel: Kernel) -> None:
    """So it shows that the job is not inside, and its counters say nothing of it."""
    kernel.mount_v1()
    one = made(kernel)
    kernel.refused["cgroup.procs"] = errno.EACCES
    with pytest.raises(PermissionError):
        one.enter()
    assert not one.is_there()
    assert one.oom_kills() is None


def test_cleared_with_all_below(kernel: Kernel) -> None:
    """Groups that the job made inside go too; clearing what is gone does nothing."""
    kernel.mount_v1()
    one = made(kernel)
    (path_of(one) / "inner" / "deeper").mkdir(parents=True)
    one.clear()
    assert not path_of(one).exists()
    one.clear()


def test_what_is_left_inside_is_killed(kernel: Kernel) -> None:
    """A process that was left in the group ends, and a pid that cannot be seen harms nobody."""
    kernel.mount_v1()
    one = made(kernel)
    left = subprocess.Popen(["sleep", "1000"])
    (path_of(one) / "cgroup.procs").write_text(f"0\n{left.pid}\n")
    assert isinstance(one, cage.Group)
    assert not one._remove()
    assert left.wait(30) == -9
    (path_of(one) / "cgroup.procs").write_text("")
    one.clear()
    assert not path_of(one).exists()


def test_group_that_stays_is_an_error(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that do not end are told by the group's path."""
    kernel.mount_v1()
    one = made(kernel)
    monkeypatch.setattr(cage, "CLEAR_SECONDS", 0.0)
    (path_of(one) / "cgroup.procs").write_text("0\n")
    with pytest.raises(OSError, match=r"rmixer-run\.job\.1"):
        one.clear()


# --- a limit on data, on any Linux ----------------------------------------------------------------


TAKE = """
import sys
try:
    block = b"x" * int(sys.argv[1])
except MemoryError:
    sys.exit(3)
"""


def take(size: int, one: cage.Cage, *wrapper: str) -> int:
    """The exit code of a program in a cage that takes so much: 3 if it was refused."""
    words = [*wrapper, sys.executable, "-S", "-c", TAKE, str(size)]
    return subprocess.run(words, preexec_fn=one.enter, check=False).returncode


def test_data_is_limited() -> None:
    """Within the limit a program gets what it asks for; well beyond it, MemoryError."""
    one = cage.DataLimit(LIMIT)
    assert take(LIMIT // 2, one) == 0
    assert take(2 * GIB + one._bytes(0), one) == 3


def test_children_are_limited_too() -> None:
    """What a job starts has its limit."""
    one = cage.DataLimit(LIMIT)
    assert take(2 * GIB + one._bytes(0), one, "sh", "-c", '"$@"; exit $?', "sh") == 3


def test_address_space_is_not_data() -> None:
    """A program may map far more than it uses: frameworks do."""
    mapping = "import mmap; mmap.mmap(-1, 2**36, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)"
    words = [sys.executable, "-S", "-c", mapping]
    limited = cage.DataLimit(LIMIT)
    assert subprocess.run(words, preexec_fn=limited.enter, check=False).returncode == 0


def test_lower_limit_of_the_user_stays() -> None:
    """A limit that was there already, and is lower, is kept."""
    show = "import resource; print(*resource.getrlimit(resource.RLIMIT_DATA))"

    def enter() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (200 * MIB, 300 * MIB))
        cage.DataLimit(GIB).enter()

    words = [sys.executable, "-S", "-c", show]
    shown = subprocess.run(words, preexec_fn=enter, check=True, capture_output=True, text=True)
    assert shown.stdout.split() == [str(200 * MIB), str(300 * MIB)]


def test_limit_of_a_running_process_is_raised(tmp_path: Path) -> None:
    """A program that was refused memory gets it once the limit has been raised from outside."""
    script = (
        "import os, sys, time\n"
        "def take():\n"
        "    try:\n"
        "        return b'x' * int(sys.argv[1])\n"
        "    except MemoryError:\n"
        "        open('refused', 'w').close()\n"
        "while not take(): time.sleep(0.01)\n"
    )
    one = cage.DataLimit(LIMIT)
    size = 100 * MIB + one._bytes(0)
    words = [sys.executable, "-S", "-c", script, str(size)]
    process = subprocess.Popen(words, preexec_fn=one.enter, cwd=tmp_path)  # noqa: PLW1509
    wait_until((tmp_path / "refused").exists)
    one.resize(size, [process.pid, 2**30])
    assert process.wait(30) == 0


# --- it runs under any Python ---------------------------------------------------------------------


def test_cage_is_python_3_8_of_the_standard_library() -> None:
    """The shim loads it without site-packages, under the Python of whoever runs it."""
    tree = ast.parse(SOURCE, feature_version=(3, 8))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert {str(name) for name in names} <= sys.stdlib_module_names
