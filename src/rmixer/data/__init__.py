"""Data sets: parsed once into columnar files that every job maps.

`FORMATS` is the one table of what ``data.format`` may name. A new format is one class in one file
and one line here. This module and `rmixer.data.schema` import neither torch nor polars, so that a
jobs file is checked without them.
"""

from __future__ import annotations

#: Name of a format -> ``module:Class`` (see `rmixer.data.format.Format`).
FORMATS: dict[str, str] = {
    "alimama": "rmixer.data.alimama:Alimama",
    "amazon": "rmixer.data.amazon:Amazon",
    "avazu": "rmixer.data.avazu:Avazu",
    "beauty": "rmixer.data.beauty:Beauty",
    "criteo": "rmixer.data.criteo:Criteo",
    "csv": "rmixer.data.delimited:Delimited",
    "fuxictr": "rmixer.data.fuxictr:FuxiCTR",
    "generated": "rmixer.data.generated:Generated",
    "kdd2012": "rmixer.data.kdd2012:KDD2012",
    "paddlerec_fm": "rmixer.data.fm:PaddleRecFM",
    "paddlerec_slotdnn": "rmixer.data.slotdnn:SlotDNN",
    "paddlerec_slots": "rmixer.data.slots:PaddleRecSlots",
    "parquet": "rmixer.data.parquet:Parquet",
    "recbole": "rmixer.data.recbole:RecBole",
    "torchrec": "rmixer.data.torchrec:TorchRec",
}
