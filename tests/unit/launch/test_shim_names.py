"""The shim knows file names without importing anything of rmixer."""

import ast
import subprocess
import sys
from pathlib import Path

from rmixer.launch import shim
from rmixer.paths import AttemptPaths

SOURCE = Path(shim.__file__).read_text(encoding="utf-8")


def test_names_are_those_of_the_attempt_paths() -> None:
    """The shim's own constants are the names that the owner of all paths gives."""
    paths = AttemptPaths(Path("/a"))
    owned = [paths.order, paths.lock, paths.revoked, paths.started, paths.exit, paths.scratch]
    known = [shim.ORDER, shim.LOCK, shim.REVOKED, shim.STARTED, shim.EXIT, shim.SCRATCH]
    assert [path.name for path in owned] == known


def test_source_is_python_3_8() -> None:
    """Every construct in the shim is one that Python 3.8 parses."""
    ast.parse(SOURCE, feature_version=(3, 8))


def test_imports_are_of_the_standard_library() -> None:
    """The shim runs without site-packages, so it may import nothing from there."""
    tree = ast.parse(SOURCE)
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names, "the shim imports something"
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_runs_isolated_and_refuses_an_empty_directory(tmp_path: Path) -> None:
    """Isolated and without site, an attempt without an order is an error, and nothing is written."""
    shown = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(tmp_path)], capture_output=True, check=False
    )
    assert shown.returncode == 1
    assert b"order.json" in shown.stderr
    assert not (tmp_path / shim.STARTED).exists()
