"""These need a GPU of NVIDIA's, its driver, and a build of torch for CUDA; else they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip it where there is no GPU."""
    mine = [item for item in items if HERE in item.path.parents]
    if not mine:
        return
    import torch  # noqa: PLC0415

    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no GPU that torch can use"))
