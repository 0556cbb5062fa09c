"""Data of the formats of tables, 700 rows each, for the tests that every format gets."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

ROWS = 700


def columns() -> dict[str, np.ndarray]:
    """A label, two numbers, two fields of ids from 1, and lists of up to 5 of them, padded."""
    generator = np.random.default_rng(0)
    hist = generator.integers(1, 40, (ROWS, 5)).astype(np.int32)
    hist[np.arange(5) >= generator.integers(0, 6, ROWS)[:, None]] = 0
    return {
        "click": generator.integers(0, 2, ROWS).astype(np.float64),
        "price": generator.normal(size=ROWS),
        "age": generator.integers(0, 90, ROWS).astype(np.float32),
        "user": generator.integers(1, 30, ROWS),
        "item": generator.integers(1, 40, ROWS),
        "hist": hist,
    }


def parquet(folder: Path) -> dict:
    """One file; the lists without padding."""
    frame = pl.DataFrame(columns())
    lists = pl.col("hist").arr.to_list()
    frame = frame.with_columns(lists.list.eval(pl.element().filter(pl.element() != 0)))
    path = folder / "rows.parquet"
    frame.write_parquet(path, row_group_size=256)
    schema = {
        "label": "click", "dense": ["price", "age"], "sparse": ["user", "item"],
        "sequence": {"hist": {"shares": "item"}},
    }  # fmt: skip
    return {"format": "parquet", "path": str(path), "schema": schema}


def feature_map() -> dict:
    """What FuxiCTR would say of the columns."""
    features = [
        {"price": {"type": "numeric"}},
        {"age": {"type": "numeric"}},
        {"user": {"type": "categorical", "padding_idx": 0, "vocab_size": 30}},
        {"item": {"type": "categorical", "padding_idx": 0, "vocab_size": 40}},
        {"hist": {"type": "sequence", "share_embedding": "item", "padding_idx": 0,
                  "vocab_size": 40, "max_len": 5}},
        {"group": {"type": "meta"}},
    ]  # fmt: skip
    return {"dataset_id": "made", "labels": ["click"], "features": features}


def fuxictr(folder: Path, ending: str = "npz") -> dict:
    """A folder of a data set with its map; ``ending`` npz, parquet or csv."""
    place = folder / f"fuxictr_{ending}"
    place.mkdir(exist_ok=True)
    (place / "feature_map.json").write_text(json.dumps(feature_map()))
    if ending == "npz":
        np.savez_compressed(place / "train.npz", **columns())
    elif ending == "parquet":
        pl.DataFrame(columns()).with_columns(pl.col("hist").arr.to_list()).write_parquet(
            place / "train.parquet"
        )
    else:
        words = pl.col("hist").arr.to_list().list.eval(pl.element().filter(pl.element() != 0))
        text = words.cast(pl.List(pl.String)).list.join("^")
        pl.DataFrame(columns()).with_columns(text).write_csv(place / "train.csv")
    return {"format": "fuxictr", "path": str(place)}


def torchrec(folder: Path, rows: tuple[int, ...] = (500, 200)) -> dict:
    """Some days of arrays."""
    place = folder / "torchrec"
    place.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for day, count in enumerate(rows):
        start = place / f"day_{day}"
        np.save(f"{start}_dense.npy", generator.normal(size=(count, 13)).astype(np.float32))
        ids = generator.integers(-(2**31), 2**31, (40, 26)).astype(np.int32)
        np.save(f"{start}_sparse.npy", ids[generator.integers(0, 40, count)])
        np.save(f"{start}_labels.npy", generator.integers(0, 2, (count, 1)).astype(np.int32))
    return {"format": "torchrec", "path": str(place)}


def slots(folder: Path) -> dict:
    """Criteo's slots; every seventh line lacks two of them."""
    generator = np.random.default_rng(0)
    lines = []
    for row in range(ROWS):
        numbers = [f"dense_feature:{value:.4f}" for value in generator.random(13)]
        ids = [f"{slot}:{generator.integers(0, 50)}" for slot in range(1, 27)]
        words = [f"click:{generator.integers(0, 2)}", *numbers, *(ids[2:] if row % 7 == 0 else ids)]
        lines.append(" ".join(words) + "\n")
    path = folder / "slots.txt"
    path.write_text("".join(lines))
    return {"format": "paddlerec_slots", "path": str(path)}


def slotdnn(folder: Path) -> dict:
    """Lines of feasigns of 64 bits, of three slots."""
    generator = np.random.default_rng(0)
    feasigns = generator.integers(0, 2**64, 60, dtype=np.uint64)
    lines = []
    for _ in range(ROWS):
        words = [f"{generator.integers(0, 2)}:1"]
        for slot in (2, 3, 7):
            words += [f"{f}:{slot}" for f in generator.choice(feasigns, generator.integers(0, 4))]
        lines.append(" ".join(words) + "\n")
    path = folder / "feasigns.txt"
    path.write_text("".join(lines))
    schema = {"label": "1", "sequence": {2: {}, 3: {"max_length": 2}}}
    return {"format": "paddlerec_slotdnn", "path": str(path), "schema": schema}


def fm(folder: Path) -> dict:
    """Ids and values with their names."""
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(ROWS):
        ids = [*range(1, 14), *generator.integers(0, 90, 26)]
        values = [*generator.random(13).round(6), *[1.0] * 26]
        words = [f"feat_idx:{i}" for i in ids] + [f"feat_value:{value}" for value in values]
        lines.append(" ".join([*words, f"label:{generator.integers(0, 2)}"]) + "\n")
    path = folder / "fm.txt"
    path.write_text("".join(lines))
    return {"format": "paddlerec_fm", "path": str(path)}


EXAMPLES: dict[str, Callable[[Path], dict]] = {
    "fuxictr": fuxictr,
    "paddlerec_fm": fm,
    "paddlerec_slotdnn": slotdnn,
    "paddlerec_slots": slots,
    "parquet": parquet,
    "torchrec": torchrec,
}
