"""A fake ``/proc`` and ``/sys`` with control groups that behave as the kernel's do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rmixer.launch import cage

UNLIMITED_V1 = str(2**63 - 4096)
V1_FILES = {
    "cgroup.procs": "",
    "memory.limit_in_bytes": UNLIMITED_V1,
    "memory.memsw.limit_in_bytes": UNLIMITED_V1,
    "memory.max_usage_in_bytes": "0",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
}
V2_FILES = {"cgroup.procs": "", "cgroup.controllers": "", "cgroup.subtree_control": ""}
V2_MEMORY = {
    "memory.max": "max",
    "memory.high": "max",
    "memory.swap.max": "max",
    "memory.peak": "0",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
}


class Kernel:
    """Groups get their files when they are made, and lose them when they are removed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        (self.proc / "self").mkdir(parents=True)
        self.sys.mkdir()
        self._make, self._remove = os.mkdir, os.rmdir
        self.refused: dict[str, int] = {}  # errno by the name of a file or of a group's parent
        self.mounts: list[str] = []
        self.own: list[str] = []
        monkeypatch.setattr(os, "mkdir", self.make)
        monkeypatch.setattr(os, "rmdir", self.remove)
        monkeypatch.setattr(cage, "write", self.write)

    # --- the machine --------------------------------------------------------------------------

    def mount_v1(self, own: str = "/") -> Path:
        """Version 1's memory controller; the directory of our own group."""
        return self._mount("memory", "cgroup", "rw,memory", f"4:memory:{own}", V1_FILES, own)

    def mount_v2(self, own: str = "/", controllers: str = "memory") -> Path:
        """Version 2; the directory of our own group, which has no children yet."""
        group = self._mount("unified", "cgroup2", "rw", f"0::{own}", V2_FILES, own)
        for directory in (group, *group.parents):
            if self.sys in directory.parents and directory != self.sys / "fs/cgroup":
                (directory / "cgroup.controllers").write_text(controllers)
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
        return group

    def _mount(
        self, place: str, kind: str, options: str, line: str, files: dict[str, str], own: str
    ) -> Path:
        mount = self.sys / "fs/cgroup" / place
        self.mounts.append(f"35 31 0:32 / /sys/fs/cgroup/{place} rw - {kind} cgroup {options}")
        self.own.append(line)
        (self.proc / "self/mountinfo").write_text("\n".join(self.mounts) + "\n")
        (self.proc / "self/cgroup").write_text("\n".join(self.own) + "\n")
        group = mount
        for part in ("", *own.strip("/").split("/")):
            group /= part
            if not group.is_dir():
                group.mkdir(parents=True)
            for name, text in files.items():
                if not (group / name).exists():
                    (group / name).write_text(text)
        return group

    # --- what the kernel does ----------------------------------------------------------------

    def make(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        parent = Path(path).parent
        if (error := self.refused.get(parent.name)) is not None:
            raise OSError(error, os.strerror(error), str(path))
        self._make(path, mode, **more)
        files = {}
        if (parent / "memory.limit_in_bytes").exists():
            files = V1_FILES
        elif (parent / "cgroup.subtree_control").exists():
            with_memory = "memory" in (parent / "cgroup.subtree_control").read_text()
            files = V2_FILES | (V2_MEMORY if with_memory else {})
        for name, text in files.items():
            Path(path, name).write_text(text)

    def remove(self, path: Any, **more: Any) -> None:
        group = Path(path)
        if (group / "cgroup.procs").exists():
            below = [entry for entry in group.iterdir() if entry.is_dir()]
            if (group / "cgroup.procs").read_text().strip() or below:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
            for file in group.iterdir():
                file.unlink()
        self._remove(path, **more)

    def write(self, path: str, text: str) -> None:
        file = Path(path)
        if (error := self.refused.get(file.name)) is not None:
            raise OSError(error, os.strerror(error), path)
        if not file.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if file.name == "cgroup.subtree_control":
            is_root = not (file.parent.parent / "cgroup.procs").exists()
            if (file.parent / "cgroup.procs").read_text() and not is_root:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            text = text.lstrip("+")
        if file.name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            self._check_v1(file, int(text))
        if file.name == "memory.oom_control":
            text = f"oom_kill_disable {text}\nunder_oom 0\noom_kill 0\n"
        file.write_text(text + "\n")

    def _check_v1(self, file: Path, value: int) -> None:
        """Memory alone is never allowed more than memory and swap."""
        limits = {
            name: int((file.parent / name).read_text())
            for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
            if (file.parent / name).exists()
        }
        limits[file.name] = value
        if limits["memory.limit_in_bytes"] > limits.get("memory.memsw.limit_in_bytes", 2**64):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(file))
