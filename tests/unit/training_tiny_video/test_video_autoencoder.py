"""The VAE computes what diffusers' own class computes."""

import random

import torch
from torch.testing import assert_close

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
