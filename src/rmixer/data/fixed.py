"""Text whose columns are known: the base of the published data sets' formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rmixer.data.checks import Problem, check_path
from rmixer.data.delimited import Delimited
from rmixer.data.schema import DataSpec, Schema


class FixedText(Delimited):
    """A `Delimited` whose schema is the class's; a jobs file names the file alone."""

    SCHEMA: ClassVar[Schema]
    options: tuple[str, ...] = ("path",)
    default_dense = "log1p"

    def __init__(self, spec: DataSpec) -> None:
        self.schema = self.SCHEMA
        path = spec.options.get("path")
        self.sources: tuple[Path, ...] = () if path is None else (Path(path),)

    @staticmethod
    def check(data: Mapping[str, Any]) -> list[Problem]:
        """The problems of its own keys."""
        return check_path(data)
