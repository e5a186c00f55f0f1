"""A dtype has several names, wherever one is given."""

import pytest
import torch

from diffuserve.domain.errors import DeviceUnavailable
from diffuserve.models.machine.devices import parse_dtype
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings

NAMES = [
    ("bf16", torch.bfloat16),
    ("fp16", torch.float16),
    ("half", torch.float16),
    ("fp32", torch.float32),
    ("torch.bfloat16", torch.bfloat16),
    (" BFloat16", torch.bfloat16),
    ("float32", torch.float32),
]


@pytest.mark.parametrize(("name", "dtype"), NAMES)
def test_a_dtype_has_short_names(name: str, dtype: torch.dtype) -> None:
    assert parse_dtype(name) is dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, None])
def test_torchs_own_dtypes_are_taken(dtype: torch.dtype | None) -> None:
    assert parse_dtype(dtype) is dtype


@pytest.mark.parametrize("dtype", ["int8", "fp8", "", torch.float64, torch.int8])
def test_other_dtypes_are_refused_with_those_there_are(dtype: str | torch.dtype) -> None:
    with pytest.raises(DeviceUnavailable, match="must be one of bfloat16, float16, float32"):
        parse_dtype(dtype)


@pytest.mark.parametrize(("name", "dtype"), NAMES)
def test_an_engine_process_gets_torchs_name(name: str, dtype: torch.dtype) -> None:
    """Check that one dtype has one file of its fitted cost, however it is spelled."""
    config = Settings.with_options(dtype=name).engine_process
    assert f"torch.{config.dtype}" == str(dtype)
    assert config.engine == Settings.with_options(dtype=str(dtype)).engine_process.engine
    assert EngineProcessConfig.from_json(config.to_json()) == config
