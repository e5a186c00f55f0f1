"""Clips on their way, as the network itself draws them; see tiny-flux's `walks` for the reason.

A quarter of the walks are given their first latent frame, as in image-to-video: it stays clean, at noise
level 0, and settles place, size and shades; the noise then says only how much motion there is.
"""

import torch
from torch import Tensor

from choreography import AMOUNT, set_traits
from clip_latents import ClipLatents
from walks import NUM_STEPS

_FROM_MIDWAY = 0.25  # so many begin at any step, from a true mixture
_GIVEN = 0.25  # so many are given their first frame
_LAST_LEVEL = 0.001  # of the schedule, before it goes to 0


def levels_of(step: Tensor, num_steps: Tensor) -> Tensor:
    """Return the noise levels before these steps: those of Wan's sampler without a shift, 0 at the end."""
    # In double precision: the sampler cuts timesteps to whole numbers, and 1/3 of 999 lies at the edge.
    level = 1 + step.double() * ((_LAST_LEVEL - 1) / num_steps.double())
    return torch.where(step < num_steps, level, torch.zeros_like(level))


class ClipWalks:
    """A batch of clips, each on its way from noise.

    `noisy` and `clean` are `(count, 16, frames, rows, columns)`; `index`, `step`, `num_steps` and
    `is_given` are `(count,)`: the scene's number, the steps done and to be done, and whether the first
    latent frame is given.
    """

    def __init__(self, latents: ClipLatents, count: int) -> None:
        self.latents = latents
        self.index = torch.zeros(count, dtype=torch.long)
        self.step = torch.zeros(count, dtype=torch.long)
        self.num_steps = torch.ones(count, dtype=torch.long)
        self.is_given = torch.zeros(count, dtype=torch.bool)
        self.clean = latents.scaled(self.index)
        self.noisy = self.clean.clone()
        self._begin(torch.arange(count), from_midway=1.0)

    @property
    def level(self) -> Tensor:
        """Noise levels `(count,)` in 0…1."""
        return levels_of(self.step, self.num_steps).float()

    @property
    def is_learned(self) -> Tensor:
        """Return `(count, 1, frames, 1, 1)`, 0 for a latent frame that is given."""
        learned = torch.ones(len(self.index), 1, self.clean.shape[2], 1, 1)
        learned[:, :, 0] -= self.is_given.float()[:, None, None, None]
        return learned

    @property
    def velocity(self) -> Tensor:
        """Return the way from each clip's end to where it is now, which the network is to predict."""
        return (self.noisy - self.clean) / self.level[:, None, None, None, None]

    def advance(self, velocity: Tensor) -> None:
        """Go one step by the network's own prediction."""
        length = self.level - levels_of(self.step + 1, self.num_steps).float()
        self.noisy = self.noisy - velocity * length[:, None, None, None, None] * self.is_learned
        self.step += 1
        self._begin((self.step == self.num_steps).nonzero()[:, 0], _FROM_MIDWAY)

    def _begin(self, which: Tensor, from_midway: float) -> None:
        count = len(which)
        if not count:
            return
        self.index[which] = chosen = torch.randint(len(self.latents.means), (count,))
        num_steps = torch.tensor(NUM_STEPS)[torch.randint(len(NUM_STEPS), (count,))]
        midway = (torch.rand(count) * num_steps).long()
        self.num_steps[which] = num_steps
        self.step[which] = torch.where(torch.rand(count) < from_midway, midway, torch.zeros_like(midway))
        self.is_given[which] = torch.rand(count) < _GIVEN
        self.clean[which] = clean = self.latents.scaled(chosen)
        noise = self._noise(chosen, self.is_given[which])
        level = self.level[which, None, None, None, None] * self.is_learned[which]
        self.noisy[which] = (1 - level) * clean + level * noise

    def _noise(self, chosen: Tensor, is_given: Tensor) -> Tensor:
        """Return noise with the traits of these clips, or with their amount of motion alone."""
        traits = self.latents.traits[chosen]
        kept = torch.ones_like(traits)
        kept[is_given] = 0.0
        kept[:, AMOUNT] = 1.0
        return set_traits(torch.randn(len(chosen), *self.clean.shape[1:]), traits, kept)
