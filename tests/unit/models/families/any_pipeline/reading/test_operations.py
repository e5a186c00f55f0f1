"""A model's operations are counted by the shapes of its weights, without its class and without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from diffuserve.models.families.any_pipeline.family import ANY_PIPELINE
from diffuserve.models.families.any_pipeline.reading.operations import operations_of
from diffuserve.models.folders.folder import open_model
from support.tiny_pipelines import tiny_folder

WIDTH = 64
BLOCK = {
    "blocks.0.norm1.linear.weight": (6 * WIDTH, WIDTH),
    "blocks.0.attn.to_q.weight": (WIDTH, WIDTH),
    "blocks.0.attn.to_k.weight": (WIDTH, WIDTH),
    "blocks.0.attn.to_v.weight": (WIDTH, WIDTH),
    "blocks.0.attn.add_q_proj.weight": (WIDTH, WIDTH),
    "blocks.0.attn.to_q.bias": (WIDTH,),
    "blocks.0.ff.net.0.proj.weight": (4 * WIDTH, WIDTH),
    "pos_embed.table": (1, 4096, WIDTH),
}


def test_a_token_takes_two_operations_for_each_weight_that_multiplies_it() -> None:
    counted = operations_of(BLOCK, [], {})
    assert counted.token == 2 * 7 * WIDTH**2
    assert counted.sequence == 2 * 6 * WIDTH**2
    assert counted.pair == 4 * WIDTH
    assert counted.widest == 4 * WIDTH


def test_of_a_text_encoder_only_what_is_no_table_counts() -> None:
    text = {"shared.weight": (30_000, 32), "encoder.0.q.weight": (32, 32), "visual.0.q.weight": (64, 64)}
    assert operations_of(BLOCK, [text, text], {}).text_token == 2 * 2 * 32 * 32


def test_layers_at_lower_resolutions_count_as_the_part_that_they_work_on() -> None:
    decoder = {
        "decoder.conv_in.weight": (8, 4, 3, 3),
        "decoder.up_blocks.0.conv.weight": (8, 8, 3, 3),
        "decoder.up_blocks.1.conv.weight": (8, 8, 3, 3),
        "decoder.conv_out.weight": (3, 8, 3, 3),
        "encoder.conv_in.weight": (64, 64, 3, 3),
    }
    expected = 9 * (8 * 4 / 4 + 8 * 8 / 4 + 8 * 8 + 3 * 8)
    assert operations_of(BLOCK, [], decoder).pixel == 2 * expected


def test_a_model_whose_weights_are_elsewhere_has_a_price_too(tmp_path: Path) -> None:
    folder = tiny_folder("sd3", tmp_path)
    here = open_model(str(folder))
    spec = ANY_PIPELINE.read_spec(here)
    counted = ANY_PIPELINE.default_fit(here, spec)
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    known = ANY_PIPELINE.default_fit(here, spec)
    assert min(*known.step, *known.encode, *known.decode) > 0
    assert known.step[1] > 1e-6, "it is not for free"
    assert counted != known


def test_pricing_imports_no_torch(tmp_path: Path) -> None:
    folder = tiny_folder("sd3", tmp_path)
    program = (
        "import sys; from diffuserve.models.registry import read_offer; "
        f"print(read_offer({str(folder)!r})[1].step[1] > 0, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("num_layers", [1, 3])
def test_each_layer_counts(num_layers: int) -> None:
    layers = {
        name.replace("blocks.0", f"blocks.{index}"): shape
        for index in range(num_layers)
        for name, shape in BLOCK.items()
    }
    assert operations_of(layers, [], {}).token == num_layers * operations_of(BLOCK, [], {}).token
