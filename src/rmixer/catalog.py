"""Names of extension points: name -> ``pkg.module:Class``. Imports nothing before it is asked to.

An outsider's class is named as ``pkg.module:Class`` wherever a name of ours may stand. The tables
of models and data formats stand beside their code, below the line, and are read from there; like
this module they import neither torch nor numpy nor pydantic.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from rmixer.errors import UnknownNameError, UsageError

Kind = Literal["policy", "executor", "world", "model", "dataset"]
Option = int | float | bool | str
#: One thing that is wrong with a mapping: its dotted key within it, and what would be right.
Problem = tuple[str, str]

POLICIES: Mapping[str, str] = {
    "sequential": "rmixer.policies.baselines:Sequential",
    "fixed": "rmixer.policies.baselines:Fixed",
    "all-at-once": "rmixer.policies.baselines:AllAtOnce",
    "exclusive": "rmixer.policies.baselines:Exclusive",
    "monolithic": "rmixer.policies.baselines:Monolithic",
    "mps-rounds": "rmixer.policies.baselines:MpsRounds",
    "published-sequential": "rmixer.policies.published:PublishedSequential",
    "published-random": "rmixer.policies.published:PublishedRandom",
    "published-intensity": "rmixer.policies.published:PublishedIntensity",
    "published-memory": "rmixer.policies.published:PublishedMemory",
    "published-type": "rmixer.policies.published:PublishedType",
    "published-static": "rmixer.policies.published:PublishedStatic",
    "published-cognn": "rmixer.policies.published:PublishedCognn",
    "published-mix": "rmixer.policies.published_mix:PublishedMix",
    "fifo": "rmixer.policies.queues:Fifo",
    "backfill": "rmixer.policies.queues:Backfill",
    "shortest-first": "rmixer.policies.queues:ShortestFirst",
    "lucid": "rmixer.policies.lucid:Lucid",
    "muri": "rmixer.policies.muri:Muri",
    "carma": "rmixer.policies.carma:Carma",
    "complementary": "rmixer.policies.complementary:Complementary",
}
EXECUTORS: Mapping[str, str] = {
    "process": "rmixer.execute.process:ProcessExecutor",
    "inline": "rmixer.execute.inline:InlineExecutor",
}
WORLDS: Mapping[str, str] = {
    "network": "rmixer.simulate.worlds.network:NetworkWorld",
    "log": "rmixer.simulate.worlds.log:LogWorld",
    "gavel": "rmixer.simulate.worlds.gavel:GavelWorld",
    "lucid": "rmixer.simulate.worlds.lucid:LucidWorld",
}
#: Tables that stand beside their code.
_ELSEWHERE = {"model": "rmixer.models:MODELS", "dataset": "rmixer.data:FORMATS"}
#: What checks a part of a job without torch: mapping in, problems out.
_CHECKS = {
    "params": "rmixer.models.params:validate",
    "optimizer": "rmixer.train.optimizers_table:validate",
    "data": "rmixer.data.schema:validate",
    "features": "rmixer.models.features:validate",
}
_WORDS = {"dataset": "data format"}

_OUTSIDER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_POLICY = re.compile(r"(?P<name>[^\s:=,]+(?::[A-Za-z_]\w*(?=:|$))?)(?::(?P<options>.*))?")
_POLICY_FORM = "write NAME or NAME:key=value,key=value, for example fixed:k=2,threads=1"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def table(kind: Kind) -> Mapping[str, str]:
    """The table of that kind."""
    if kind == "policy":
        return POLICIES
    if kind == "executor":
        return EXECUTORS
    if kind == "world":
        return WORLDS
    return cast("Mapping[str, str]", _imported(_ELSEWHERE[kind]))


def is_outsider(name: str) -> bool:
    """Whether a name has the form ``pkg.module:Class``."""
    return _OUTSIDER.fullmatch(name) is not None


def lookup(kind: Kind, name: str) -> str:
    """Where the class of that name is: ``pkg.module:Class``.

    Raises:
        UnknownNameError: no such name; the message has the nearest and all known ones.
    """
    known = table(kind)
    if name in known:
        return known[name]
    if is_outsider(name):
        return name
    raise UnknownNameError(_WORDS.get(kind, kind), name, known)


def load(kind: Kind, name: str) -> Any:
    """Import the class of that name.

    Raises:
        UnknownNameError: no such name.
        UsageError: it cannot be imported.
    """
    target = lookup(kind, name)
    try:
        return _imported(target)
    except ImportError as error:
        hint = "; install it with `pip install 'rmixer[train]'`" if error.name == "torch" else ""
        raise UsageError(f"{kind} {name!r}: cannot import {target}: {error}{hint}") from error
    except AttributeError as error:
        raise UsageError(f"{kind} {name!r}: {error}") from error


def check_params(model: str, params: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the parameters of a model of ours; an outsider's are its own affair."""
    check = cast("Callable[[str, Mapping[str, Any]], list[Problem]]", _imported(_CHECKS["params"]))
    return [] if is_outsider(model) else check(model, params)


