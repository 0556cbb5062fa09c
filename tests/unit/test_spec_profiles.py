"""Declared profiles: per kind of device, with what holds on all of them."""

from __future__ import annotations

from rmixer.spec import declared_profiles, jobs_from_dicts


def test_a_profile_per_kind_of_device() -> None:
    """A GPU's own type beats `gpu`; kinds that are not named are missing; steps give the length."""
    profile = {
        "startup_seconds": 2,
        "devices": {
            "gpu": {"step_seconds": 0.1, "demand": {"compute": 0.3}, "granularity": {"compute": 2}},
            "NVIDIA H200": {"solo_seconds": 9},
        },
    }
    keys = {"name": "a", "model": "dlrm", "steps": 100, "profile": profile}
    (spec,) = jobs_from_dicts([keys], require_data=False)
    found = declared_profiles(spec, ["cpu", "Tesla T4", "NVIDIA H200"])
    assert set(found) == {"Tesla T4", "NVIDIA H200"}
    assert (found["Tesla T4"].solo_seconds, found["NVIDIA H200"].solo_seconds) == (12.0, 9)
    assert found["Tesla T4"].demand == {"compute": 0.3}
    assert found["Tesla T4"].granularity == {"compute": 2}


def test_a_flat_profile_holds_everywhere() -> None:
    """Without `devices` the same is said of every kind; without a profile nothing."""
    keys = {"name": "a", "command": "true", "profile": {"solo_seconds": 5}}
    flat, none = jobs_from_dicts([keys, {"name": "b", "command": "true"}])
    assert {p.solo_seconds for p in declared_profiles(flat, ["cpu", "T4"]).values()} == {5}
    assert declared_profiles(none, ["cpu"]) == {}
