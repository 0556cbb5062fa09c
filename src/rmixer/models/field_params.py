"""The parameters of the models over fields. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmixer.models.kinds import DEFAULT_DIM, ModelParams, Problem, Sizes, share, sizes


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
