"""The allocator of a program's GPU memory is held to its booking, and only if the user did not do so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rmixer.execute.environment import GROWTH, device_limit, growth_settings, launched
from rmixer.model import CPU, Placement
from rmixer.resources import GIB, MIB

#: A program that comes to use CUDA. There is no GPU here: torch's own queue of what waits for that
#: is worked off as torch does it, on a GPU of 8 GiB.
PROGRAM = """
import json, types, torch
from torch import cuda
said = []
cuda.device_count = lambda: 1
cuda.get_device_properties = lambda index: types.SimpleNamespace(total_memory=8 << 30)
cuda.set_per_process_memory_fraction = lambda share, index: said.append([share, index])
for call, _ in cuda._queued_calls:
    if "hold" in call.__code__.co_names:
        call()
print(json.dumps(said))
"""


def run(**environment: str) -> list[list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": launched(None), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    answer: list[list[float]] = json.loads(done.stdout)
    return answer


def test_the_allocator_is_held_to_the_booking_less_the_context() -> None:
    """As a share of the whole GPU; what a process sees first is device 0."""
    booked = Placement(device="GPU-1", device_memory=2 * GIB + 512 * MIB)
    assert run(**device_limit(booked)) == [[0.25, 0]]


def test_the_users_own_share_stays() -> None:
    """It is in the allocator's settings, so ours is not set."""
    own = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.9"}
    assert run(RMIXER_DEVICE_MEMORY=str(GIB), **own) == []


def test_frameworks_grow_unless_the_user_decides() -> None:
    """On a GPU only; one variable of the user's own leaves that framework alone."""
    names = {name for name, _, _ in GROWTH}
    assert growth_settings(CPU, {}) == {}
    assert set(growth_settings("GPU-1", {})) == names
    for name, _, others in GROWTH:
        for own in (name, *others):
            assert set(growth_settings("GPU-1", {own: "x"})) == names - {name}
