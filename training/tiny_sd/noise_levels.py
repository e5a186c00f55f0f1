"""The noise levels of training, of the scheduler that is shipped, and what is learned at each."""

import random

import torch
from diffusers import EulerDiscreteScheduler
from torch import Tensor

NUM_LEVELS = 1000
NUM_STEPS = 8
"""That the model draws with by default."""
_GRIDS = (4, 6, 8, 8, 8, 8, 12, 20)
_FREE_SHARE = 0.4


def scheduler() -> EulerDiscreteScheduler:
    """Return Euler's sampler from σ = 66: at SDXL's own 15 a background still shows through the noise."""
    return EulerDiscreteScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.02,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        steps_offset=0,
    )


ALPHAS = scheduler().alphas_cumprod
"""How much of the image's variance is left at each level `(NUM_LEVELS,)`."""


def any_levels(count: int, chance: random.Random) -> Tensor:
    """Return levels `(count,)` in 0…999: mostly those that samplers visit."""
    return torch.tensor([_any_level(chance) for _ in range(count)])


def _any_level(chance: random.Random) -> int:
    if chance.random() < _FREE_SHARE:
        return chance.randrange(NUM_LEVELS)
    return step_levels(steps := chance.choice(_GRIDS))[chance.randrange(steps)]


def step_levels(num_steps: int) -> list[int]:
    """Return the levels of a sampler of so many steps ("trailing")."""
    return [round(NUM_LEVELS - step * NUM_LEVELS / num_steps) - 1 for step in range(num_steps)]


def shares(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors `(batch, 1, 1, 1)` of image and noise in what the network sees."""
    left = ALPHAS[levels][:, None, None, None]
    return left.sqrt(), (1 - left).sqrt()


def weights(levels: Tensor, at_most: float = 5.0) -> Tensor:
    """Return how much the squared error of v counts `(batch,)`.

    The error of v is that of the image times 1 + SNR. So down to σ = 1/2 every level counts by the image that
    it leads to, and below it less, where the eye sees nothing ("min-SNR", Hang et al. 2023).
    """
    ratio = 1 / (1 - ALPHAS[levels])  # 1 + SNR
    weight: Tensor = ratio.clamp(max=at_most) / ratio
    return weight
