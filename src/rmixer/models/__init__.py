"""Models: plain modules over one typed batch. This module imports no torch.

`MODELS` is the one table of what ``model`` may name. A new model is one class in one file, its
parameters in `rmixer.models.params`, and one line here.
"""

from __future__ import annotations

#: Name of a model -> ``module:Class`` (see `rmixer.models.model.Model`).
MODELS: dict[str, str] = {
    "deepfm": "rmixer.models.deepfm:DeepFM",
    "din": "rmixer.models.din:DIN",
    "dlrm": "rmixer.models.dlrm:DLRM",
}
