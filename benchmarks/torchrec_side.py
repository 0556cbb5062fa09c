"""The other side of ``against_torchrec.py``: the same DLRM with TorchRec's fused tables on a CPU.

Started with an interpreter that has torchrec and fbgemm-gpu-cpu; nothing of rmixer is imported. It
reads the rows, the starting weights and the batches that ``against_torchrec.py`` wrote, waits for a
line on stdin before each round, and answers with a line of JSON: the losses of the first round, and
samples per second.

The tables are one ``FusedEmbeddingBagCollection`` with row-wise Adagrad in the backward pass, as
TorchRec's own DLRM example has it; the dense layers use ``torch.optim.Adagrad``.
"""

import itertools
import json
import sys
import time

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType  # noqa: F401 - registers the operators
from torch import nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad


class Model(nn.Module):
    """DLRM: sums of embeddings, a bottom MLP, dot products of pairs, a top MLP."""

    def __init__(
        self, rows: list[int], dim: int, bottom: list[int], top: list[int], lr: float
    ) -> None:
        super().__init__()
        self.names = [f"f{i}" for i in range(len(rows))]
        tables = [
            EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=n, feature_names=[name])
            for name, n in zip(self.names, rows, strict=True)
        ]
        self.tables = FusedEmbeddingBagCollection(
            tables, RowWiseAdagrad, {"lr": lr, "eps": 1e-10}, device=torch.device("cpu")
        )
        self.bottom, self.top = mlp(bottom, last=True), mlp(top, last=False)
        i, j = torch.tril_indices(len(rows) + 1, len(rows) + 1, -1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        size = len(dense)
        features = KeyedJaggedTensor(
            keys=self.names,
            values=ids.T.reshape(-1),
            lengths=torch.ones(ids.numel(), dtype=torch.int32),
        )
        vectors = self.tables(features).values().view(size, len(self.names), -1)
        low = self.bottom(dense)
        both = torch.cat([low.unsqueeze(1), vectors], 1)
        pairs = torch.bmm(both, both.transpose(1, 2))[:, self.i, self.j]
        return self.top(torch.cat([low, pairs], 1)).squeeze(1)


def mlp(widths: list[int], *, last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for at, (a, b) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(a, b))
        if last or at < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def take(model: Model, weights: dict) -> None:
    """The weights that the other side starts from."""
    with torch.no_grad():
        state = model.tables.state_dict()
        for name, table in zip(model.names, weights["tables"], strict=True):
            state[f"embedding_bags.{name}.weight"].copy_(table)
        for part in ("bottom", "top"):
            linear = [layer for layer in getattr(model, part) if isinstance(layer, nn.Linear)]
            for layer, (weight, bias) in zip(linear, weights[part], strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)


def main() -> None:
    given = torch.load(sys.argv[1])
    rows, label = given["ids"].numpy(), given["label"].numpy()
    dense = given["dense"].numpy()
    sizes = [len(table) for table in given["weights"]["tables"]]
    model = Model(sizes, given["dim"], given["bottom"], given["top"], given["lr"])
    take(model, given["weights"])
    rest = [p for part in (model.bottom, model.top) for p in part.parameters()]
    optimizer = torch.optim.Adagrad(rest, lr=given["lr"])
    losses: list[float] = []
    for _ in sys.stdin:
        began, count = time.perf_counter(), 0
        seen = []
        for batch in given["batches"]:
            at = batch.numpy()
            x = torch.from_numpy(np.take(dense, at, axis=0))
            ids = torch.from_numpy(np.take(rows, at, axis=0))
            y = torch.from_numpy(np.take(label, at))
            loss = nn.functional.binary_cross_entropy_with_logits(model(x, ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
            count += len(at)
        seconds = time.perf_counter() - began
        losses = losses or [float(one) for one in seen]
        print(json.dumps({"rate": count / seconds, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
