"""From the tree of a jobs file to one draft per job: defaults merged in, sweeps expanded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmixer.errors import nearest
from rmixer.spec.document import EXAMPLE, Document, KeyPath
from rmixer.spec.problems import Problems, shown, unknown_key
from rmixer.spec.schema import JOB_KEYS, MODEL_KEYS, SCHEMA_VERSION, Defaults, JobsDocument
from rmixer.spec.sweep import (
    MAX_JOBS,
    UnknownTemplateError,
    combinations,
    count,
    fill,
    format_value,
    has_template,
    sweep_problems,
    template_names,
)

#: Maps of a job that take over what they do not say themselves from the same map of the defaults,
#: and the key that, if it differs, makes the default's other keys meaningless.
_MERGED = {"data": "format", "optimizer": "name", "params": None, "env": None}
#: A template in these becomes text even if it is all there is.
_TEXTS = ("name", "model", "command", "python", "workdir", "after", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One job before its values are checked.

    Attributes:
        index: of its entry in ``jobs``.
        base: the path of its entry.
        values: its keys with the defaults merged in and all templates filled.
        raw: the same before templates were filled.
        inherited: keys, or keys of a map, that come from the defaults.
        combination: the values of the sweep that this job has.
        member_of: the name as it is written, if the entry has a sweep.
    """

    index: int
    base: KeyPath
    values: dict[str, Any]
    raw: dict[str, Any]
    inherited: frozenset[KeyPath] = frozenset()
    combination: Mapping[str, Any] = field(default_factory=dict)
    member_of: str | None = None

    def path(self, *rest: str | int) -> KeyPath:
        """Where a value of this job is written: in its entry or in the defaults."""
        if rest[:1] in self.inherited or rest[:2] in self.inherited:
            return ("defaults", *rest)
        return (*self.base, *rest)

    def note(self, *rest: str | int) -> str:
        """Which combination this is, for messages about a value that a sweep fills."""
        raw: Any = self.raw
        for key in rest:
            raw = raw.get(key) if isinstance(raw, dict) else raw
        if not self.combination or not has_template(raw):
            return ""
        items = [f"{name}={format_value(value)}" for name, value in self.combination.items()]
        return f" (with {', '.join(items)})"


def drafts_of(document: Document, problems: Problems) -> list[Draft]:
    """Every job of a document. What is wrong goes to ``problems``; such entries are left out."""
    tree = document.tree
    _check_top(tree, problems)
    defaults = tree.get("defaults") or {}
    jobs = tree.get("jobs")
    if not isinstance(defaults, dict):
        problems.add(("defaults",), f"{shown(defaults)} is not a mapping")
        defaults = {}
    _check_keys(defaults, ("defaults",), sorted(Defaults.model_fields), problems)
    if not isinstance(jobs, list) or not jobs:
        problems.add(("jobs",), f"{shown(jobs)} where a list of jobs should be; {EXAMPLE}")
        return []
    drafts: list[Draft] = []
    for index, entry in enumerate(jobs):
        base = document.job_path(index)
        if not isinstance(entry, dict):
            problems.add(base, f"{shown(entry, base)} is not a job; {EXAMPLE}")
        else:
            drafts += _entry_drafts(entry, defaults, index, base, problems)
        if len(drafts) > MAX_JOBS:
            problems.add(("jobs",), f"more than {MAX_JOBS} jobs")
            break
    return drafts


def _check_top(tree: dict[str, Any], problems: Problems) -> None:
    known = sorted(JobsDocument.model_fields)
    for key, value in tree.items():
        if key not in known:
            message = unknown_key(key, value, known, (key,))
            if key in JOB_KEYS and not nearest(key, known):
                message += "; it is a key of a job, and belongs under `jobs` or `defaults`"
            problems.add((key,), message)
    version = tree.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION or isinstance(version, bool):
        problems.add(("schema_version",), f"{shown(version)}; this RMixer reads {SCHEMA_VERSION}")


def _check_keys(entry: dict[str, Any], base: KeyPath, known: list[str], problems: Problems) -> None:
    for key, value in entry.items():
        if key not in known:
            problems.add((*base, key), unknown_key(key, value, known, (key,)))


