"""What a job declares of itself under ``profile``, per kind of device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rmixer.model import CPU, JobSpec, Profile

#: Stands for every type of GPU that is not named itself.
ANY_GPU = "gpu"


def declared_profiles(spec: JobSpec, kinds: Iterable[str]) -> dict[str, Profile]:
    """The declared profile of a job on each of these kinds of device.

    Args:
        spec: the job.
        kinds: kinds of device, ``cpu`` or a GPU's type.

    Returns:
        By kind; empty where the job declares nothing. Where it names kinds, the others are missing:
        there it cannot train.
    """
    declared: Mapping[str, Any] | None = spec.payload.get("profile")
    if not declared:
        return {}
    shared = {key: value for key, value in declared.items() if key != "devices"}
    devices = declared.get("devices")
    found = {}
    for kind in kinds:
        own = {} if devices is None else _of_kind(devices, kind)
        if own is not None:
            found[kind] = _profile(spec, kind, {**shared, **own})
    return found


def _of_kind(devices: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = devices.get(kind)
    return devices.get(ANY_GPU) if found is None and kind != CPU else found


def _profile(spec: JobSpec, kind: str, keys: Mapping[str, Any]) -> Profile:
    step_seconds, startup = keys.get("step_seconds"), keys.get("startup_seconds") or 0.0
    solo_seconds = keys.get("solo_seconds")
    if solo_seconds is None and step_seconds is not None and spec.total_steps:
        solo_seconds = startup + step_seconds * spec.total_steps
    return Profile(
        device_kind=kind,
        threads=keys.get("threads") or spec.threads or 1,
        step_seconds=step_seconds,
        demand=dict(keys.get("demand") or {}),
        granularity=dict(keys.get("granularity") or {}),
        total_steps=spec.total_steps or 0,
        startup_seconds=startup,
        solo_seconds=solo_seconds,
        memory=keys.get("memory") or 0,
        source="declared",
    )
