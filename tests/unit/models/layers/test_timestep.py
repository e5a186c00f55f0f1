"""The sinusoidal embedding equals diffusers'."""

import pytest
import torch
from diffusers.models.embeddings import get_timestep_embedding

from diffuserve.models.layers.timestep import timestep_embedding

TIMESTEPS = torch.tensor([0.0, 0.25, 1.0, 250.0, 752.0, 999.9, 1_000.0, 3_500.0, 20_000.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_embedding_equals_the_references_to_the_last_bit(dtype: torch.dtype) -> None:
    timesteps = TIMESTEPS.to(dtype)
    expected = get_timestep_embedding(timesteps, 256, flip_sin_to_cos=True, downscale_freq_shift=0)
    assert torch.equal(timestep_embedding(timesteps, 256), expected)


def test_cosines_come_first() -> None:
    embedding = timestep_embedding(torch.zeros(1), 8)
    assert embedding.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]


def test_a_row_does_not_depend_on_its_neighbors() -> None:
    together = timestep_embedding(TIMESTEPS, 256)
    alone = torch.cat([timestep_embedding(timestep[None], 256) for timestep in TIMESTEPS])
    assert torch.equal(together, alone)
