"""What diffusers runs takes less memory in few bits, and draws nearly the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.families.any_pipeline.pipeline import AnyPipeline
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.registry import open_quantizable
from support.any_runs import drawn, load_tiny, request_of
from support.tiny_pipelines import TINY_PIPELINES, tiny_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # diffusers' own

# Random weights of few numbers a row: real ones lose less. In decibel, a little below what was measured.
LEAST_PSNR = {Quantization.INT8: 36.0, Quantization.FP8: 34.0, Quantization.INT4: 26.0}
FAST = [("sd3", Quantization.INT8)]
SLOW = [(name, kind) for name in ("sd3", "z-image", "ltx") for kind in LEAST_PSNR if (name, kind) not in FAST]


def bytes_of(pipeline: AnyPipeline) -> dict[str, int]:
    parts: dict[str, Any] = pipeline._pipe.components
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    return {name: sum(weight.nbytes for weight in part.parameters()) for name, part in modules.items()}


def num_quantized(module: nn.Module) -> int:
    return sum(isinstance(layer, QuantizedLinear) for layer in module.modules())


@pytest.mark.parametrize(
    ("name", "kind"), [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_blocks_and_text_encoders_shrink_and_images_hardly_change(
    tmp_path: Path, name: str, kind: Quantization
) -> None:
    plain, small = load_tiny(name, tmp_path), load_tiny(name, tmp_path, kind)
    assert small.describe()["quantization"] == kind.value
    before, after = bytes_of(plain), bytes_of(small)
    assert after["vae"] == before["vae"]
    assert all(after[part] < before[part] for part in before if part.startswith("text_encoder"))
    if num_quantized(small._pipe.transformer):  # in 4 bits rows must be of whole groups
        assert after["transformer"] < before["transformer"]
    params = request_of(TINY_PIPELINES[name], plain)
    expected, found = (
        np.stack([np.frombuffer(frame, np.uint8) for frame in drawn(each, params)]).astype(float)
        for each in (plain, small)
    )
    assert 0 < np.square(found - expected).mean() < 255**2 / 10 ** (LEAST_PSNR[kind] / 10)


def test_no_folder_of_a_model_that_diffusers_runs_is_written_quantized(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="quantized when they are loaded"):
        open_quantizable(str(tiny_folder("sd3", tmp_path)))
