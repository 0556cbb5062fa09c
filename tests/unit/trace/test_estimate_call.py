"""``rmixer.estimate(build)``: a package that can be called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rmixer
from rmixer.errors import UsageError


def build() -> Any:
    model = nn.Linear(1024, 1024)
    return model, torch.optim.Adam(model.parameters()), (torch.ones(8, 1024),)


def test_a_gpu_that_is_too_small_is_told_with_options() -> None:
    """The context counts, sizes may be written as in jobs files, and the parts are there."""
    fits = rmixer.estimate(build, device="cuda:0", device_memory="80GiB")
    assert fits.refusal == ""
    assert fits.bytes["total"] == fits.bytes["reserved_peak"] + fits.bytes["context"]
    room = fits.bytes["context"] + (1 << 20)
    small = rmixer.estimate(build, device="NVIDIA T4", device_memory=room)
    assert "can never fit" in small.refusal
    assert "sparse optimizer" in small.refusal


def test_a_cpu_has_the_process_too() -> None:
    """Interpreter and libraries are part of the total; a torch.device is a device."""
    found = rmixer.estimate(build, torch.device("cpu"))
    assert found.device == "cpu"
    assert found.host_bytes == found.bytes["total"] > 200 << 20
    assert found.reserve_host_bytes > found.own_host_bytes


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": ""}, "device"),
        ({"device_memory": "lots"}, "device_memory"),
        ({"device_memory": -5}, "device_memory"),
        ({"foo": 1}, "no option foo"),
        ({"loss": lambda model, batch: 1 / 0}, "loss=FUNCTION"),
    ],
)
def test_what_is_not_right_is_told(options: dict[str, Any], told: str) -> None:
    """As a UsageError that names the argument, whatever went wrong below."""
    with pytest.raises(UsageError, match=told):
        rmixer.estimate(build, **options)
