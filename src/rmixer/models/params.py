"""The parameters of the models by name. Standard library only.

A jobs file is checked with `validate` before anything is started, so no torch is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmixer.errors import UsageError, unknown_name
from rmixer.models import MODELS
from rmixer.models.field_params import (
    DCNParams,
    DCNv2Params,
    DeepFMParams,
    DIFMParams,
    DLRMParams,
    FLENParams,
    WideDeepParams,
)
from rmixer.models.kinds import ModelParams, Problem, faults
from rmixer.models.sequence_params import (
    BERT4RecParams,
    BSTParams,
    DIENParams,
    DINParams,
    DMRParams,
    DPINParams,
)

PARAMS: dict[str, type[ModelParams]] = {
    "bert4rec": BERT4RecParams,
    "bst": BSTParams,
    "dcn": DCNParams,
    "dcn_v2": DCNv2Params,
    "deepfm": DeepFMParams,
    "dien": DIENParams,
    "difm": DIFMParams,
    "din": DINParams,
    "dlrm": DLRMParams,
    "dmr": DMRParams,
    "dpin": DPINParams,
    "flen": FLENParams,
    "widedeep": WideDeepParams,
}


def validate(model: str, params: Mapping[str, Any]) -> list[Problem]:
    """Check the name of a model and its ``params``.

    Returns:
        One ``(key, message)`` per problem; the key is a parameter, or ``""`` for the model's name.
        Empty if all is well. The parameters of a class of somebody else's are not checked.
    """
    if model not in MODELS:
        return [] if ":" in model else [("", unknown_name("model", model, MODELS))]
    return faults(PARAMS[model], model, params)


def parse(model: str, params: Mapping[str, Any]) -> ModelParams:
    """The parameters of a built-in model.

    Raises:
        UsageError: naming the key, the value, and what would be right.
    """
    problems = validate(model, params)
    if problems:
        raise UsageError("; ".join(f"params.{key}: {message}" for key, message in problems))
    plain: dict[str, Any] = {
        key: _frozen(value) for key, value in params.items() if value is not None
    }
    return PARAMS[model](**plain)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
