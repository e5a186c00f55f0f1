"""Image prompts of rows: which rows attend to them together, and what a part of a batch keeps."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.image_prompts.attention import ImageTokens, image_runs
from diffuserve.models.families.stable_diffusion.image_prompts.image_prompts import PromptImages
from diffuserve.models.families.stable_diffusion.image_prompts.ip_adapter import (
    cross_attentions,
    open_ip_adapter,
)
from diffuserve.models.families.stable_diffusion.text import StableDiffusionConditioning
from diffuserve.models.families.stable_diffusion.unet_input import UNetInput
from diffuserve.parallel.messages import pack, unpack

XL = UNetConfig(
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    block_out_channels=(32, 64),
    layers_per_block=1,
    transformer_layers_per_block=(1, 2),
)


def tokens(count: int, weight: float = 1.0) -> ImageTokens:
    return ImageTokens(torch.randn(count, 8), weight)


def test_neighbors_with_equally_many_tokens_and_one_weight_are_a_run() -> None:
    rows = [None, tokens(4), tokens(4), tokens(8), None, tokens(8), tokens(8, 0.5)]
    runs = image_runs(rows)
    assert [(run.start, len(run.states), run.weight) for run in runs] == [
        (1, 2, 1.0),
        (3, 1, 1.0),
        (5, 1, 1.0),
        (6, 1, 0.5),
    ]
    assert image_runs([None, None]) == image_runs([]) == ()


def test_a_part_of_a_batch_has_the_image_prompts_of_its_rows() -> None:
    rows = (None, tokens(4), tokens(4))
    batch = UNetInput(torch.zeros(3, 4, 8, 8), torch.zeros(3), torch.zeros(3, 5, 8), images=rows)
    assert batch.take(range(2, 4)).images == (rows[2], rows[2]), "the last row is repeated"
    (run,) = batch.take(range(2)).context.images
    assert (run.start, len(run.states)) == (1, 1)


def test_tokens_of_images_are_sent_to_other_ranks() -> None:
    images = PromptImages(torch.randn(4, 8), torch.randn(4, 8))
    sent = StableDiffusionConditioning((), torch.randn(5, 8), prompt_images=images)
    got = unpack(pack(sent)).prompt_images
    assert torch.equal(got.states, images.states)
    assert torch.equal(got.negative, images.negative)
    assert sent.num_bytes == (5 + 4 + 4) * 8 * 4


def test_attentions_are_counted_down_up_and_then_in_the_middle() -> None:
    blocks = "attentions.0.transformer_blocks"
    assert cross_attentions(XL) == [
        *((f"down_blocks.1.{blocks}.{depth}.attn2", 64) for depth in range(2)),
        *((f"up_blocks.0.{blocks}.{depth}.attn2", 64) for depth in range(2)),
        *((f"up_blocks.0.attentions.1.transformer_blocks.{depth}.attn2", 64) for depth in range(2)),
        *((f"mid_block.{blocks}.{depth}.attn2", 64) for depth in range(2)),
    ]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("image_proj.proj.0.weight",), "is of the kind IP-Adapter FaceID or Full"),
        (("image_proj.perceiver_resampler.proj_in.weight",), "is of the kind IP-Adapter FaceID Plus"),
        (("lora_A.weight",), r"image_proj.latents has shape \(\), where 3 sides are read"),
        (("image_proj.proj.weight",), r"image_proj.norm.weight has shape \(\), where 1 sides"),
    ],
)
def test_other_files_are_refused_by_their_kind(tmp_path: Path, names: tuple[str, ...], reason: str) -> None:
    save_file({name: torch.zeros(8, 8) for name in names}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidModel, match=reason):
        open_ip_adapter(tmp_path, XL)


def test_a_folder_must_hold_one_file(tmp_path: Path) -> None:
    (tmp_path / "ip-adapter.bin").write_bytes(b"\x80")
    with pytest.raises(InvalidModel, match=r"must hold one .safetensors, or give a file itself; found: none"):
        open_ip_adapter(tmp_path, XL)
