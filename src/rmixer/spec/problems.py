"""What is wrong with a jobs file, gathered so that one look tells all of it."""

from __future__ import annotations

from typing import Any

from rmixer.errors import SpecError, unknown_name
from rmixer.spec.document import Document, KeyPath, dotted

#: More than this is not read by anybody.
SHOWN = 20
_LONGEST = 60


class CommandNotFoundError(SpecError):
    """The program of a ``command`` does not exist. Alone on the command line it means 127."""


class Problems:
    """Gathers problems of one document; the same one is kept once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: dict[tuple[KeyPath, str], tuple[str, type[SpecError]]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(
        self, path: KeyPath, message: str, note: str = "", error: type[SpecError] = SpecError
    ) -> None:
        """Note that the value at a path is not right; ``note`` says for which job if for one."""
        self._found.setdefault((path, message), (note, error))

    def raise_if_any(self) -> None:
        """Raise what was found as one error, by line; its place is that of the first.

        Raises:
            SpecError: there was something.
        """
        if not self._found:
            return
        errors = [
            (self.document.line(path) or 0, path, message + note, kind)
            for (path, message), (note, kind) in self._found.items()
        ]
        errors.sort(key=lambda error: error[0])
        _, path, message, kind = errors[0]
        rest = [str(self._error(*error[1:])) for error in errors[1:SHOWN]]
        if len(errors) > SHOWN:
            rest.append(f"and {len(errors) - SHOWN} more")
        raise self._error(path, "\n".join([message, *rest]), kind)

    def _error(self, path: KeyPath, message: str, kind: type[SpecError]) -> SpecError:
        line = self.document.line(path)
        return kind(message, file=self.document.file, line=line, key=dotted(path) or None)


def shown(value: Any, path: KeyPath = ()) -> str:
    """A value for a message. What may hold values of environment variables is not shown."""
    if "env" in path or (path and str(path[-1]).isupper()):
        return "its value"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def unknown_key(key: str, value: Any, known: list[str], path: KeyPath) -> str:
    """The message for a key that is not known."""
    what = f" ({shown(value, path)})" if shown(value, path) != "its value" else ""
    message = unknown_name("key", key, known)
    return message.replace(f"{key!r}", f"{key!r}{what}", 1) if what else message
