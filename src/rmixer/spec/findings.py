"""What pydantic finds wrong, in the words of a jobs file."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from rmixer.spec.document import KeyPath
from rmixer.spec.problems import shown, unknown_key
from rmixer.spec.schema import JOB_KEYS, DeclaredProfile, DeviceProfile

#: Kind of finding -> what to say; ``{value}`` is the value, ``{bound}`` the bound that it broke.
_MESSAGES = {
    "greater_than_equal": "{value} is out of range; it must be at least {bound}",
    "greater_than": "{value} is out of range; it must be above {bound}",
    "less_than_equal": "{value} is out of range; it must be at most {bound}",
    "int_type": "{value} is not a whole number",
    "int_from_float": "{value} is not a whole number",
    "float_type": "{value} is not a number",
    "finite_number": "{value} is not a finite number",
    "string_type": "{value} is not text; put it in quotes",
    "string_too_short": "is an empty text",
    "string_pattern_mismatch": "{value} has a line break or another control character",
    "dict_type": "{value} is not a mapping",
    "list_type": "{value} is not a list",
    "model_type": "{value} is not a mapping",
}


def validation_problems(
    error: ValidationError, values: dict[str, Any]
) -> list[tuple[KeyPath, str]]:
    """The path within the job of each finding, and what would be right."""
    return [
        (tuple(one["loc"]), _message(one, values))
        for one in error.errors(include_url=False, include_input=True)
    ]


def _known_keys(path: KeyPath) -> list[str]:
    if path[0] != "profile":
        return JOB_KEYS
    return sorted((DeviceProfile if "devices" in path[1:] else DeclaredProfile).model_fields)


def _message(one: Any, values: dict[str, Any]) -> str:
    path: KeyPath = tuple(one["loc"])
    if one["type"] == "extra_forbidden":
        known = _known_keys(path)
        return unknown_key(str(path[-1]), one["input"], known, path)
    if one["type"] == "missing":
        return f"the key is missing; the job has {', '.join(sorted(values)) or 'no key'}"
    return message_of(one, path)


def message_of(one: Any, path: KeyPath) -> str:
    """What a finding says, where it is about a value and not about a missing or unknown key."""
    context = one.get("ctx", {})
    if one["type"] == "value_error":
        return str(context["error"])
    bound = next((context[key] for key in ("ge", "gt", "le") if key in context), None)
    form = _MESSAGES.get(one["type"], f"{{value}}: {one['msg']}")
    return form.format(value=shown(one["input"], path), bound=bound)
