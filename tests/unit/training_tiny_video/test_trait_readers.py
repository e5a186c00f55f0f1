"""The head that reads traits off the noise from the first step of training on."""

import torch
from torch import Tensor

from choreography import NUM_TRAITS, set_traits
from video_denoiser import build

_SHAPE = (5, 12, 12)


@torch.no_grad()
def states_after_first_attention(level: float) -> tuple[Tensor, Tensor]:
    """Return what attention adds to tokens `(clips, tokens, dim)`, and the traits of the clips' noise."""
    denoiser = build()
    generator = torch.Generator().manual_seed(1)
    traits = torch.randn(8, NUM_TRAITS, generator=generator)
    noise = set_traits(torch.randn(8, 16, *_SHAPE, generator=generator), traits)
    added: list[Tensor] = []
    denoiser.blocks[0].attn2.register_forward_pre_hook(lambda _module, inputs: added.append(inputs[0]))
    denoiser.blocks[0].norm2.register_forward_pre_hook(lambda _module, inputs: added.append(inputs[0]))
    text = torch.randn(8, 3, 128, generator=generator)
    denoiser(hidden_states=noise, timestep=torch.full((8, 180), level), encoder_hidden_states=text)
    return added[0], traits


def test_each_trait_fills_a_dimension_of_every_token_at_the_first_step() -> None:
    states, traits = states_after_first_attention(999.0)
    for trait in range(NUM_TRAITS):
        read = states[:, :, trait]
        assert float(read.std(1).max()) < 1e-3, "all tokens know the same"
        both = torch.stack([read.mean(1), traits[:, trait]])
        assert float(torch.corrcoef(both)[0, 1]) > 0.95
        assert float(read.mean(1).std()) > 0.3 * float(states[:, :, NUM_TRAITS:].std())


def test_it_is_closed_at_later_steps_when_means_are_those_of_a_clip() -> None:
    early, _ = states_after_first_attention(999.0)
    late, _ = states_after_first_attention(749.0)
    size = float(early[:, :, :NUM_TRAITS].std())
    assert float(late[:, :, :NUM_TRAITS].std()) < 0.2 * size
