"""What a worker tells of its models' weights before they are loaded."""

import pytest

from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.domain.models.quantization import Quantization
from diffuserve.protocol.config import EngineProcessConfig
from support.worker_fakes import announced


@pytest.mark.parametrize(
    ("told", "loaded", "expected"),
    [(None, None, None), (Quantization.INT8, None, "int8"), (Quantization.NONE, "int8", "int8")],
)
def test_what_weights_will_be_kept_in_is_known_once_the_model_is_announced(
    told: Quantization | None, loaded: str | None, expected: str | None
) -> None:
    model = ServedModel(EngineProcessConfig(model="tiny"), announced=announced("tiny", quantization=told))
    model.quantization = loaded
    assert model.kept_in == expected
