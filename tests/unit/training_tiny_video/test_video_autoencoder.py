"""The VAE computes what diffusers' own class computes, and a checkpoint goes on where it was."""

import random
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from checkpoints import adopt_checkpoint, write_checkpoint
from loop import Course, warm_then_cosine
from video_autoencoder import Lesson, build, busy_clips, decode, make_quicker


@torch.no_grad()
def test_the_quicker_vae_computes_the_same() -> None:
    vae, quicker = build(), build()
    make_quicker(quicker, is_compiled=False)
    clips = busy_clips(random.Random(0), Lesson(1.0, 9, 32, 1))
    latents = vae.encode(clips).latent_dist.mean
    assert latents.shape == (1, 16, 3, 4, 4)
    assert_close(quicker.encode(clips).latent_dist.mean, latents, atol=1e-4, rtol=1e-4)
    whole = vae.decode(latents).sample
    assert_close(decode(quicker, latents).clamp(-1, 1), whole, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_goes_on_with_its_weights_at_its_step(tmp_path: Path) -> None:
    state, checkpoint, fresh = (tmp_path / name for name in ("state", "checkpoint", "fresh"))
    for folder in (state, fresh):
        folder.mkdir()
    trained = _course(state)
    trained.step = 7
    trained.save()
    assert write_checkpoint(state, checkpoint) == ["toy"]
    assert adopt_checkpoint(checkpoint, fresh) == ["toy"]
    resumed = _course(fresh)
    assert resumed.step == 7
    weights = load_file(checkpoint / "toy.safetensors")
    assert weights["layer.weight"].dtype == torch.bfloat16
    assert_close(resumed.modules["layer"].weight.data, weights["layer.weight"].float())


def test_a_stage_that_is_already_saved_is_not_replaced(tmp_path: Path) -> None:
    state, checkpoint = tmp_path / "state", tmp_path / "checkpoint"
    state.mkdir()
    _course(state).save()
    write_checkpoint(state, checkpoint)
    assert adopt_checkpoint(checkpoint, state) == []


def _course(folder: Path) -> Course:
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    return Course("toy", {"layer": layer}, [optimizer], 12, warm_then_cosine, folder)
