"""The parameters of the models over sequences. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from rmixer.models.kinds import ModelParams, Sizes, choice, name, names, number, share, size, sizes

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DIENParams(ModelParams):
    """`rmixer.models.dien.DIEN`.

    Attributes:
        mlp: widths of the hidden layers of the head; one output is added.
        activation: of the head: dice, prelu, relu or sigmoid.
        auxiliary: weight of the auxiliary part of the objective.
    """

    mlp: Sizes = sizes((200, 80))
    activation: str = choice("dice", ACTIVATIONS, "activation")
    auxiliary: float = number(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BSTParams(ModelParams):
    """`rmixer.models.bst.BST`. Lengths, layers and the head are the paper's.

    Attributes:
        length: so many of the newest entries are looked at.
        layers, heads: of the transformer.
        mlp: widths of the hidden layers of the head; one output is added.
        dropout: share of what a layer gives that a training step leaves out.
    """

    length: int = size(20)
    layers: int = size(1)
    heads: int = size(8)
    mlp: Sizes = sizes((1024, 512, 256))
    dropout: float = share(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DMRParams(ModelParams):
    """`rmixer.models.dmr.DMR`. Length, sample and weight are the paper's.

    Attributes:
        length: so many of the newest entries are looked at.
        context: sequences that say one thing more of each entry, where the data have them.
        attention: width of the attention networks.
        mlp: widths of the hidden layers of the head; one output is added.
        auxiliary: weight of the auxiliary part of the objective.
        negatives: items that the newest entry is told from.
    """

    length: int = size(50)
    context: tuple[str, ...] = names(("hist_btag", "hist_time"))
    attention: int = size(64)
    mlp: Sizes = sizes((512, 256, 128))
    auxiliary: float = number(0.1)
    negatives: int = size(2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DPINParams(ModelParams):
    """`rmixer.models.dpin.DPIN`.

    Attributes:
        position: the sparse column of an item's position.
        base_mlp: widths of the layers over item and context.
        width, layers, heads: of the transformer over positions.
        mlp: widths of the hidden layers of the head; one output is added.
    """

    position: str = name("position")
    base_mlp: Sizes = sizes((512, 256, 128))
    width: int = size(64)
    layers: int = size(2)
    heads: int = size(2)
    mlp: Sizes = sizes((128,))


@dataclass(frozen=True, slots=True, kw_only=True)
class BERT4RecParams(ModelParams):
    """`rmixer.models.bert4rec.BERT4Rec`. Widths and layers are the paper's on Beauty.

    Attributes:
        length: so many of the newest entries are looked at.
        layers, heads: of the transformer.
        mask_share: share of the entries that are hidden.
        cloze: weight of finding them in the objective.
        negatives: items that a hidden one is told from.
        dropout: share of what a layer gives that a training step leaves out.
    """

    embedding_dim: int = size(64)
    length: int = size(50)
    layers: int = size(2)
    heads: int = size(2)
    mask_share: float = share(0.2)
    cloze: float = number(1.0)
    negatives: int = size(1000)
    dropout: float = share(0.0)
