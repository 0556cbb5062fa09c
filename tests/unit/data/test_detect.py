"""A format that is not named is found by content; one that is not right is told so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_examples import EXAMPLES, columns, fuxictr, parquet, torchrec
from rmixer.data import FORMATS, cache, detect, generate, schema
from rmixer.data.format import load_format
from rmixer.data.generated import shape, sizes_of
from rmixer.errors import DataError
from rmixer.train.config import JobConfig
from rmixer.train.worker import main

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
TOLD = sorted(name for name in FORMATS if hasattr(load_format(name), "looks"))


def written(name: str, folder: Path) -> dict:
    """A file of that format, and what a jobs file says of it; no format."""
    if name in EXAMPLES:
        data = EXAMPLES[name](folder)
    elif name == "recbole":
        place = folder / "toys"
        place.mkdir()
        (place / "toys.inter").write_text("user_id:token\titem_id:token\trating:float\nu\ti\t1\n")
        data = {"path": str(place), "schema": {"label": "rating", "sparse": ["item_id"]}}
    else:
        like = {"csv": "behaviour"}.get(name, name)
        path = folder / f"{name}.txt.gz"
        generate.write(like, {**sizes_of(like, rows=40)}, path)
        data = {**shape(like).data, "path": str(path)}
    return {key: value for key, value in data.items() if key != "format"}


def fault(data: dict) -> str:
    with pytest.raises(DataError) as caught:
        detect.resolve(schema.parse(data))
    assert str(data["path"]) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("said", [{}, {"format": "auto"}])
def test_every_format_is_found(name: str, said: dict, tmp_path: Path) -> None:
    """And the parsed data have the key that they have if the format is named."""
    data = {**written(name, tmp_path), **said}
    assert schema.validate(data) == []
    spec = schema.parse(data)
    assert detect.resolve(spec).format == name
    named = schema.parse({**data, "format": name})
    keys = [
        cache.cache_key(found, detect.opened(found), tmp_path / "cache")
        for found in (detect.resolve(spec), detect.resolve(named))
    ]
    assert keys[0] == keys[1]


def test_a_transform_of_the_format_that_is_found_is_the_default(tmp_path: Path) -> None:
    spec = detect.resolve(schema.parse(written("criteo", tmp_path)))
    assert spec.transform.dense == "log1p"


def test_a_form_is_found_where_the_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "training.txt"
    path.write_text("\t".join(["0", "1", *"123456789", "10"]) + "\n")
    spec = detect.resolve(schema.parse({"format": "kdd2012", "path": str(path)}))
    assert spec.options["form"] == "raw"
    said = schema.parse({"format": "kdd2012", "path": str(path), "form": "dpin"})
    assert detect.resolve(said).options["form"] == "dpin"


def test_what_is_nothing_that_is_known(tmp_path: Path) -> None:
    """The message names what was looked for."""
    path = tmp_path / "a.txt"
    path.write_text("once upon a time\n")
    message = fault({"path": str(path)})
    assert "'once upon a time'" in message
    assert all(name in message for name in TOLD)
    path.write_bytes(b"\x00\x01\x02")
    assert "begins with the bytes" in fault({"path": str(path)})
    path.write_bytes(b"")
    assert "is empty" in fault({"path": str(path)})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.md").write_text("x")
    assert "is a folder with notes.md" in fault({"path": str(tmp_path / "folder")})
    assert "no such file" in fault({"path": str(tmp_path / "none")})


def test_a_table_needs_a_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,0\n2,1\n")
    assert "looks like `format: csv`, which needs a `schema`" in fault({"path": str(path)})
    path = parquet(tmp_path)["path"]
    assert "looks like `format: parquet`, which needs a `schema`" in fault({"path": path})


def test_a_schema_where_the_format_has_its_own(tmp_path: Path) -> None:
    """The map is beside the rows; with a schema they are plain parquet."""
    data = fuxictr(tmp_path, "parquet")
    schema_ = {"label": "click", "sparse": ["user"]}
    path = str(Path(data["path"]) / "train.parquet")
    assert detect.resolve(schema.parse({"path": path})).format == "fuxictr"
    assert detect.resolve(schema.parse({"path": path, "schema": schema_})).format == "parquet"
    message = fault({"path": torchrec(tmp_path)["path"], "schema": schema_})
    assert "looks like `format: torchrec`, which takes no `schema`" in message


def test_options_that_the_format_does_not_take(tmp_path: Path) -> None:
    data = {**written("criteo", tmp_path), "negatives": 2}
    assert schema.validate(data) == []  # some format takes it
    message = fault(data)
    assert "looks like `format: criteo`, but data.negatives: unknown key" in message
    ((key, problem),) = schema.validate({**written("criteo", tmp_path), "negative": 2})
    assert (key, "did you mean 'negatives'" in problem) == ("negative", True)


@pytest.mark.parametrize(
    ("said", "real"),
    [("criteo", "amazon"), ("amazon", "criteo"), ("avazu", "alimama"), ("kdd2012", "fuxictr"),
     ("criteo", "paddlerec_slots"), ("torchrec", "beauty"), ("fuxictr", "torchrec")],
)  # fmt: skip
def test_another_format_than_was_said(said: str, real: str, tmp_path: Path) -> None:
    """The error says what is wrong for the format, and what the content looks like."""
    data = {"path": written(real, tmp_path)["path"], "format": said}
    with pytest.raises(DataError) as caught:
        cache.prepare(schema.parse(data), tmp_path / "cache")
    assert f"the content looks like `format: {real}`" in str(caught.value)
    assert str(caught.value).count("looks like") == 1


def test_a_fault_of_the_right_format_is_not_explained_away(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1;2;3;4;0\n" * 30 + "1;2;3;4;7\n")
    with pytest.raises(DataError) as caught:
        cache.prepare(schema.parse({"format": "amazon", "path": str(path)}), tmp_path / "cache")
    assert ":31: column label: '7'" in str(caught.value)
    assert "looks like" not in str(caught.value)


@pytest.mark.parametrize("name", ["fuxictr", "criteo"])
def test_a_model_keeps_what_was_found(name: str, tmp_path: Path) -> None:
    """It reads rows of that format without the file that it was trained on."""
    from rmixer.train import artifact  # noqa: PLC0415 - imports torch

    data = written(name, tmp_path)
    config = {
        "schema_version": 1, "name": "a", "model": "deepfm", "params": {"embedding_dim": 2},
        "optimizer": {"name": "adagrad", "lr": 0.001}, "data": data, "batch_size": 16, "steps": 2,
        "cache_dir": str(tmp_path / "cache"), "progress_path": str(tmp_path / "progress"),
        "result_path": str(tmp_path / "result.json"), "model_dir": str(tmp_path / "model"),
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert JobConfig.read(tmp_path / "config.json").data == data
    assert main([str(tmp_path / "config.json")]) == 0
    Path(data["path"]).rename(tmp_path / "moved")
    model = artifact.load(tmp_path / "model")
    assert model.config["data"]["format"] == name
    if name == "fuxictr":
        raw = {key: values[:5] for key, values in columns().items()}
        predicted = model.predict({**raw, "hist": raw["hist"].tolist()})
    else:
        predicted = model.predict(tmp_path / "moved")[:5]
    assert predicted.shape == (5,)
    assert len(np.unique(predicted)) > 1
