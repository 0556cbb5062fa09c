"""DLRM, DeepFM and DCN v2 as PyTorch scripts usually have them: one `nn.Embedding` per column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class TsvRows(Dataset):
    """Rows of a file: a label, numbers, ids, between tabs; each is parsed when it is asked for."""

    def __init__(self, path: str, dense: int) -> None:
        with open(path) as file:  # noqa: PTH123
            self.lines = file.readlines()
        self.dense = dense

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        words = self.lines[index].rstrip("\n").split("\t")
        numbers = torch.tensor([float(word) for word in words[1 : 1 + self.dense]])
        ids = torch.tensor([int(word) for word in words[1 + self.dense :]])
        return numbers, ids, torch.tensor(float(words[0]))


class Tables(nn.Module):
    """One table per column, looked up one by one; ``[B, F]`` to ``[B, F, D]``."""

    def __init__(self, rows: Sequence[int], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, dim) for count in rows)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)

    def take(self, weight: Tensor) -> None:
        """The rows of one table for all columns."""
        parts = weight.split([table.num_embeddings for table in self.tables])
        with torch.no_grad():
            for table, part in zip(self.tables, parts, strict=True):
                table.weight.copy_(part)


def mlp(width: int, widths: Sequence[int], *, last_linear: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, size in enumerate(widths):
        layers.append(nn.Linear(width, size))
        if not (last_linear and i == len(widths) - 1):
            layers.append(nn.ReLU())
        width = size
    return nn.Sequential(*layers)


class PlainDLRM(nn.Module):
    """`rmixer.models.dlrm` with its defaults."""

    def __init__(self, rows: Sequence[int], dense: int, dim: int = 16) -> None:
        super().__init__()
        self.embedding = Tables(rows, dim)
        self.bottom = mlp(dense, (512, 256, 64, dim), last_linear=False)
        vectors = len(rows) + 1
        self.pairs = torch.tril_indices(vectors, vectors, -1)
        self.top = mlp(self.pairs.shape[1] + dim, (512, 256, 1), last_linear=True)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), self.embedding(ids)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)

    def take(self, ours: nn.Module) -> None:
        self.embedding.take(ours.embedding.weight)
        self.bottom.load_state_dict(ours.bottom.state_dict())
        self.top.load_state_dict(ours.top.state_dict())


class PlainDeepFM(nn.Module):
    """`rmixer.models.deepfm` with its defaults."""

    def __init__(self, rows: Sequence[int], dense: int, dim: int = 16) -> None:
        super().__init__()
        self.embedding, self.first = Tables(rows, dim), Tables(rows, 1)
        self.dense = nn.Parameter(torch.empty(dense, dim + 1))
        self.bias = nn.Parameter(torch.zeros(1))
        self.mlp = mlp((len(rows) + dense) * dim, (400, 400, 400, 1), last_linear=True)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        numbers = dense.unsqueeze(2) * self.dense
        v = torch.cat([self.embedding(ids), numbers[..., :-1]], 1)
        first = self.first(ids).sum((1, 2)) + numbers[..., -1].sum(1)
        second = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.bias + first + second + self.mlp(v.flatten(1)).squeeze(1)

    def take(self, ours: nn.Module) -> None:
        self.embedding.take(ours.embedding.weight[:, :-1])
        self.first.take(ours.embedding.weight[:, -1:])
        with torch.no_grad():
            self.dense.copy_(ours.dense)
            self.bias.copy_(ours.bias)
        self.mlp.load_state_dict(ours.mlp.state_dict())


class PlainDCNv2(nn.Module):
    """`rmixer.models.dcn_v2` with its defaults."""

    def __init__(self, rows: Sequence[int], dense: int, dim: int = 16, layers: int = 3) -> None:
        super().__init__()
        width = len(rows) * dim + dense
        self.embedding = Tables(rows, dim)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.deep = mlp(width, (512, 256), last_linear=False)
        self.head = nn.Linear(256, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x0 = torch.cat([self.embedding(ids).flatten(1), dense], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(self.deep(x)).squeeze(1)

    def take(self, ours: nn.Module) -> None:
        self.embedding.take(ours.embedding.weight)
        for plain, layer in zip(self.cross, ours.cross, strict=True):
            plain.load_state_dict(layer.linear.state_dict())
        self.deep.load_state_dict(ours.deep.state_dict())
        self.head.load_state_dict(ours.head.state_dict())


class RowwiseAdagrad(torch.optim.Optimizer):
    """``s += mean(g g)`` per row, ``w -= lr g / (sqrt(s) + eps)``, over the whole table."""

    def __init__(self, params: list[nn.Parameter], lr: float, eps: float = 1e-10) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                sums = self.state[param].setdefault("s", torch.zeros_like(param[:, :1]))
                sums += (param.grad * param.grad).mean(1, keepdim=True)
                param.sub_(group["lr"] * param.grad / (sums.sqrt() + group["eps"]))


PLAIN = {"dlrm": PlainDLRM, "deepfm": PlainDeepFM, "dcn_v2": PlainDCNv2}
