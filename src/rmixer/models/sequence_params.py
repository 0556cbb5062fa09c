"""The parameters of the models over sequences. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from rmixer.models.kinds import ModelParams, Sizes, choice, sizes

ACTIVATIONS = ("dice", "prelu", "relu", "sigmoid")


@dataclass(frozen=True, slots=True, kw_only=True)
class DINParams(ModelParams):
    """`rmixer.models.din.DIN`.

    Attributes:
        attention_mlp: widths of the hidden layers of the activation unit.
        mlp: widths of the hidden layers of the head; one output is added.
        activation: of both: dice, prelu, relu or sigmoid.
    """

    attention_mlp: Sizes = sizes((80, 40))
    mlp: Sizes = sizes((200, 80))
    activation: str = choice("dice", ACTIVATIONS, "activation")
