"""Latents of true drawings, made by the VAE that the package ships, and kept."""

from pathlib import Path

import pytest
import torch

from draw import draw
from habit_latents import CELL, draw_number, encode, load_vae, shows_thing
from layout import Layout, Placed


def test_latents_are_made_once_and_have_about_unit_variance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = load_vae()
    latents = encode(vae, tmp_path, 6, (96, 64))
    assert latents.means.shape == (6, 16, 64 // CELL, 96 // CELL)
    assert latents.size == (64, 96)
    assert 0.5 < latents.scaled(torch.arange(6)).std() < 1.5
    monkeypatch.setattr("habit_latents.draw_number", None)
    assert torch.equal(encode(vae, tmp_path, 6, (96, 64)).means, latents.means)
    rebuilt = vae.decode(latents.means[:1].float()).sample
    assert (rebuilt - draw_number(0, latents.traits[0], 96, 64)).square().mean() < 0.02


def test_cells_of_an_object_are_marked() -> None:
    thing = Placed("square", 0.75, 0.25, 0.15, (255.0, 0.0, 0.0))
    marked = shows_thing(draw(Layout((thing,), (255.0, 255.0, 255.0)), 64, 64)[None])[0]
    assert marked[:4, 4:].sum() == marked.sum() > 0
