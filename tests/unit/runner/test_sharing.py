"""How jobs share GPUs: what may be asked for."""

from __future__ import annotations

import pytest

from rmixer.errors import UsageError
from rmixer.model import Device, Node
from rmixer.runner.sharing import asked_modes

GPUS = tuple(Device(id=f"GPU-{i}", kind="T4", index=i, memory=1) for i in range(2))
NODE = Node(devices=(Device(), *GPUS))


@pytest.mark.parametrize(("text", "modes"), [
    ("auto", ("auto", "auto")),
    ("mps:4", ("mps:4", "mps:4")),
    ("0=mps,1=exclusive", ("mps", "exclusive")),
    ("1=time-slice", ("auto", "time-slice")),
])  # fmt: skip
def test_one_mode_for_all_or_one_each(text: str, modes: tuple[str, str]) -> None:
    """A GPU that is not named is left to what the machine can do."""
    assert asked_modes(text, NODE) == dict(zip(("GPU-0", "GPU-1"), modes, strict=True))


@pytest.mark.parametrize(("text", "says"), [
    ("fast", "'fast' is none of auto, mps, time-slice, exclusive, mps:JOBS"),
    ("7=mps", "'7=mps' is no GPU=MODE; GPUs here: 0, 1"),
    ("0=mps,exclusive", "'exclusive' is no GPU=MODE"),
    ("exclusive:2", "'exclusive:2' is none of"),
    ("mps:0", "'mps:0' is none of"),
])  # fmt: skip
def test_a_wrong_mode_is_told(text: str, says: str) -> None:
    """With what would be right."""
    with pytest.raises(UsageError, match="--sharing") as told:
        asked_modes(text, NODE)
    assert says in str(told.value)
