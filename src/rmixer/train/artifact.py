"""A trained model on disk, and back: weights, configuration, vocabulary.

model/
  config.json       model, params, data (without its path), the shape of the data, versions
  weights.pt        torch.save of the state dict
  vocabulary.npz    vocabularies and the dense transform
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rmixer.data import schema
from rmixer.data.batch import Batch, Lists
from rmixer.data.cache import read_manifest
from rmixer.data.dataset import lists
from rmixer.data.encode import Encoder
from rmixer.data.format import load_format
from rmixer.data.info import DataInfo
from rmixer.errors import StorageError, UsageError
from rmixer.models.model import build
from rmixer.train.loop import EVALUATION_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from torch import nn

    from rmixer.data.encode import EncodedChunk
    from rmixer.data.format import Chunk

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A trained model, ready to use.

    Attributes:
        module: the `nn.Module`, in evaluation mode.
        config: what ``config.json`` says.
        schema: the columns of the raw data.
        info: names and sizes of the encoded columns.
        encoder: raw rows to the model's columns, as in training.
    """

    module: nn.Module
    config: Mapping[str, Any]
    info: DataInfo
    encoder: Encoder

    @property
    def schema(self) -> schema.Schema:
        """The columns of the raw data."""
        return self.encoder.schema

    def predict(self, rows: Any) -> NDArray[np.float32]:
        """The probability of each raw row being positive.

        Args:
            rows: a path to a file of the format that the model was trained on, a polars or pandas
                frame, or a mapping of column names to values. The label may be absent.

        Raises:
            DataError: something in the rows is not right.
        """
        parts = [np.empty(0, np.float32)]
        with torch.inference_mode():
            for chunk in self._chunks(rows):
                batches = _batches(self.encoder.encode(chunk), self.info)
                parts += [torch.sigmoid(self.module(b)).float().numpy() for b in batches]
        return np.concatenate(parts)

    def _chunks(self, rows: Any) -> Iterator[Chunk]:
        spec = _data_spec(self.config["data"])
        return load_format(spec.format)(spec).chunks_of(rows)


def save(
    folder: Path,
    module: nn.Module,
    *,
    model: str,
    params: Mapping[str, Any],
    data: Mapping[str, Any],
    info: DataInfo,
    data_folder: Path,
    extra: Mapping[str, Any],
) -> None:
    """Write a model; the folder appears when it is whole, in place of an older one.

    Args:
        folder: ``.../model``.
        module: the trained model.
        model: its name.
        params: its parameters.
        data: the ``data`` of the job.
        info: the shape of the data.
        data_folder: the data set in the cache, for its vocabulary.
        extra: what else ``config.json`` should say.

    Raises:
        OSError: it cannot be written.
    """
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    config = {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "params": dict(params),
        "data": _as_read(data, data_folder),
        "info": info.to_dict(),
        "torch": str(torch.__version__),
        **extra,
    }
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        with (part / "weights.pt").open("wb") as file:
            torch.save(module.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        shutil.copyfile(data_folder / "vocabulary.npz", part / "vocabulary.npz")
        (part / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _as_read(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What to say of rows of that data, without a path: with the format and what files told."""
    identity = read_manifest(folder)["identity"]
    kept = {key: value for key, value in data.items() if key != "path"}
    return {**kept, "format": identity["format"], **identity["options"]}


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """The model in a ``model/`` folder, or in a job's folder that holds one.

    Raises:
        UsageError: there is none.
        StorageError: it is damaged.
    """
    folder = Path(path)
    if not (folder / "weights.pt").exists():
        folder = folder / "model"
    if not (folder / "weights.pt").exists():
        raise UsageError(f"{path}: no model here; name a job's folder, or its model/")
    try:
        config = json.loads((folder / "config.json").read_text())
        info = DataInfo.from_dict(config["info"])
        state = torch.load(folder / "weights.pt", weights_only=True)
        spec = _data_spec(config["data"])
        encoder = Encoder.load(folder, load_format(spec.format)(spec).schema)
        module = build(config["model"], config["params"], info)
        module.load_state_dict(state)
    except (OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise StorageError(f"{folder}: the model cannot be read: {error}") from error
    return LoadedModel(module.eval(), config, info, encoder)


def _data_spec(data: Mapping[str, Any]) -> schema.DataSpec:
    """The data of a model; its path is not known any more and not needed."""
    spec = schema.parse({**data, **({"path": "-"} if "like" not in data else {})})
    options = {key: value for key, value in spec.options.items() if key != "path"}
    return schema.DataSpec(
        format=spec.format, transform=spec.transform, valid=spec.valid, options=options
    )


def _batches(chunk: EncodedChunk, info: DataInfo) -> Iterator[Batch]:
    rows = len(chunk.dense_BN)
    offsets = [np.concatenate([[0], np.cumsum(lengths)]) for _, lengths in chunk.sequences]
    for start in range(0, rows, EVALUATION_BATCH):
        numbers = np.arange(start, min(rows, start + EVALUATION_BATCH))
        sequences: dict[str, Lists] = {}
        for k, sequence in enumerate(info.sequences):
            sequences[sequence.name] = lists(chunk.sequences[k][0], offsets[k], numbers)
        yield Batch(
            dense_BN=torch.from_numpy(chunk.dense_BN[numbers]),
            sparse_BF=torch.from_numpy(chunk.sparse_BF[numbers]),
            label_B=torch.zeros(len(numbers)),
            sequences=sequences,
        )
