"""The forward pass of training against the reference's."""

import torch
from torch.testing import assert_close

from quick_forward import make_forward
from video_denoiser import build


def test_it_equals_the_reference_with_two_timesteps_in_a_clip() -> None:
    denoiser = build()
    torch.manual_seed(1)
    with torch.no_grad():
        for value in denoiser.parameters():
            value += 0.05 * torch.randn_like(value)
    clips, text = torch.randn(2, 16, 5, 12, 12), torch.randn(2, 9, 128)
    first, others = torch.tensor([0.0, 750.0]), torch.tensor([500.0, 750.0])
    by_token = torch.cat([first[:, None].expand(2, 36), others[:, None].expand(2, 144)], 1)
    with torch.no_grad():
        (expected,) = denoiser(
            hidden_states=clips, timestep=by_token, encoder_hidden_states=text, return_dict=False
        )
        predicted = make_forward(denoiser, is_compiled=False)(clips, first, others, text)
    assert_close(predicted, expected, atol=2e-5, rtol=1e-5)
