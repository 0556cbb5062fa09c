"""The keys of a jobs file, their types and ranges: the single source for checks and for editors.

Paths, names of models, and what depends on another key are checked in `rmixer.spec.build`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from rmixer.errors import unknown_name
from rmixer.model import GPU_STATIONS, HOST_STATIONS
from rmixer.resources import parse_bytes, parse_seconds

SCHEMA_VERSION = 1
MAX_RETRIES = 100
_LARGEST = 2**63 - 1
_TEMPLATE = {"type": "string", "pattern": r"^\{[A-Za-z_][A-Za-z0-9_]*\}$"}
_DEVICE = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_DEVICES = ("auto", "cpu", "gpu")
_STATIONS = (*HOST_STATIONS, *GPU_STATIONS)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# pydantic gathers ValueError only, and so the checks raise nothing else.


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not a size; write for example 6GiB, 512MiB or 2GB")  # noqa: TRY004
    size = parse_bytes(value)
    if size < 1:
        raise ValueError("a size is at least 1 byte")
    return size


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration; write 90s, 15min or 01:30:00")  # noqa: TRY004
    return parse_seconds(value)


def _scalar_text(value: Any) -> str:
    """A word of a command, or the value of a variable: numbers and truth values as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    what = "nothing" if value is None else f"a {type(value).__name__}"
    raise ValueError(f'{what} is not text or a number; write "" for an empty text')


