"""Models: plain modules over one typed batch. This module imports no torch.

`MODELS` is the one table of what ``model`` may name. A new model is one class in one file, its
parameters in `rmixer.models.params`, and one line here.
"""

from __future__ import annotations

#: Name of a model -> ``module:Class`` (see `rmixer.models.model.Model`).
MODELS: dict[str, str] = {
    "bert4rec": "rmixer.models.bert4rec:BERT4Rec",
    "bst": "rmixer.models.bst:BST",
    "dcn": "rmixer.models.dcn:DCN",
    "dcn_v2": "rmixer.models.dcn_v2:DCNv2",
    "deepfm": "rmixer.models.deepfm:DeepFM",
    "dien": "rmixer.models.dien:DIEN",
    "difm": "rmixer.models.difm:DIFM",
    "din": "rmixer.models.din:DIN",
    "dlrm": "rmixer.models.dlrm:DLRM",
    "dmr": "rmixer.models.dmr:DMR",
    "dpin": "rmixer.models.dpin:DPIN",
    "flen": "rmixer.models.flen:FLEN",
    "widedeep": "rmixer.models.widedeep:WideDeep",
}
