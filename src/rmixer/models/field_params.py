"""The parameters of the models over fields. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmixer.models.kinds import (
    DEFAULT_DIM,
    ModelParams,
    Problem,
    Sizes,
    choice,
    name_groups,
    share,
    size,
    sizes,
)

Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DLRMParams(ModelParams):
    """`rmixer.models.dlrm.DLRM`.

    Attributes:
        bottom_mlp: widths of the layers over the dense columns; the last is `embedding_dim`.
            None: 512, 256, 64, `embedding_dim`.
        top_mlp: widths of the hidden layers over the interactions; one output is added.
    """

    bottom_mlp: Sizes | None = sizes(None)
    top_mlp: Sizes = sizes((512, 256), may_be_empty=True)

    @property
    def bottom_widths(self) -> Sizes:
        """`bottom_mlp`, or its default."""
        return self.bottom_mlp or (512, 256, 64, self.embedding_dim)

    @classmethod
    def together(cls, params: Mapping[str, Any]) -> list[Problem]:
        """The bottom MLP ends in a vector that is multiplied with embeddings."""
        bottom, dim = params.get("bottom_mlp"), params.get("embedding_dim", DEFAULT_DIM)
        if not bottom or bottom[-1] == dim:
            return []
        right = [*bottom[:-1], dim]
        message = f"{list(bottom)} must end with embedding_dim, which is {dim}: {right}"
        return [("bottom_mlp", message)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepFMParams(ModelParams):
    """`rmixer.models.deepfm.DeepFM`.

    Attributes:
        mlp: widths of the hidden layers; one output is added.
        dropout: share of hidden units that a training step leaves out.
    """

    mlp: Sizes = sizes((400, 400, 400))
    dropout: float = share(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DCNParams(ModelParams):
    """`rmixer.models.dcn.DCN`.

    Attributes:
        cross_layers: how many; the paper takes 6 on Criteo.
        mlp: widths of the layers beside them.
    """

    cross_layers: int = size(6)
    mlp: Sizes = sizes((512, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class DCNv2Params(ModelParams):
    """`rmixer.models.dcn_v2.DCNv2`.

    Attributes:
        cross_layers: how many.
        low_rank: rank of the matrices; 0 for full ones.
        experts: how many low-rank matrices are mixed.
        structure: ``stacked`` or ``parallel``.
        mlp: widths of the layers after or beside the cross layers.
        dropout: share of hidden units of the MLP that a training step leaves out.
    """

    cross_layers: int = size(3)
    low_rank: int = size(0, least=0)
    experts: int = size(1)
    structure: str = choice("stacked", ("parallel", "stacked"), "structure")
    mlp: Sizes = sizes((512, 256))
    dropout: float = share(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DIFMParams(ModelParams):
    """`rmixer.models.difm.DIFM`.

    Attributes:
        mlp: widths of the layers of the bit-level factor.
        heads, head_dim: of the vector-level factor's attention.
    """

    mlp: Sizes = sizes((256, 256))
    heads: int = size(2)
    head_dim: int = size(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class WideDeepParams(ModelParams):
    """`rmixer.models.widedeep.WideDeep`.

    Attributes:
        mlp: widths of the hidden layers; one output is added. 1024, 512, 256 in the paper.
        dropout: share of hidden units that a training step leaves out.
        crosses: lists of fields whose combinations get a weight of their own.
        cross_buckets: rows that the combinations of a cross share by their hash.
    """

    mlp: Sizes = sizes((512, 256, 128))
    dropout: float = share(0.0)
    crosses: Names = name_groups((), "[[C1, C2]]")
    cross_buckets: int = size(100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FLENParams(ModelParams):
    """`rmixer.models.flen.FLEN`.

    Attributes:
        groups: columns that belong together (user, item, context); None: Avazu's where the data
            have its columns, else thirds of the columns.
        mlp: widths of the hidden layers.
        dropout: share of what both parts give that a training step leaves out.
    """

    groups: Names | None = name_groups(None, "[[user, age], [item]]")
    mlp: Sizes = sizes((512, 256))
    dropout: float = share(0.0)