def _words(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the command is empty; write for example python train.py")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("write a text or a list of words, for example python train.py")
    return tuple(_scalar_text(word) for word in value)


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("write a mapping, for example {OMP_NUM_THREADS: 1}")  # noqa: TRY004
    result = {}
    for name, item in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        try:
            result[name] = _scalar_text(item)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if "\0" in result[name]:
            raise ValueError(f"{name}: a zero byte cannot be in an environment variable")
    return result


def _names(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("write the name of a job, or a list of names")
    return tuple(dict.fromkeys(names))


def _device(value: Any) -> str:
    if isinstance(value, str) and (value in _DEVICES or _DEVICE.fullmatch(value)):
        return value
    raise ValueError(f"{unknown_name('device', str(value), _DEVICES)}, or a UUID such as GPU-5f...")


def _fuse(value: Any) -> str | int:
    if isinstance(value, str) and value in ("auto", "never"):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError(f"{value!r} is not auto, never, or a number of jobs of at least 1")


def _by_station(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError("write a mapping, for example {cores: 0.8}")  # noqa: TRY004
    for key, item in value.items():
        if key not in _STATIONS:
            raise ValueError(unknown_name("station", key, _STATIONS))
        if isinstance(item, bool) or not isinstance(item, int | float) or not item < math.inf:
            raise ValueError(f"{key}: {item!r} is not a number")
    return {key: float(item) for key, item in value.items()}


def _shares(value: Any) -> dict[str, float]:
    shares = _by_station(value)
    for key, share in shares.items():
        if share < 0:
            raise ValueError(f"{key}: {share:g} is not a number of at least 0")
        if share > 1 and key != "cores":
            raise ValueError(f"{key}: {share:g} is not a share of the time, from 0 to 1")
    return shares


def _lengths(value: Any) -> dict[str, float]:
    lengths = _by_station(value)
    for key, length in lengths.items():
        if not length > 0:
            raise ValueError(f"{key}: {length:g} is not a number above 0")
    return lengths


def _device_kinds(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError("write a mapping, for example {gpu: {solo_seconds: 60}}")
    if any(not isinstance(kind, str) or not kind.strip() for kind in value):
        raise ValueError("a kind of device is gpu, cpu, or a GPU's type such as NVIDIA H200")
    return value


def _as(schema: dict[str, Any], check: Any) -> tuple[BeforeValidator, WithJsonSchema]:
    return BeforeValidator(check), WithJsonSchema(schema)


_SCALAR_SCHEMA = {"type": ["string", "number", "boolean"]}
_SIZE_SCHEMA = {"type": ["string", "integer"], "examples": ["6GiB", "512MiB"], "minimum": 1}
_SHARES_SCHEMA = {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}

Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]
Count = Annotated[int, Field(ge=1, le=_LARGEST)]
Size = Annotated[int, *_as(_SIZE_SCHEMA, _size)]
Seconds = Annotated[
    float, *_as({"type": ["string", "number"], "examples": ["90s", "15min", "01:30:00"]}, _seconds)
]
Words = Annotated[
    str | tuple[str, ...],
    *_as(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": _SCALAR_SCHEMA, "minItems": 1}]},
        _words,
    ),
]
Environment = Annotated[
    dict[str, str], *_as({"type": "object", "additionalProperties": _SCALAR_SCHEMA}, _environment)
]
Names = Annotated[
    tuple[str, ...],
    *_as({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, _names),
]
DeviceName = Annotated[
    str, *_as({"type": "string", "examples": [*_DEVICES, "GPU-5fd4b2b6..."]}, _device)
]
Fuse = Annotated[
    str | int,
    *_as({"anyOf": [{"enum": ["auto", "never"]}, {"type": "integer", "minimum": 1}]}, _fuse),
]
Shares = Annotated[dict[str, float], *_as(_SHARES_SCHEMA, _shares)]
Lengths = Annotated[
    dict[str, float],
    *_as(
        {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
        _lengths,
    ),
]
Optimizer = Annotated[
    dict[str, Any], WithJsonSchema({"type": ["string", "object"], "examples": ["adam"]})
]
Sweep = Annotated[
    dict[str, list[Any]],
    WithJsonSchema(
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "array", "minItems": 1},
        }
    ),
]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DeviceProfile(_Strict):
    """What a job uses on a kind of device; the words are those of `rmixer.model.Profile`."""

    threads: Count | None = None
    solo_seconds: Annotated[float, Field(gt=0)] | None = None
    step_seconds: Annotated[float, Field(gt=0)] | None = None
    startup_seconds: Annotated[float, Field(ge=0)] | None = None
    memory: Size | None = None
    demand: Shares | None = None
    granularity: Lengths | None = None


class DeclaredProfile(DeviceProfile):
    """What a job uses, declared by who knows it; ``devices`` says where that differs.

    What stands beside ``devices`` holds on every device. Where ``devices`` is given, the job trains
    on these kinds alone: ``cpu``, ``gpu`` for any GPU, or a GPU's type.
    """

    devices: Annotated[dict[str, DeviceProfile], BeforeValidator(_device_kinds)] | None = None


class JobKeys(_Strict):
    """The keys that a job and the defaults share."""

    model: Text | None = Field(None, description="A model of ours, or pkg.module:Class.")
    params: dict[str, Any] | None = Field(None, description="Parameters of the model.")
    optimizer: Optimizer | None = Field(None, description="A name, or a mapping with name and lr.")
    data: dict[str, Any] | None = Field(None, description="format, path, schema, valid ...")
    batch_size: Count | None = Field(None, description="Samples per step; 2048 if absent.")
    epochs: Count | None = Field(None, description="Passes over the training rows; 1 if absent.")
    steps: Count | None = Field(None, description="Train so many steps instead of whole epochs.")
    seed: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    command: Words | None = Field(
        None, description="Any program; a list is executed as it is, a text is split, no shell."
    )
    python: Text | None = Field(None, description="The interpreter: a path, or a name on PATH.")
    workdir: Text | None = Field(None, description="Where it runs; the jobs file's directory.")
    env: Environment | None = Field(None, description="Environment variables.")
    device: DeviceName | None = Field(None, description="auto, cpu, gpu, or a device's UUID.")
    gpus: Annotated[int, Field(ge=0, le=1024)] | None = Field(None, description="Whole GPUs.")
    threads: Count | None = Field(None, description="Threads; absent: the dispatcher chooses.")
    memory: Size | None = Field(None, description="Host memory it may need.")
    gpu_memory: Size | None = Field(None, description="Device memory it may need.")
    retries: Annotated[int, Field(ge=0, le=MAX_RETRIES)] | None = Field(
        None, description="Further attempts after a failure; 0 if absent."
    )
    timeout: Seconds | None = Field(None, description="An attempt that takes longer is ended.")
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = Field(
        None, description="Higher goes first; 0 if absent."
    )
    after: Names | None = Field(None, description="Jobs that must have succeeded before.")
    sweep: Sweep | None = Field(None, description="One job per combination of these values.")
    fuse: Fuse | None = Field(None, description="auto, never, or how many jobs may be fused.")
    profile: DeclaredProfile | None = Field(None, description="What the job uses, if known.")


class Defaults(JobKeys):
    """What every job has unless it says otherwise."""


class JobEntry(JobKeys):
    """One job, or one sweep of jobs."""

    name: Text = Field(
        description="Unique; {key} stands for the value of a sweep, and the values of keys that it "
        "does not mention are appended."
    )


class JobsDocument(_Strict):
    """A jobs file of RMixer."""

    schema_version: Literal[1] = 1
    policy: str | dict[str, Any] | None = Field(None, description="For example fixed:k=2.")
    defaults: Defaults | None = None
    jobs: list[JobEntry] = Field(min_length=1)


#: Keys that only a training of ours has.
MODEL_KEYS = ("model", "params", "optimizer", "data", "batch_size", "epochs", "steps", "seed",
              "fuse")  # fmt: skip
JOB_KEYS = sorted(JobEntry.model_fields)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a jobs file, for editors. Any value of a job may be a template."""
    schema = JobsDocument.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "RMixer jobs file"
    for name in ("JobEntry", "Defaults"):
        properties = schema["$defs"][name]["properties"]
        for key, value in properties.items():
            if key != "sweep" and "anyOf" in value and {"type": "string"} not in value["anyOf"]:
                value["anyOf"].append(dict(_TEMPLATE))
    return schema
