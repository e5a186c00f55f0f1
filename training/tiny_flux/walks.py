"""Images on their way, as the network itself draws them.

Between noise and image the usual lesson mixes both truly. The network that draws never sees such
mixtures: what it sees after its first step is its own guess, and it has learned to believe what it sees.
So a batch here is a set of images half drawn by the network, each at its own noise level, and the lesson
is the way from there to the true image: it learns to mend its guess by what the caption says. The true
end of every walk is known, since the starting noise settles all that the caption leaves open (`layout`).
After "A Reduction of Imitation Learning to No-Regret Online Learning" (Ross et al. 2011).

Each step's predictions move the walks on, and those that have arrived make room for new ones, so that
walking costs nothing beside the lessons.
"""

import torch
from torch import Tensor

from diffuserve.models.families.packed_images.latents import pack_latents
from latents import Latents
from layout import noise_with

NUM_STEPS = (1, 2, 3, *(4,) * 12, 6, 8, 12)
"""Of a walk: mostly what most images are drawn with, and of the rest enough to hold between them."""
_FROM_MIDWAY = 0.25  # so many begin at any step, from a true mixture


class Walks:
    """Choose the batch of images, all of one size, for a training step.

    `noisy` and `clean` are `(count, tokens, 64)`; `index` `(count,)` is the number of the scene, `left` and
    `num_steps` `(count,)` how many steps are to be done, of how many.
    """

    def __init__(self, latents: Latents, count: int) -> None:
        self.latents = latents
        self.index = torch.zeros(count, dtype=torch.long)
        self.left = torch.zeros(count, dtype=torch.long)
        self.num_steps = torch.ones(count, dtype=torch.long)
        self.clean = pack_latents(latents.scaled(self.index))
        self.noisy = self.clean.clone()
        self._begin(torch.arange(count), from_midway=1.0)

    @property
    def level(self) -> Tensor:
        """Noise levels `(count,)` in 0…1, rounded as the pipeline's bf16 rounds them."""
        return self._share_left.bfloat16().float()

    @property
    def velocity(self) -> Tensor:
        """Return the network's target: the direction from each image's end to its current state."""
        return (self.noisy - self.clean) / self._share_left[:, None, None]

    def advance(self, velocity: Tensor) -> None:
        """Advance the batch by one step of the network's own prediction."""
        self.noisy = self.noisy - velocity / self.num_steps[:, None, None]
        self.left -= 1
        self._begin((self.left == 0).nonzero()[:, 0], _FROM_MIDWAY)

    @property
    def _share_left(self) -> Tensor:
        return self.left / self.num_steps

    def _begin(self, which: Tensor, from_midway: float) -> None:
        count = len(which)
        self.index[which] = chosen = torch.randint(len(self.latents.means), (count,))
        target = self.latents.scaled(chosen)
        noise = noise_with(self.latents.traits[chosen], *target.shape[1:])
        num_steps = torch.tensor(NUM_STEPS)[torch.randint(len(NUM_STEPS), (count,))]
        midway = (torch.rand(count) * num_steps).long() + 1
        self.num_steps[which] = num_steps
        self.left[which] = torch.where(torch.rand(count) < from_midway, midway, num_steps)
        level = self._share_left[which, None, None]
        self.clean[which] = clean = pack_latents(target)
        self.noisy[which] = (1 - level) * clean + level * pack_latents(noise)