def check_optimizer(optimizer: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with an ``optimizer`` mapping."""
    return _check("optimizer")(optimizer)


def complete_optimizer(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """An ``optimizer`` mapping without problems, with the defaults of all it does not say."""
    name, settings = _imported("rmixer.train.optimizers_table:parse")(optimizer)
    return {"name": name, **settings}


def check_data(data: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a ``data`` mapping; no file is read."""
    return _check("data")(data)


def data_takes_folder(data: Mapping[str, Any]) -> bool:
    """Whether the path of a right ``data`` mapping may be a folder."""
    return cast("bool", _imported("rmixer.data.schema:takes_folder")(data))


def check_features(model: str, data: Mapping[str, Any]) -> list[Problem]:
    """What a ``data`` mapping without problems lacks for a model of ours; no file is read."""
    check = cast(
        "Callable[[str, Mapping[str, Any]], list[Problem]]", _imported(_CHECKS["features"])
    )
    return check(model, data)


def stock() -> Any:
    """The module that lists and removes parsed data sets, ``rmixer.data.stock``."""
    return importlib.import_module("rmixer.data.stock")


def parse_policy(text: str, kind: Kind = "policy") -> tuple[str, dict[str, Option]]:
    """A policy as it is written: ``fixed:k=2,threads=1`` -> ``("fixed", {"k": 2, "threads": 1})``.

    A world of a simulation is written alike.

    Values are whole numbers, numbers, true or false, else text. The name is not looked up.

    Raises:
        UsageError: not of that form; the message shows the right one.
    """
    match = _POLICY.fullmatch(text.strip())
    if match is None or (":" in match["name"] and match["name"].split(":")[0] in table(kind)):
        raise UsageError(f"{kind} {text!r} is not well formed; {_POLICY_FORM}")
    options: dict[str, Option] = {}
    for item in [] if match["options"] is None else match["options"].split(","):
        key, separator, value = (part.strip() for part in item.partition("="))
        if not (separator and key.isidentifier() and value):
            raise UsageError(f"{kind} {text!r}: {item!r} is not key=value; {_POLICY_FORM}")
        if key in options:
            raise UsageError(f"{kind} {text!r}: {key!r} is given twice")
        options[key] = _option(value)
    return match["name"], options


def build_policy(text: str) -> Any:
    """The policy that a text like ``fixed:k=2`` asks for, constructed.

    Raises:
        UsageError: not well formed, not known, or an option is unknown or out of range.
    """
    policy = _build("policy", text)
    if not callable(getattr(policy, "plan", None)):
        name, _ = parse_policy(text)
        raise UsageError(f"policy {text!r}: {name} is no policy: it makes nothing that has a plan")
    return policy


def build_world(text: str) -> Any:
    """The world of a simulation that a text like ``network:noise=0.1`` asks for, constructed.

    Raises:
        UsageError: not well formed, not known, or an option is unknown or out of range.
    """
    world = _build("world", text)
    if not callable(getattr(world, "law", None)):
        raise UsageError(f"world {text!r} is no world: it makes nothing that has a law")
    return world


def _build(kind: Literal["policy", "world"], text: str) -> Any:
    name, options = parse_policy(text, kind)
    factory = load(kind, name)
    parameters = _parameters(f"{kind} {text!r}", factory)
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        known = [parameter.name for parameter in parameters]
        for key in options:
            if key not in known:
                raise UnknownNameError(f"option of {kind} {name!r}:", key, known)
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{kind} {text!r}: {error}") from error


def _parameters(what: str, factory: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError) as error:  # not callable; or a built-in that does not tell
        raise UsageError(f"{what}: {error}") from error


def format_policy(name: str, options: Mapping[str, Option]) -> str:
    """The inverse of `parse_policy`."""
    items = [f"{key}={_written(value)}" for key, value in options.items()]
    return f"{name}:{','.join(items)}" if items else name


def _option(text: str) -> Option:
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _written(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(what: str) -> Callable[[Mapping[str, Any]], list[Problem]]:
    return cast("Callable[[Mapping[str, Any]], list[Problem]]", _imported(_CHECKS[what]))


def _imported(target: str) -> Any:
    module_name, _, attributes = target.partition(":")
    found: Any = importlib.import_module(module_name)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise AttributeError(f"{module_name} has no {attributes}")
        found = getattr(found, attribute)
    return found