def _entry_drafts(
    entry: dict[str, Any], defaults: dict[str, Any], index: int, base: KeyPath, problems: Problems
) -> Iterator[Draft]:
    _check_keys(entry, base, JOB_KEYS, problems)
    raw, inherited = _merge(defaults, entry)
    raw = {key: value for key, value in raw.items() if key in JOB_KEYS}
    draft = Draft(index=index, base=base, values=raw, raw=raw, inherited=inherited)
    if not _kind_is_clear(draft, entry, problems):
        return
    sweep = raw.pop("sweep", None)
    if sweep is None:
        if "sweep" in entry:
            problems.add((*base, "sweep"), "the sweep has no value; write {lr: [0.1, 0.01]}")
            return
        yield from _filled(draft, {}, problems)
        return
    wrong = sweep_problems(sweep)
    for rest, message in wrong:
        problems.add(draft.path("sweep", *rest), message)
    if wrong:
        return
    written = raw.get("name")
    if isinstance(written, str):
        mentioned = template_names(written)
        suffix = "".join(f"-{{{key}}}" for key in sweep if key not in mentioned)
        raw["name"] = written + suffix
    assert count(sweep) <= MAX_JOBS
    for combination in combinations(sweep):
        member = Draft(index=index, base=base, values=raw, raw=raw, inherited=inherited,
                       combination=combination, member_of=written)  # fmt: skip
        yield from _filled(member, combination, problems)


def _merge(
    defaults: dict[str, Any], entry: dict[str, Any]
) -> tuple[dict[str, Any], frozenset[KeyPath]]:
    """An entry with the defaults that make sense for it; a key that is null takes one away."""
    kinds = [key for key in ("command", "model") if entry.get(key) is not None] or [
        key for key in ("command", "model") if defaults.get(key) is not None
    ]
    senseless = MODEL_KEYS if kinds == ["command"] else ("command",) if kinds == ["model"] else ()
    other_model = (
        entry.get("model") is not None and defaults.get("model", entry["model"]) != (entry["model"])
    )
    merged = {key: _as_map(key, value) for key, value in entry.items()}
    inherited: set[KeyPath] = set()
    for key, value in defaults.items():
        if key in senseless or (key == "params" and other_model):
            continue
        default = _as_map(key, value)
        if key not in merged:
            merged[key] = default
            inherited.add((key,))
        elif _merges(key, default, merged[key]):
            inherited |= {(key, inner) for inner in default if inner not in merged[key]}
            merged[key] = {**default, **merged[key]}
    return {key: value for key, value in merged.items() if value is not None}, frozenset(inherited)


def _as_map(key: str, value: Any) -> Any:
    return {"name": value} if key == "optimizer" and isinstance(value, str) else value


def _merges(key: str, default: Any, own: Any) -> bool:
    if key not in _MERGED or not isinstance(default, dict) or not isinstance(own, dict):
        return False
    selector = _MERGED[key]
    return selector is None or own.get(selector, default.get(selector)) == default.get(selector)


def _kind_is_clear(draft: Draft, entry: dict[str, Any], problems: Problems) -> bool:
    """A job has a model or a command, and a command job no key of a training of ours."""
    raw = draft.raw
    has = [key for key in ("model", "command") if key in raw]
    if len(has) == 2:  # noqa: PLR2004
        problems.add(draft.path("command"), "a job has a model or a command, not both")
    elif not has:
        problems.add(draft.base, "the job has neither `model` nor `command`; write one of them")
    elif has == ["command"]:
        wrong = [key for key in MODEL_KEYS if entry.get(key) is not None]
        for key in wrong:
            problems.add(draft.path(key), "belongs to a job with `model`; this one has `command`")
        return not wrong
    return len(has) == 1


def _filled(draft: Draft, combination: Mapping[str, Any], problems: Problems) -> Iterator[Draft]:
    wrong = False

    def walk(value: Any, path: KeyPath) -> Any:
        nonlocal wrong
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        try:
            filled = fill(value, combination, lenient=path[0] == "command")
        except UnknownTemplateError as error:
            if path[0] == "after":  # the name of a sweep as it is written
                return value
            wrong = True
            problems.add(draft.path(*path), _unknown_template(error.args[0], combination))
            return value
        return format_value(filled) if path[0] in _TEXTS else filled

    literal = not problems.document.in_jobs  # words from the command line are meant as they are
    values = draft.raw if literal else {key: walk(v, (key,)) for key, v in draft.raw.items()}
    if not wrong:
        yield Draft(index=draft.index, base=draft.base, values=values, raw=draft.raw,
                    inherited=draft.inherited, combination=combination,
                    member_of=draft.member_of)  # fmt: skip


def _unknown_template(name: str, combination: Mapping[str, Any]) -> str:
    literal = f"for literal braces write {{{{{name}}}}}"
    if not combination:
        return f"{{{name}}} is a template, but the job has no `sweep`; {literal}"
    close = nearest(name, combination)
    hint = f"; did you mean {{{close}}}?" if close else ""
    known = ", ".join(f"{{{key}}}" for key in combination)
    return f"the sweep has no {{{name}}}{hint} (known: {known}); {literal}"
