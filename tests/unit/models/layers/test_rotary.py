"""Rotation as complex products equals diffusers' rotation as cosines and sines."""

import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from torch import Tensor

from diffuserve.models.layers.rotary import rotate_, rotations


def make_positions(rows: int, columns: int, text: int = 5) -> Tensor:
    """Return FLUX's positions: text at the origin, the image's tokens on a grid."""
    grid = torch.cartesian_prod(torch.zeros(1), torch.arange(rows).float(), torch.arange(columns).float())
    return torch.cat([torch.zeros(text, 3), grid])


@pytest.mark.parametrize("axes_dims", [(16, 56, 56), (8, 12, 12), (4, 6, 6)])
@pytest.mark.parametrize("grid", [(1, 1), (4, 7), (3, 256)])
def test_rotation_equals_the_references(axes_dims: tuple[int, ...], grid: tuple[int, int]) -> None:
    positions = make_positions(*grid)
    x = torch.randn(len(positions), 2, sum(axes_dims), generator=torch.Generator().manual_seed(0))
    embedding = FluxPosEmbed(theta=10_000, axes_dim=axes_dims)(positions)
    expected = apply_rotary_emb(x[None], embedding, sequence_dim=1)[0]
    torch.testing.assert_close(rotate_(x, rotations(positions, axes_dims)), expected, rtol=0, atol=1e-6)


def test_angles_far_from_the_origin_are_as_exact_as_the_references() -> None:
    positions = make_positions(64, 64)
    cosines, sines = FluxPosEmbed(theta=10_000, axes_dim=[16, 56, 56])(positions)
    rotation = rotations(positions, (16, 56, 56))
    torch.testing.assert_close(rotation.real, cosines[:, ::2], rtol=0, atol=1e-7)
    torch.testing.assert_close(rotation.imag, sines[:, ::2], rtol=0, atol=1e-7)


def test_text_at_the_origin_is_not_turned() -> None:
    x = torch.randn(5, 2, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rotate_(x.clone(), rotations(torch.zeros(5, 3), (4, 6, 6))), x)


def test_rotation_happens_in_place_and_keeps_lengths() -> None:
    x = torch.randn(12, 2, 16, generator=torch.Generator().manual_seed(0))
    lengths = x.norm(dim=-1)
    turned = rotate_(x, rotations(make_positions(3, 4, text=0), (4, 6, 6)))
    assert turned.data_ptr() == x.data_ptr()
    torch.testing.assert_close(turned.norm(dim=-1), lengths)


def test_products_depend_only_on_how_far_apart_two_tokens_are() -> None:
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def product(left: list[float], right: list[float]) -> Tensor:
        turned = [
            rotate_(x.clone(), rotations(torch.tensor([position]).float(), (4, 6, 6)))
            for x, position in ((query, left), (key, right))
        ]
        return (turned[0] * turned[1]).sum()

    near, far = product([0, 2, 5], [0, 3, 9]), product([0, 40, 20], [0, 41, 24])
    torch.testing.assert_close(near, far, rtol=0, atol=1e-4)
    assert (near - product([0, 2, 5], [0, 3, 10])).abs() > 1e-3
