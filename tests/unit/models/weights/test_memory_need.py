"""The memory of weights is told by headers alone, as large as what is written and loaded."""

from pathlib import Path

import pytest

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.quantized_folder import write_quantized
from diffuserve.models.registry import check_model
from diffuserve.models.weights.memory_need import PartBytes, bytes_on_device

MB = 10**6
TEXT = PartBytes("text_encoder_2", total=90 * MB, layered=80 * MB, largest_layer=10 * MB)
TRANSFORMER = PartBytes("transformer", total=240 * MB, layered=230 * MB, largest_layer=6 * MB)
VAE = PartBytes("vae", total=2 * MB, layered=1 * MB, largest_layer=1 * MB)


@pytest.mark.parametrize("kind", [Quantization.INT8, Quantization.FP8, Quantization.INT4])
def test_quantized_weights_are_as_large_as_the_files_that_are_written(
    tmp_path: Path, kind: Quantization
) -> None:
    write_quantized("tiny-flux", tmp_path / "model", kind)
    written = check_model(str(tmp_path / "model")).num_weight_bytes(ALL_PARTS)
    needs = check_model("tiny-flux").memory_needs(ALL_PARTS, 2, Quantization.NONE)
    told = {need.quantization: need.num_bytes for need in needs if need.offload is Offload.NONE}
    assert told[kind] == pytest.approx(written, rel=0.02)
    assert told[kind] < 0.75 * told[Quantization.NONE]


@pytest.mark.parametrize(
    ("offload", "megabytes"),
    [(Offload.NONE, 332), (Offload.TEXT, 30 + 242), (Offload.MODEL, 240), (Offload.LAYERS, 30 + 28 + 2)],
)
def test_what_is_put_away_leaves_a_few_layers_on_the_device(offload: Offload, megabytes: int) -> None:
    assert bytes_on_device([TEXT, TRANSFORMER, VAE], offload) == megabytes * MB
