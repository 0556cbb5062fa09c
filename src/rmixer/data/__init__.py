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
    "generated": "rmixer.data.generated:Generated",
    "kdd2012": "rmixer.data.kdd2012:KDD2012",
    "recbole": "rmixer.data.recbole:RecBole",
}
