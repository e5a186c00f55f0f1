"""Training goes on from the weights of a finished model, such as the bundled one."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import caption_encoder
import video_autoencoder
import video_denoiser
from checkpoints import adopt_model, load_average
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.pretrained import load_module
from loop import Course, warm_then_linear

STEPS = {video_autoencoder.NAME: 60, caption_encoder.NAME: 12, video_denoiser.NAME: 205}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    assert adopt_model(bundled_models()["tiny-video"], STEPS, folder) == list(STEPS)
    return folder


def test_the_denoiser_goes_on_with_the_bundled_weights_at_its_step(state: Path) -> None:
    denoiser = video_denoiser.build()
    course = _course(state, video_denoiser.NAME, {"denoiser": denoiser}, num_steps=300)
    assert (course.step, course.is_done) == (205, False)
    shipped = load_module(
        type(denoiser), bundled_models()["tiny-video"] / "transformer", torch_dtype=torch.float32
    )
    assert_close(denoiser.state_dict(), shipped.state_dict(), rtol=0, atol=0)


def test_the_other_stages_count_as_done(state: Path) -> None:
    """The text encoder's heads, which are not shipped, are there nevertheless."""
    parts: dict[str, dict[str, nn.Module]] = {
        video_autoencoder.NAME: {"vae": video_autoencoder.build()},
        caption_encoder.NAME: {"head": caption_encoder.Head()},
    }
    assert all(_course(state, name, modules, STEPS[name]).is_done for name, modules in parts.items())
    load_average(state / f"{video_autoencoder.NAME}.safetensors", "vae", video_autoencoder.build())


def test_a_stage_that_is_already_saved_is_not_replaced(state: Path) -> None:
    assert adopt_model(bundled_models()["tiny-video"], STEPS, state) == []


def _course(folder: Path, name: str, modules: dict[str, nn.Module], num_steps: int) -> Course:
    optimizers = [torch.optim.AdamW(module.parameters()) for module in modules.values()]
    return Course(name, modules, optimizers, num_steps, warm_then_linear, folder)
