"""FLUX.2's autoencoder beside diffusers' `AutoencoderKLFlux2`, on random weights and statistics."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.autoencoder.config import PatchedAutoencoderConfig
from diffuserve.models.autoencoder.decoder import ImageDecoder
from diffuserve.models.autoencoder.encoder import ImageEncoder
from diffuserve.models.autoencoder.patched_vae import PatchedImageVae
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.weights.load_plan import LoadPlan

FOUR_WIDTHS: dict[str, Any] = {
    "block_out_channels": (4, 8, 8, 16),
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 4,
    "sample_size": 32,
}
OWN_DECODER = FOUR_WIDTHS | {"decoder_block_out_channels": (8, 8, 4, 8), "batch_norm_eps": 0.01}
ALL = pytest.mark.parametrize("config", [FOUR_WIDTHS, OWN_DECODER], ids=["one-shape", "own-decoder"])


def make(config: dict[str, Any]) -> AutoencoderKLFlux2:
    torch.manual_seed(0)
    reference = AutoencoderKLFlux2(**config)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    reference.bn.running_mean.normal_()
    reference.bn.running_var.uniform_(0.01, 4)
    return reference.to(memory_format=torch.channels_last).eval()


def load(reference: AutoencoderKLFlux2, folder: Path, **parts: bool) -> PatchedImageVae:
    (folder / "vae").mkdir(exist_ok=True)
    (folder / "vae" / "config.json").write_text(json.dumps(dict(reference.config)))
    tensors = {name: tensor.contiguous() for name, tensor in reference.state_dict().items()}
    save_file(tensors, folder / "vae" / "diffusion_pytorch_model.safetensors")
    return PatchedImageVae(ModelFolder(folder), LoadPlan(torch.device("cpu"), torch.float32), **parts)


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def norm_of(reference: AutoencoderKLFlux2) -> tuple[Tensor, Tensor]:
    variance = reference.bn.running_var + reference.config.batch_norm_eps
    return reference.bn.running_mean.view(1, -1, 1, 1), variance.sqrt().view(1, -1, 1, 1)


@ALL
@torch.inference_mode()
def test_images_are_encoded_to_the_patches_of_the_reference(config: dict[str, Any], tmp_path: Path) -> None:
    reference = make(config)
    vae, pixels, (mean, std) = load(reference, tmp_path), random(1, 3, 32, 48), norm_of(reference)
    mode = reference.encode(pixels.contiguous(memory_format=torch.channels_last)).latent_dist.mode()
    found = vae.normalize(vae.encode(pixels).mode())
    assert found.shape == (1, vae.latent_channels, 32 // vae.scale, 48 // vae.scale)
    wanted = (Flux2KleinPipeline._patchify_latents(mode) - mean) / std
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@ALL
@torch.inference_mode()
def test_patches_are_decoded_to_the_pixels_of_the_reference(config: dict[str, Any], tmp_path: Path) -> None:
    reference = make(config)
    vae, (mean, std) = load(reference, tmp_path), norm_of(reference)
    latents = random(2, vae.latent_channels, 3, 5)
    pixels = reference.decode(Flux2KleinPipeline._unpatchify_latents(latents * std + mean)).sample
    levels = ((pixels / 2 + 0.5).clamp(0, 1) * 255).permute(0, 2, 3, 1)
    assert levels.std() > 10
    for image, wanted in zip(vae.decode(latents), levels, strict=True):
        found = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(wanted.shape)
        assert (found - wanted).abs().max() < 0.51, "rounded to the nearest level"


def test_parameters_of_the_published_one_are_named_and_shaped_as_in_the_reference(tmp_path: Path) -> None:
    with torch.device("meta"):
        reference = AutoencoderKLFlux2()
        (tmp_path / "vae").mkdir()
        (tmp_path / "vae" / "config.json").write_text(json.dumps(dict(reference.config)))
        config = PatchedAutoencoderConfig.read(ModelFolder(tmp_path))
        parts = (ImageDecoder(config), ImageEncoder(config))
    shapes = {name: tensor.shape for part in parts for name, tensor in part.named_parameters()}
    assert shapes == {name: tensor.shape for name, tensor in reference.named_parameters()}


def test_each_half_may_stay_away_and_statistics_are_there(tmp_path: Path) -> None:
    reference = make(FOUR_WIDTHS)
    vae = load(reference, tmp_path, has_encoder=False)
    assert [each.is_loaded for each in vae.components] == [False, True]
    vae = load(reference, tmp_path, has_decoder=False)
    assert [each.is_loaded for each in vae.components] == [True, False]
    assert torch.isfinite(vae.normalize(random(1, 4, 4, 4))).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"patch_size": (4, 4)}, "patch_size"), ({"batch_norm_eps": 0.0}, "batch_norm_eps")],
)
def test_other_shapes_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_text(json.dumps(FOUR_WIDTHS | changes))
    with pytest.raises(InvalidModel, match=message):
        PatchedAutoencoderConfig.read(ModelFolder(tmp_path))
