"""Pictures half drawn by the network itself, composed as they are needed; see `walks` of tiny-flux."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from compose import compose
from diffuserve.models.families.packed_images.latents import pack_latents
from emoji_autoencoder import crowd
from emoji_text import Lesson
from latents import shows_thing
from layout import NUM_TRAITS, noise_with
from pictures import Picture, Range, caption, draw_picture
from text_encoders import TextEncoders
from walks import NUM_STEPS

_FROM_MIDWAY = 0.25  # so many begin at any step, from a true mixture
_NUM_MEASURED = 96


@dataclass(frozen=True)
class Batch:
    """Pictures as the denoiser is given them; every tensor has one row for each.

    `clean` and `noise` `(count, tokens, 64)`, `things` `(count, tokens)`; `pooled`, `tokens` of the caption.
    """

    clean: Tensor
    noise: Tensor
    things: Tensor
    pooled: Tensor
    tokens: Tensor


class Studio:
    """Makes pictures into what the denoiser learns from."""

    def __init__(self, vae: AutoencoderKL, encoders: TextEncoders, lesson: Lesson) -> None:
        self.lesson, self.encoders, self._vae = lesson, encoders, vae
        for module in (vae, *encoders.modules.values()):
            module.requires_grad_(False).eval()
        chance = random.Random("scale")
        means = self._encode(torch.stack([crowd(chance, lesson.sprites, 64) for _ in range(_NUM_MEASURED)]))
        self.shift, self.scale = float(means.mean()), 1 / float(means.std())

    def make(self, pictures: Sequence[Picture], size: tuple[int, int], chance: random.Random) -> Batch:
        """Return the pictures of this width and height, with starting noise that belongs to each."""
        traits = torch.randn(len(pictures), NUM_TRAITS)
        images = torch.stack(
            [
                compose(picture, self.lesson.sprites, trait, *size)
                for picture, trait in zip(pictures, traits, strict=True)
            ]
        )
        latents = (self._encode(images) - self.shift) * self.scale
        noise = noise_with(traits, *latents.shape[1:]).to(latents.device)
        captions = [caption(picture, self.lesson.things, chance) for picture in pictures]
        pooled, tokens = self.read(captions)
        things = shows_thing(images).to(latents.device)
        return Batch(pack_latents(latents), pack_latents(noise), things, pooled, tokens)

    @torch.no_grad()
    def read(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Return what the encoders make of captions."""
        clip_ids, t5_ids = self.lesson.tokenize(captions)
        device = self.lesson.device
        with torch.autocast(device.type, torch.bfloat16):
            pooled, tokens = self.encoders(clip_ids.to(device), t5_ids.to(device))
        return pooled.float(), tokens.float()

    @torch.no_grad()
    def show(self, latents: Tensor) -> Tensor:
        """Return the images of scaled latents `(batch, 16, height/8, width/8)`."""
        with torch.autocast(self.lesson.device.type, torch.bfloat16):
            images: Tensor = self._vae.decode(latents / self.scale + self.shift).sample
        return images.float().clamp(-1, 1)

    @torch.no_grad()
    def _encode(self, images: Tensor) -> Tensor:
        with torch.autocast(self.lesson.device.type, torch.bfloat16):
            means: Tensor = self._vae.encode(images.to(self.lesson.device)).latent_dist.mean
        return means.float()


class EmojiWalks:
    """The batch of a training step: pictures of one size, each on its way from noise.

    `left` and `num_steps` `(count,)` say how many steps are to be done, of how many.
    """

    def __init__(self, studio: Studio, size: tuple[int, int], count: int) -> None:
        self.studio, self.size, self.count = studio, size, count
        self.left = torch.zeros(count, dtype=torch.long)
        self.num_steps = torch.ones(count, dtype=torch.long)
        self._batch: Batch | None = None
        self._noisy: Tensor | None = None

    @property
    def batch(self) -> Batch:
        assert self._batch is not None, "nothing was begun"
        return self._batch

    @property
    def noisy(self) -> Tensor:
        assert self._noisy is not None, "nothing was begun"
        return self._noisy

    @property
    def level(self) -> Tensor:
        """Noise levels `(count,)` in 0…1, rounded as the pipeline's bf16 rounds them."""
        return self._share_left.bfloat16().float()

    @property
    def velocity(self) -> Tensor:
        """Return the network's target: the direction from each picture's end to its current state."""
        return (self.noisy - self.batch.clean) / self._share_left[:, None, None]

    def begin(self, drawn: Range, chance: random.Random) -> None:
        """Begin new pictures in place of those that have arrived; at first all, anywhere on their way."""
        is_first = self._batch is None
        which = (self.left == 0).nonzero()[:, 0]
        if len(which) == 0:
            return
        pictures = [draw_picture(chance, drawn) for _ in which]
        fresh = self.studio.make(pictures, self.size, chance)
        num_steps = torch.tensor(NUM_STEPS)[torch.randint(len(NUM_STEPS), (len(which),))]
        midway = (torch.rand(len(which)) * num_steps).long() + 1
        is_midway = torch.rand(len(which)) < (1.0 if is_first else _FROM_MIDWAY)
        self.num_steps[which], self.left[which] = num_steps, torch.where(is_midway, midway, num_steps)
        level = self._share_left[which.to(fresh.clean.device), None, None]
        noisy = (1 - level) * fresh.clean + level * fresh.noise
        if is_first:
            self._batch, self._noisy = fresh, noisy
        else:
            self.noisy[which] = noisy
            for name, value in vars(fresh).items():
                getattr(self.batch, name)[which] = value

    def advance(self, velocity: Tensor) -> None:
        """Advance every picture by one step of the network's own prediction."""
        self._noisy = self.noisy - velocity / self.num_steps.to(velocity.device)[:, None, None]
        self.left -= 1

    @property
    def _share_left(self) -> Tensor:
        return (self.left / self.num_steps).to(self.studio.lesson.device)
