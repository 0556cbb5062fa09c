"""The way to NVIDIA's management library (NVML), for all that asks it."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)


class Driver:
    """Loads the library at the first question.

    A driver that cannot be loaded, or that is given up, is asked no more, with one warning.

    Args:
        what: is not known without it, for the warning.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._library: Any = None
        self._usable = True
        self._handles: dict[str, Any] = {}

    def load(self) -> Any:
        """The library (the module ``pynvml``), or None where there is none to ask."""
        if self._library is None and self._usable:
            nvml = importlib.import_module("pynvml")
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                self.give_up(str(error))
            else:
                self._library = nvml
        return self._library if self._usable else None

    def handle(self, uuid: str) -> Any:
        """What the library calls a GPU. Raises its ``NVMLError`` where it has none like that."""
        if uuid not in self._handles:
            self._handles[uuid] = self._library.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def give_up(self, why: str) -> None:
        """Ask no more."""
        self._usable = False
        logger.warning("%s is not known: %s", self._what, why)

    def close(self) -> None:
        """Let go of the library."""
        if self._library is not None:
            with suppress(self._library.NVMLError):  # the driver may be lost
                self._library.nvmlShutdown()
            self._library, self._usable = None, False
