"""What a model is, and how one is built by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch.nn.functional as F
from torch import Tensor, nn

from rmixer.errors import UnknownNameError, UsageError
from rmixer.models import MODELS

if TYPE_CHECKING:
    from rmixer.data.batch import Batch
    from rmixer.data.info import DataInfo


class Model(Protocol):
    """An `nn.Module` that turns a batch into log-odds, and can be built from names and numbers.

    A model whose training objective is more than the cross entropy of these log-odds also has
    ``loss(batch) -> Tensor``, a scalar; see `objective`.
    """

    @classmethod
    def from_config(cls, params: Mapping[str, Any], info: DataInfo) -> nn.Module:
        """The model with random weights (seeded by torch's global generator).

        Raises:
            UsageError: a parameter is not right.
        """

    def forward(self, batch: Batch) -> Tensor:
        """The log-odds of each row being positive, ``[B]``."""


def load_model_class(name: str) -> type[Model]:
    """The class of a model, from the table or from ``pkg.module:Class``.

    Raises:
        UsageError: there is none.
    """
    target = MODELS.get(name, name)
    if ":" not in target:
        raise UnknownNameError("model", name, MODELS)
    module, _, attribute = target.partition(":")
    try:
        return cast("type[Model]", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"model {name!r} cannot be loaded: {error}") from error


def build(name: str, params: Mapping[str, Any], info: DataInfo) -> nn.Module:
    """A model by name. See `Model.from_config`."""
    return load_model_class(name).from_config(params, info)


def objective(model: nn.Module, batch: Batch) -> Tensor:
    """What a training step minimizes: the model's own ``loss``, else the mean cross entropy."""
    own = getattr(model, "loss", None)
    if own is not None:
        loss: Tensor = own(batch)
        return loss
    return F.binary_cross_entropy_with_logits(model(batch), batch.label_B)
