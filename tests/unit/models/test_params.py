"""Parameters of models are checked by name and value, without torch."""

import pytest

from rmixer.errors import UsageError
from rmixer.models import params
from rmixer.models.field_params import DLRMParams
from rmixer.models.sequence_params import DINParams


@pytest.mark.parametrize(
    ("model", "given", "key", "part"),
    [
        ("dlrn", {}, "", "did you mean 'dlrm'?"),
        ("dlrm", {"botom_mlp": [4]}, "botom_mlp", "did you mean 'bottom_mlp'?"),
        ("dlrm", {"bottom_mlp": [64, 8]}, "bottom_mlp", "must end with embedding_dim, which is 16: [64, 16]"),
        ("dlrm", {"embedding_dim": 0}, "embedding_dim", "from 1 on"),
        ("dlrm", {"embedding_dim": True}, "embedding_dim", "from 1 on"),
        ("dlrm", {"top_mlp": "512"}, "top_mlp", "for example [512, 256]"),
        ("dlrm", {"top_mlp": [512, 0]}, "top_mlp", "from 1 on"),
        ("deepfm", {"dropout": 1.0}, "dropout", "below 1"),
        ("deepfm", {"mlp": []}, "mlp", "no list of whole numbers"),
        ("din", {"activation": "dicce"}, "activation", "did you mean 'dice'?"),
        ("din", {"table_rows": [0]}, "table_rows", "from 1 on"),
    ],
)  # fmt: skip
def test_each_fault_names_its_key(model: str, given: dict, key: str, part: str) -> None:
    ((found, message),) = params.validate(model, given)
    assert found == key
    assert part in message


def test_right_parameters_are_parsed_with_their_defaults() -> None:
    assert params.validate("dlrm", {"bottom_mlp": None, "top_mlp": [], "embedding_dim": 8}) == []
    parsed = params.parse("dlrm", {"embedding_dim": 8})
    assert isinstance(parsed, DLRMParams)
    assert parsed.bottom_widths == (512, 256, 64, 8)
    assert params.parse("din", {"mlp": [3]}) == DINParams(mlp=(3,))
    with pytest.raises(UsageError, match=r"params\.x: dlrm has no such parameter"):
        params.parse("dlrm", {"x": 1})


def test_a_class_of_somebody_else_is_not_checked() -> None:
    assert params.validate("their.module:Model", {"anything": 1}) == []
