"""The UNet against diffusers', with random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.unet import UNet, load_unet
from diffuserve.models.families.stable_diffusion.unet_input import UNetInput
from diffuserve.models.weights.load_plan import LoadPlan

SMALL: dict[str, Any] = {
    "block_out_channels": [32, 64],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 24,
    "norm_num_groups": 8,
    "layers_per_block": 1,
}
XL: dict[str, Any] = {
    **SMALL,
    "block_out_channels": [32, 64, 64],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 3],
    "attention_head_dim": [2, 4, 8],
    "layers_per_block": 2,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 16 + 6 * 8,
}
KINDS = {
    "sd1": {**SMALL, "attention_head_dim": 4},
    "sd2": {**SMALL, "attention_head_dim": [2, 4], "use_linear_projection": True},
    "inpainting": {**SMALL, "in_channels": 9},
    "xl": XL,
    "lcm": {**XL, "time_cond_proj_dim": 12},
}


def make_pair(folder: Path, values: dict[str, Any]) -> tuple[UNet2DConditionModel, UNet]:
    """Return diffusers' network and ours, of the same random weights."""
    torch.manual_seed(0)
    reference = UNet2DConditionModel(**values).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # what begins at zero or one would hide mistakes
            parameter.add_(torch.randn_like(parameter) * 0.05)
    reference.save_pretrained(folder)
    config = UNetConfig.from_dict(dict(reference.config))
    return reference, load_unet(
        config, sorted(folder.glob("*.safetensors")), LoadPlan(torch.device("cpu"), torch.float32)
    )


def make_batch(config: UNetConfig, rows: int, size: tuple[int, int]) -> UNetInput:
    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    generator = torch.Generator().manual_seed(1)
    is_xl = config.addition_embed_type is not None
    return UNetInput(
        latents=randn(rows, config.in_channels, *size),
        timesteps=torch.tensor([999.0, 3.0, 501.0][:rows]),
        text=randn(rows, 7, config.cross_attention_dim),
        pooled=randn(rows, 16) if is_xl else None,
        sizes=torch.tensor([[64.0, 96.0, 0.0, 0.0, 64.0, 96.0]] * rows) if is_xl else None,
        guidance=randn(rows, config.time_cond_proj_dim) if config.time_cond_proj_dim else None,
    )


@torch.inference_mode()
def predict(reference: UNet2DConditionModel, batch: UNetInput) -> torch.Tensor:
    added = None if batch.pooled is None else {"text_embeds": batch.pooled, "time_ids": batch.sizes}
    predicted: torch.Tensor = reference(
        batch.latents, batch.timesteps, batch.text, timestep_cond=batch.guidance, added_cond_kwargs=added
    ).sample
    return predicted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(8, 8), (5, 11)])
def test_predictions_equal_the_references(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Sides that cannot be halved evenly are rounded up on the way down, and restored on the way up."""
    reference, unet = make_pair(tmp_path, KINDS[kind])
    batch = make_batch(unet.config, rows=3, size=size)
    with torch.inference_mode():
        predicted = unet(batch)
    torch.testing.assert_close(predicted, predict(reference, batch), atol=1e-5, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbors(tmp_path: Path) -> None:
    _, unet = make_pair(tmp_path, XL)
    batch = make_batch(unet.config, rows=3, size=(8, 8))
    assert batch.pooled is not None
    assert batch.sizes is not None
    alone = UNetInput(
        batch.latents[:1], batch.timesteps[:1], batch.text[:1], batch.pooled[:1], batch.sizes[:1]
    )
    with torch.inference_mode():
        torch.testing.assert_close(unet(alone), unet(batch)[:1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"class_embed_type": "timestep"}, "class_embed_type='timestep'"),
        ({"only_cross_attention": True}, "only_cross_attention=True"),
        ({"down_block_types": ["SimpleCrossAttnDownBlock2D", "DownBlock2D"]}, "down_block_types"),
        ({"down_block_types": ["DownBlock2D"]}, "down_block_types has 1 levels"),
        ({"attention_head_dim": 5}, "attention_head_dim=5"),
        ({"norm_num_groups": 48}, "norm_num_groups=48"),
        ({"addition_embed_type": "text_time"}, "addition_time_embed_dim"),
        ({"block_out_channels": [10**9, 64]}, "block_out_channels"),
    ],
)
def test_another_network_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        UNetConfig.from_dict({**SMALL, **values})


def test_options_that_a_checkpoint_leaves_out_have_the_references_defaults() -> None:
    reference = UNet2DConditionModel(**SMALL)
    written = UNetConfig.from_dict(dict(reference.config))
    assert written == UNetConfig.from_dict(SMALL)
