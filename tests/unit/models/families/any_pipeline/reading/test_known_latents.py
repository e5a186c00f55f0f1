"""Latents are known by the class, the channels and the scale of the autoencoder that made them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.any_pipeline.previews import LatentPreviews
from diffuserve.models.families.any_pipeline.reading.known_latents import Latents, known_latents
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.testing.fake_pipeline import FAKE_SPEC
from support.foreign_folders import write_json

KL = "AutoencoderKL"


def folder_of(path: Path, config: dict[str, Any]) -> ModelFolder:
    (path / "vae").mkdir()
    write_json(path / "vae/config.json", config)
    write_json(path / "model_index.json", {"_class_name": "LTXPipeline"})
    return ModelFolder(path)


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({"_class_name": KL, "latent_channels": 4, "scaling_factor": 0.18215}, Latents.SD),
        ({"_class_name": KL, "latent_channels": 16, "scaling_factor": 0.3611}, Latents.FLUX),
        ({"_class_name": KL, "latent_channels": 16, "scaling_factor": 0.5}, None),
        ({"_class_name": "AutoencoderKLLTXVideo", "latent_channels": 128}, Latents.LTX),
        ({"_class_name": "AutoencoderKLLTXVideo", "latent_channels": 64}, None),
        ({"_class_name": "AutoencoderKLWan", "z_dim": 48}, Latents.WAN_22),
    ],
)
def test_latents_are_known_by_their_autoencoder(
    tmp_path: Path, config: dict[str, Any], known: Latents | None
) -> None:
    assert known_latents(folder_of(tmp_path, config)) is known


def test_the_tokens_of_a_clip_become_a_strip_of_its_frames(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"_class_name": "AutoencoderKLLTXVideo", "latent_channels": 128})
    spec = replace(FAKE_SPEC, temporal_stride=8, max_frames=25)
    params = GenerationParams(prompt="a star", width=96, height=64, num_frames=17)
    shown = LatentPreviews(folder, spec, torch.device("cpu")).draw((torch.zeros(1, 3 * 2 * 3, 128),), params)
    assert shown is not None
    assert tuple(shown.shape) == (2, 3 * 3, 3)
