"""Machine files: a node that need not be there, for plans and simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rmixer.errors import SpecError, unknown_name
from rmixer.model import Device, Node
from rmixer.spec.document import Document, dotted, read_document
from rmixer.spec.findings import message_of
from rmixer.spec.schema import Size, Text

_MOST_DEVICES = 10_000


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GpuKeys(_Strict):
    """GPUs of one type."""

    kind: Text
    memory: Size
    count: Annotated[int, Field(ge=1, le=_MOST_DEVICES)] = 1
    sharing: Literal["time-slicing", "mps", "exclusive"] = "time-slicing"
    places: Annotated[int, Field(ge=1)] | None = None


class MachineKeys(_Strict):
    """A machine file."""

    name: Text | None = None
    cores: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    memory: Size
    cpu_places: Annotated[int, Field(ge=0)] | None = None
    gpus: list[GpuKeys] = Field(default_factory=list)


def load_machine(path: Path | str) -> Node:
    """The node that a machine file describes.

    ``cpu_places`` jobs at a time may train on the CPU: 0 leaves it to the hosts of the jobs on the
    GPUs, absent sets no limit.

    Raises:
        SpecError: something is not right; the message has file, line and key.
    """
    path = Path(path)
    document = read_document(path)
    try:
        keys = MachineKeys.model_validate(document.tree)
    except ValidationError as error:
        raise _as_spec_error(error, document) from error
    gpus = [one for one in keys.gpus for _ in range(one.count)]
    devices = [] if keys.cpu_places == 0 else [Device(places=keys.cpu_places)]
    devices += [_gpu(one, index) for index, one in enumerate(gpus)]
    if not devices:
        raise SpecError("no job can run: no gpus, and cpu_places is 0", file=path, key="gpus")
    return Node(
        name=keys.name or path.stem,
        cores=tuple(range(keys.cores)),
        memory=keys.memory,
        devices=tuple(devices),
    )


def _gpu(keys: GpuKeys, index: int) -> Device:
    return Device(
        id=f"GPU-{index}",
        kind=keys.kind,
        index=index,
        memory=keys.memory,
        sharing=keys.sharing,
        places=keys.places,
    )


def _as_spec_error(error: ValidationError, document: Document) -> SpecError:
    found = []
    for one in error.errors(include_url=False, include_input=True):
        path = tuple(one["loc"])
        found.append((document.line(path) or 0, path, _text(one, path)))
    found.sort(key=lambda item: item[0])
    line, path, message = found[0]
    rest = [f"{document.file}:{at}: {dotted(key)}: {text}" for at, key, text in found[1:]]
    return SpecError(
        "\n".join([message, *rest]), file=document.file, line=line or None, key=dotted(path)
    )


def _text(one: Any, path: tuple[str | int, ...]) -> str:
    if one["type"] == "extra_forbidden":
        model = GpuKeys if path[0] == "gpus" else MachineKeys
        return unknown_name("key", str(path[-1]), model.model_fields)
    if one["type"] == "missing":
        return "the key is missing"
    return message_of(one, path)
