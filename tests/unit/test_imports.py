"""What is imported when: the command line is quick, and torch stays below the line."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import rmixer

SOURCE = Path(rmixer.__file__).parent
#: The rooms, top to bottom; a module imports from its own room and from those above it.
ROOMS = [
    ["errors", "resources"],
    ["model"],
    ["events"],
    ["interference", "bound"],
    ["faults", "health", "roster", "state", "policies", "dispatcher"],
    ["catalog"],
    ["spec"],
    ["paths", "store", "log"],
    ["monitor", "launch"],
    ["execute", "estimate", "profile"],
    ["report"],
    ["runner", "simulate"],
    ["api", "testing"],
    ["cli"],
    ["__main__"],
    ["data", "models"],
    ["train"],
    ["trace"],
]
BELOW = {"data", "models", "train", "trace"}


def room_of(module: str) -> str:
    return module.split(".")[1]


def rank(room: str) -> int:
    return next(index for index, rooms in enumerate(ROOMS) if room in rooms)


def modules() -> list[str]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in found if name != "rmixer"]


def imports_of(module: str) -> set[str]:
    """The modules of ours that a module names in an import, wherever in the file."""
    path = SOURCE.parent / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "rmixer":
                found |= {f"rmixer.{alias.name}" for alias in node.names}
            elif node.module.startswith("rmixer."):
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("rmixer.")}
    return found


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_from_rooms_above_it(module: str) -> None:
    """No room knows one below it; the scheduling side never names the training side."""
    room = room_of(module)
    for other in imports_of(module):
        assert rank(room_of(other)) <= rank(room), f"{module} imports {other}"
        if room not in BELOW:
            assert room_of(other) not in BELOW, f"{module} imports {other}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import rmixer", "import rmixer.cli"])
def test_nothing_heavy_before_a_verb_is_chosen(statement: str) -> None:
    """`rmixer --help` answers at once because none of these is loaded."""
    heavy = {"torch", "pydantic", "numpy", "rich", "polars", "scipy", "ruamel.yaml"}
    assert not heavy & loaded_by(statement)


def test_the_scheduling_side_works_without_torch() -> None:
    """Everything above the line can be imported with torch and polars out of reach."""
    above = [name for name in modules() if room_of(name) not in BELOW and name != "rmixer.__main__"]
    block = "sys.modules['torch'] = None; sys.modules['polars'] = None; "
    loaded = loaded_by(block + "; ".join(f"import {name}" for name in above))
    assert "rmixer.runner.run" in loaded


def test_all_names_what_is_there() -> None:
    """Every public name can be reached, and `dir` tells them all."""
    assert dir(rmixer) == sorted(rmixer.__all__)
    for name in rmixer.__all__:
        assert getattr(rmixer, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        importlib.import_module("rmixer").nothing  # noqa: B018
